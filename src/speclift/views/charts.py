"""Where things lie in a picture: scales in percent of its width, ticks that do not touch, intervals against the bar.

A picture is HTML whose text flows, so that it fits any width; only marks are placed, and what is placed is worked out
for the narrowest phone. The templates draw it and the page's style sheet colours it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from speclift.core.quantities import ratio_words
from speclift.core.results import Bounds

# From an interval and what it is held against to the name of its colour.
Judge: TypeAlias = Callable[[Bounds, float], str]
# Series after the baseline, told apart by colour.
SERIES = ("s1", "s2", "s3", "s4", "s5", "s6")
RATIO_TICKS = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
# Width of a track between its label and its figures on a phone, and of a character of its ticks.
TRACK_PX = 110.0
CHARACTER_PX = 6.8
# Beyond these an interval is cut off at the edge: an unbounded one must not squeeze the others into a dot.
RATIO_LOW, RATIO_HIGH = 0.2, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps a value to a percentage of the axis, linearly or by logarithm."""

    low: float
    high: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        # An unknown lower bound is 0, which has no logarithm.
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(100 * share, 2)

    def value_at(self, percent: float) -> float:
        if self.is_log:
            return self.low * math.pow(self.high / self.low, percent / 100)
        return self.low + percent / 100 * (self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A value with its interval, in percent of the axis; one whose ends are not known reaches from edge to edge."""

    left: float
    right: float
    at: float
    style: str

    @property
    def width(self) -> float:
        return round(self.right - self.left, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    label: str
    words: str
    tip: str
    mark: Mark
    # A line of this row alone, in percent.
    own_line: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Values with intervals below each other; `one` is equal speed, `bar` what is required, where they are lines of the
    whole picture."""

    rows: tuple[ForestRow, ...]
    ticks: tuple[Tick, ...]
    one: float | None
    bar: float | None


def ratio_forest(
    estimates: Sequence[tuple[str, str, Bounds]], bar: float, judge: Judge | None = None
) -> Forest | None:
    """Speedups, each with a label and what else is known of it, against 1 and the bar."""
    if not estimates:
        return None
    scale = ratio_scale([bounds for _, _, bounds in estimates], bar)
    rows = tuple(
        ForestRow(
            label=label,
            words=ratio_words(bounds),
            tip=f"{label}: {ratio_words(bounds)}{more}",
            mark=mark_of(bounds, scale, (judge or judged)(bounds, bar)),
        )
        for label, more, bounds in estimates
    )
    return Forest(rows=rows, ticks=ratio_ticks(scale, bar, TRACK_PX), one=scale(1.0), bar=scale(bar))


def judged_tail(estimate: Bounds, tolerance: float) -> str:
    """Of the slowest requests: shown slower is a loss, however little; shown within the tolerance is enough."""
    low, high = estimate.low, estimate.high
    if high is not None and high < 1:
        return "loses"
    return "pays" if low is not None and low >= tolerance else "unclear"


def judged(estimate: Bounds, bar: float) -> str:
    low, high = estimate.low, estimate.high
    if low is not None and low >= bar:
        return "pays"
    if low is not None and low > 1:
        return "faster"
    if high is not None and high < 1:
        return "loses"
    return "unclear"


def mark_of(bounds: Bounds, scale: Scale, style: str) -> Mark:
    low, high = bounds.low, bounds.high
    return Mark(
        left=scale(low) if low is not None else 0.0,
        right=scale(high) if high is not None else 100.0,
        at=scale(bounds.value),
        style=style if low is not None and high is not None else f"{style} open",
    )


def ratio_scale(estimates: Iterable[Bounds], bar: float) -> Scale:
    values = [
        known
        for bounds in estimates
        for known in (bounds.value, bounds.low, bounds.high)
        if known is not None
    ]
    low = max(min(*values, 1.0, bar) * 0.95, RATIO_LOW)
    high = min(max(*values, 1.0, bar) * 1.05, RATIO_HIGH)
    return Scale(low=low, high=high, is_log=True)


def ratio_ticks(scale: Scale, bar: float, axis_px: float, label_px: float | None = None) -> tuple[Tick, ...]:
    """1 and the bar first, then what fits, nearest to 1 first."""
    near = [1.0, bar, *sorted(RATIO_TICKS, key=lambda value: abs(math.log(value)))]
    return fitting_ticks([(value, f"{value:g}x") for value in near], scale, axis_px, label_px)


def fitting_ticks(
    wanted: Iterable[tuple[float, str]], scale: Scale, axis_px: float, label_px: float | None = None
) -> tuple[Tick, ...]:
    """Those within the scale whose texts do not touch, the first ones first; `label_px` is how much of the axis each
    text takes, by its length where nothing is said."""
    chosen: list[tuple[Tick, float]] = []
    for value, text in wanted:
        if not scale.low <= value <= scale.high:
            continue
        half = 50 * (label_px or CHARACTER_PX * (len(text) + 1)) / axis_px
        tick = Tick(at=scale(value), text=text)
        if all(abs(tick.at - other.at) >= half + other_half for other, other_half in chosen):
            chosen.append((tick, half))
    return tuple(sorted((tick for tick, _ in chosen), key=lambda tick: tick.at))
