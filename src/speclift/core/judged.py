"""What a study was judged to say, for those that run servers: when an arm pays, and what of the traffic. Pure.

Its folder keeps it as verdict.json (studies/verdict_file.py), so that nobody who runs a server judges a study.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from speclift.core.arm import Arm
from speclift.core.document import Document
from speclift.core.goals import Goals
from speclift.core.results import Conditions, Decision, Interval, Percentiles
from speclift.core.traffic import Load
from speclift.core.units import Seconds


class LoadBreakEven(Document, frozen=True, kw_only=True):
    """One measured load: the arm is faster per token there where a step says more than `accepted_length` tokens."""

    load: Load
    # Requests under way on average, those that wait included.
    running: float
    accepted_length: float
    # What the arm reached in the study; None where the engine does not tell it for the load as a whole.
    measured: Interval | None
    baseline_ttft_s: Percentiles | None
    baseline_tpot_s: Percentiles | None


class CrossoverRunning(Document, frozen=True, kw_only=True):
    """Requests under way from which on the arm no longer pays, in `metric`; a bound that is None was not reached."""

    metric: str
    value: float
    low: float | None
    high: float | None


class StudyBreakEvens(Document, frozen=True, kw_only=True):
    """What a study knows of when one arm pays, to hold a running server against."""

    arm: Arm
    engine: str
    engine_version: str
    # The lightest load first; empty where the engine counts no drafts.
    loads: tuple[LoadBreakEven, ...]
    # None where the arm pays at all measured loads, or at none of them.
    crossover: CrossoverRunning | None
    # Over the baseline on all traffic, of this arm alone.
    metric: str = ""
    speedup: Interval | None = None

    def at_running(self, running: float) -> float:
        """The accepted length that breaks even with so many requests under way. There must be a load."""
        return interpolated(knots_of(self.loads), running)


# Requests under way and the accepted length that breaks even there, by the former.
Knots: TypeAlias = Sequence[tuple[float, float]]


def knots_of(loads: Sequence[LoadBreakEven]) -> Knots:
    """Loads with as many requests under way as each other are one knot, their mean."""
    by_running: dict[float, list[float]] = {}
    for load in loads:
        by_running.setdefault(load.running, []).append(load.accepted_length)
    return tuple(
        (running, sum(by_running[running]) / len(by_running[running])) for running in sorted(by_running)
    )


def interpolated(knots: Knots, at: float) -> float:
    """On straight lines between the knots, since a step's time grows by so much per request; the nearest knot's value
    outside of them, since nothing was measured there."""
    if at <= knots[0][0]:
        return knots[0][1]
    for (left, low), (right, high) in pairwise(knots):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return knots[-1][1]


# Shown to be faster at all: what is enough where the servers that speculate are there already.
ROUTING_BAR = 1.0


class SegmentSpeedup(Interval, frozen=True, kw_only=True):
    prompts: int


class PlainTime(Document, frozen=True, kw_only=True):
    """The median time of the baseline's requests, in one segment at one load."""

    segment: str
    load: Load
    e2e_s: Seconds


class LoadRunning(Document, frozen=True, kw_only=True):
    """A measured load as requests under way."""

    load: Load
    running: float


class RoutingFacts(Document, frozen=True, kw_only=True):
    """What a gateway's policy is made of: the verdict where any gain is enough, since the servers are there already."""

    verdict: Decision
    # The arm that the verdict is about; None where nothing was compared.
    arm: Arm | None
    winner: str | None
    conditions: Conditions | None
    # By segment: on all traffic, and on what the conditions admit.
    whole: dict[str, SegmentSpeedup]
    admitted: dict[str, SegmentSpeedup]
    plain: tuple[PlainTime, ...]
    running: tuple[LoadRunning, ...]
    # How much longer the plain server's first token takes for a thousand tokens more of prompt.
    prefill_s_per_1000_tokens: Seconds


class StudyPrices(Document, frozen=True, kw_only=True):
    """What servers are run by; the file has the verdict's whole document beside it."""

    # The version that judged it.
    speclift: str
    goals: Goals
    # Whether these are the study's own.
    has_own_goals: bool
    # The arm that the verdict is about; None where nothing was compared.
    best: str | None
    arms: tuple[StudyBreakEvens, ...]
    # What the study took, and how it was started.
    seconds: Seconds
    argv: tuple[str, ...]
    routing: RoutingFacts
