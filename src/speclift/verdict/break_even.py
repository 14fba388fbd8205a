"""At which accepted length does an arm break even, load by load and between the loads that were measured? Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from speclift.core.arm import BASELINE, Arm
from speclift.core.results import Crossover, Evidence, Interval, Percentiles, cell_of
from speclift.core.traffic import Concurrency, Load
from speclift.verdict.rules import ALL, BreakEven, break_evens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBreakEven:
    """One measured load: the arm is faster per token there where a step says more than `accepted_length` tokens."""

    load: Load
    # Requests under way on average, those that wait included.
    running: float
    accepted_length: float
    # What the arm reached in the study; None where the engine does not tell it for the load as a whole.
    measured: Interval | None
    baseline_ttft_s: Percentiles | None
    baseline_tpot_s: Percentiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverRunning:
    """Requests under way from which on the arm no longer pays, in `metric`; a bound that is None was not reached."""

    metric: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyBreakEvens:
    """What a study knows of when one arm pays, to hold a running server against."""

    arm: Arm
    engine: str
    engine_version: str
    # The lightest load first; empty where the engine counts no drafts.
    loads: tuple[LoadBreakEven, ...]
    # None where the arm pays at all measured loads, or at none of them.
    crossover: CrossoverRunning | None

    def at_running(self, running: float) -> float:
        """The accepted length that breaks even with so many requests under way. There must be a load."""
        return interpolated(knots_of(self.loads), running)


# Requests under way and the accepted length that breaks even there, by the former.
Knots = Sequence[tuple[float, float]]


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


def load_break_evens(evidence: Evidence, running: Mapping[Load, float]) -> tuple[LoadBreakEven, ...]:
    """`running` has the requests under way at each load; loads that are not in it are left out."""
    found = [
        LoadBreakEven(
            load=point.load,
            running=running[point.load],
            accepted_length=point.cost,
            measured=None if cell is None else cell.accepted_length,
            baseline_ttft_s=None if plain is None else plain.ttft_s,
            baseline_tpot_s=None if plain is None else plain.tpot_s,
        )
        for point in _points(evidence)
        if point.load in running
        for cell in (cell_of(evidence.cells, evidence.arm.name, point.load),)
        for plain in (cell_of(evidence.baseline_cells, BASELINE, point.load),)
    ]
    return tuple(sorted(found, key=lambda point: point.running))


def _points(evidence: Evidence) -> Iterable[BreakEven]:
    """By segments; of an engine that counts drafts for the server alone, each load as a whole."""
    whole = [cell for cell in (*evidence.cells, *evidence.baseline_cells) if cell.segment == ALL]
    found = (*break_evens(whole), *break_evens(evidence.segment_cells))
    return {point.load: point for point in found}.values()


def crossover_running(
    crossovers: Sequence[Crossover], running: Mapping[Load, float], *, metric: str
) -> CrossoverRunning | None:
    """In the study's own metric; of two axes the closed loop's, whose loads are requests under way already."""
    for axis in ("concurrency", "qps"):
        for found in crossovers:
            if found.axis == axis and found.metric == metric and found.value is not None:
                rates = _by_rate(running) if axis == "qps" else ()
                return CrossoverRunning(
                    metric=metric,
                    value=_under_way(found.value, rates),
                    low=None if found.low is None else _under_way(found.low, rates),
                    high=None if found.high is None else _under_way(found.high, rates),
                )
    return None


def _by_rate(running: Mapping[Load, float]) -> Knots:
    """On log scales, as the crossover itself is interpolated."""
    rates = {
        math.log(load.per_s): math.log(count)
        for load, count in running.items()
        if not isinstance(load, Concurrency) and count > 0
    }
    return tuple(sorted(rates.items()))


def _under_way(value: float, rates: Knots) -> float:
    """Of a closed loop there are no rates: its load is what is under way."""
    return math.exp(interpolated(rates, math.log(value))) if rates else value
