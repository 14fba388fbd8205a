"""Where things lie in a picture: scales in percent of its width, ticks that do not touch, intervals against the bar,
lines over two axes.

A picture is HTML whose text flows, so that it fits any width; only marks are placed, and what is placed is worked out
for the narrowest phone. The templates draw it and the page's style sheet colours it; names are in a legend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from speclift.core.quantities import ratio_words
from speclift.core.results import Bounds, Crossover, Part

if TYPE_CHECKING:
    from speclift.verdict.document import PartSpeedup, VerdictDocument


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


# Of the picture inside its axes, on the narrowest phone.
AREA_WIDTH_PX = 240.0
AREA_HEIGHT_PX = 220.0
LABEL_HEIGHT_PX = 18.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """In percent from the left and from the top."""

    x: float
    y: float
    tip: str
    kind: str = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """`lines` are the points of each line, `bands` those around each band, as SVG writes them; x and y in percent."""

    name: str
    style: str
    dots: tuple[Dot, ...]
    lines: tuple[str, ...] = ()
    bands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text beside a point; `anchor` names its end that lies there."""

    x: float
    y: float
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """`heads` and `figures` are the same as a table, for whoever does not see the picture."""

    title: str
    x_title: str
    y_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    heads: tuple[str, ...]
    figures: tuple[tuple[str, ...], ...]
    one: float | None = None
    bar: float | None = None
    labels: tuple[Label, ...] = ()
    # From, to and the place between them, in percent from the left.
    spans: tuple[tuple[float, float, float], ...] = ()


class _LoadPoint(NamedTuple):
    """Speedup at one load, of which both bounds are known."""

    label: str
    load: float
    value: float
    low: float
    high: float


def speedup_over_load(document: VerdictDocument) -> Plot | None:
    """One line per arm with its band, the crossover as a span of loads; None with fewer than two loads."""
    arms = [(arm.arm, _load_points(arm.parts)) for arm in document.speedups]
    arms = [(name, points) for name, points in arms if len({point.load for point in points}) > 1]
    if not arms:
        return None
    every = [point for _, points in arms for point in points]
    loads = sorted({point.load: point.label for point in every}.items())
    bar = document.goals.min_speedup
    x = Scale(low=loads[0][0], high=loads[-1][0], is_log=True)
    y = ratio_scale([_bounds(point) for point in every], bar)
    return Plot(
        title="Speedup over load, with 95 % bands",
        x_title="load",
        y_title="speedup",
        # The ends first: what lies between is shown where there is room.
        x_ticks=fitting_ticks([loads[0], loads[-1], *loads[1:-1]], x, AREA_WIDTH_PX),
        y_ticks=ratio_ticks(y, bar, AREA_HEIGHT_PX, LABEL_HEIGHT_PX),
        series=tuple(
            _load_series(name, points, x, y, SERIES[index % len(SERIES)])
            for index, (name, points) in enumerate(arms)
        ),
        heads=("arm", "load", "speedup", "from", "to"),
        figures=tuple(
            (name, point.label, *(f"{number:.2f}x" for number in (point.value, point.low, point.high)))
            for name, points in arms
            for point in points
        ),
        one=100 - y(1.0),
        bar=100 - y(bar),
        spans=tuple(_span(crossing, x) for crossing in _crossings(document)),
    )


def _load_points(parts: Iterable[PartSpeedup]) -> list[_LoadPoint]:
    points = [
        _LoadPoint(part.label, load_number(part.label), part.value, part.low, part.high)
        for part in parts
        if part.part == Part.LOAD and part.low is not None and part.high is not None
    ]
    return sorted((point for point in points if point.load > 0), key=lambda point: point.load)


def load_number(label: str) -> float:
    digits = "".join(
        character if character.isdigit() or character == "." else " " for character in label
    ).split()
    return float(digits[0]) if digits else 0.0


def _bounds(point: _LoadPoint) -> Bounds:
    return Bounds(value=point.value, low=point.low, high=point.high)


def _crossings(document: VerdictDocument) -> list[Crossover]:
    """Of the metric that decides; an arm that pays at every load or at none has no such place."""
    metric = document.goals.metric
    return [
        crossing
        for crossing in document.crossover
        if crossing.metric == metric and crossing.value is not None
    ]


def _span(crossing: Crossover, x: Scale) -> tuple[float, float, float]:
    left, right = x(crossing.low or x.low), x(crossing.high or x.high)
    return left, round(right - left, 2), x(crossing.value or x.high)


