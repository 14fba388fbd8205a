"""From which accepted length on it pays, at the load of the moment. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from speclift.core.live import BreakEvenPoint, BreakEvenSource
from speclift.core.results import Finding, warn

# Beyond this multiple of the largest measured load nobody knows what a step costs, only that it costs more.
BEYOND = 2.0
# What a guess knows: by how much of a plain step each drafted token lengthens one. Looked up on a CPU 0.02 (the demo:
# k=7 takes 1.15 plain steps), an EAGLE head on an H200 0.12, looked up there 0.25 (a model of 135M, k=5), a draft model
# of an eighth of its target's size there 0.5 (vLLM 0.26, docs/gpu.md); older versions and busy machines more.
GUESSED_COST_LOW, GUESSED_COST, GUESSED_COST_HIGH = 0.02, 0.15, 0.50


class BreakEvenAt(Protocol):
    def __call__(self, running: float | None, k: int | None) -> BreakEvenPoint | None: ...


@dataclass(frozen=True, slots=True)
class GivenBreakEven:
    accepted_length: float

    def __call__(self, running: float | None, k: int | None) -> BreakEvenPoint:
        value = self.accepted_length
        return BreakEvenPoint(
            accepted_length=value, low=value, high=value, source=BreakEvenSource.GIVEN, running=running
        )


@dataclass(frozen=True, slots=True)
class StudiedBreakEven:
    """As a study measured it: `at` with so many requests under way, between and beside the loads that it had."""

    at: Callable[[float], float]
    loads: Sequence[float]

    def __call__(self, running: float | None, k: int | None) -> BreakEvenPoint:
        if running is None:
            # Which load it is nobody says: every one that was measured may be meant.
            values = [self.at(load) for load in self.loads]
            return _point(max(values), low=min(values), high=max(values), running=None)
        value = self.at(running)
        is_beyond = running > BEYOND * max(self.loads)
        return _point(value, low=value, high=math.inf if is_beyond else value, running=running)


class PlannedBreakEven:
    """A guess from the number of tokens drafted at a time."""

    def __call__(self, running: float | None, k: int | None) -> BreakEvenPoint | None:
        if not k:
            return None
        low, value, high = (1 + cost * k for cost in (GUESSED_COST_LOW, GUESSED_COST, GUESSED_COST_HIGH))
        return BreakEvenPoint(
            accepted_length=value, low=low, high=high, source=BreakEvenSource.PLANNED, running=running
        )


def break_even_findings(point: BreakEvenPoint | None) -> tuple[Finding, ...]:
    if point is None:
        return ()
    if point.source is BreakEvenSource.PLANNED:
        return (
            warn(
                "break-even-guessed",
                f"the break-even of {point.accepted_length:.2f} is a guess, between {point.low:.2f} and "
                f"{point.high:.2f}: what a step costs on this server was not measured",
                then="measure it once with speclift decide, then watch with --study DIR",
            ),
        )
    if math.isinf(point.high):
        return (
            warn(
                "load-beyond-study",
                f"{point.running:.0f} requests are under way, more than twice the study's largest load",
                then="measure that load too: speclift decide --concurrency",
            ),
        )
    return ()


def _point(value: float, *, low: float, high: float, running: float | None) -> BreakEvenPoint:
    return BreakEvenPoint(
        accepted_length=value, low=low, high=high, source=BreakEvenSource.STUDY, running=running
    )