def _load_series(name: str, points: Sequence[_LoadPoint], x: Scale, y: Scale, style: str) -> Series:
    upper = [(x(point.load), 100 - y(point.high)) for point in points]
    lower = [(x(point.load), 100 - y(point.low)) for point in reversed(points)]
    return Series(
        name=name,
        style=style,
        lines=(joined((x(point.load), 100 - y(point.value)) for point in points),),
        bands=(joined([*upper, *lower]),),
        dots=tuple(
            Dot(
                x=x(point.load),
                y=100 - y(point.value),
                tip=f"{name} at {point.label}: {point.value:.2f}x [{point.low:.2f}, {point.high:.2f}]",
            )
            for point in points
        ),
    )


def survival(document: VerdictDocument) -> Plot | None:
    """Share of decode steps in which at least j draft tokens were accepted, at each arm's lightest load."""
    by_arm: dict[str, tuple[float, ...]] = {}
    for cell in document.cells:
        if (cell.segment, cell.temperature) == ("all", None) and cell.per_position:
            by_arm.setdefault(cell.arm, cell.per_position)
    if not by_arm:
        return None
    longest = max(len(rates) for rates in by_arm.values())
    x = Scale(low=1, high=max(longest, 2))
    y = Scale(low=0, high=max(0.05, *(rates[0] for rates in by_arm.values())))
    positions = range(1, longest + 1)
    return Plot(
        title="Acceptance by draft position",
        x_title="draft position",
        y_title="share of steps",
        x_ticks=fitting_ticks(
            [(position, str(position)) for position in (1, longest, *positions)], x, AREA_WIDTH_PX
        ),
        y_ticks=fitting_ticks(
            [(share * y.high, f"{share * y.high:.0%}") for share in (0, 1, 0.5)],
            y,
            AREA_HEIGHT_PX,
            LABEL_HEIGHT_PX,
        ),
        series=tuple(
            Series(
                name=name,
                style=SERIES[index % len(SERIES)],
                lines=(joined((x(j), 100 - y(rate)) for j, rate in enumerate(rates, 1)),),
                dots=tuple(
                    Dot(x=x(j), y=100 - y(rate), tip=f"{name}, position {j}: {rate:.1%}")
                    for j, rate in enumerate(rates, 1)
                ),
            )
            for index, (name, rates) in enumerate(by_arm.items())
        ),
        heads=("arm", *(str(position) for position in positions)),
        figures=tuple(
            (name, *(f"{rate:.1%}" for rate in rates), *[""] * (longest - len(rates)))
            for name, rates in by_arm.items()
        ),
    )


def joined(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def placed_labels(wanted: Iterable[Label], dots: Sequence[Dot]) -> tuple[Label, ...]:
    """Each beside its point, where it touches no other, covers no dot and stays inside; else it is left out. Worked out
    for the narrowest picture: in a wider one every text takes less of it."""
    placed: list[Label] = []
    for label in wanted:
        tries = [
            replace(label, anchor=anchor, y=label.y + up)
            for up in (0.0, -_LABEL_HEIGHT, _LABEL_HEIGHT)
            for anchor in ("start", "end")
        ]
        free = [
            tried
            for tried in tries
            if _is_inside(tried)
            and not any(_touches(tried, other) for other in placed)
            and not any(_covers(tried, dot) for dot in dots)
        ]
        placed += free[:1]
    return tuple(placed)


_LABEL_HEIGHT = 100 * LABEL_HEIGHT_PX / AREA_HEIGHT_PX
# Between a point and its text, and from a dot to its rim.
_GAP_PX, _DOT_PX = 9.0, 7.0


def _extent(label: Label) -> tuple[float, float]:
    gap, width = (100 * px / AREA_WIDTH_PX for px in (_GAP_PX, CHARACTER_PX * len(label.text)))
    if label.anchor == "start":
        return label.x + gap, label.x + gap + width
    return label.x - gap - width, label.x - gap


def _is_inside(label: Label) -> bool:
    left, right = _extent(label)
    return left >= 0 and right <= 100 and _LABEL_HEIGHT / 2 <= label.y <= 100 - _LABEL_HEIGHT / 2


def _touches(label: Label, other: Label) -> bool:
    left, right = _extent(label)
    other_left, other_right = _extent(other)
    is_apart = right < other_left or other_right < left
    return not is_apart and abs(label.y - other.y) < _LABEL_HEIGHT


def _covers(label: Label, dot: Dot) -> bool:
    left, right = _extent(label)
    across, up = 100 * _DOT_PX / AREA_WIDTH_PX, 100 * _DOT_PX / AREA_HEIGHT_PX
    return left - across < dot.x < right + across and abs(label.y - dot.y) < _LABEL_HEIGHT / 2 + up


def wide_scale(values: Sequence[float]) -> Scale:
    """Logarithmic, with room at both ends."""
    low, high = min(values), max(values)
    room = math.sqrt(1.15) if high > 1.02 * low else 1.25
    return Scale(low=low / room, high=high * room, is_log=True)
