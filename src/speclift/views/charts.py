"""Pictures as inline SVG, from numbers of the JSON document alone. Colours come from the page's style sheet.

Every chart returns "" where the document has nothing to show in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape as escape_markup
from typing import Literal, NamedTuple

from speclift.core.documents import BoundsDocument, LoadDocument, load_of
from speclift.core.quantities import printable
from speclift.core.results import Part
from speclift.core.traffic import load_label
from speclift.views.documents import (
    CeilingDocument,
    CrossoverDocument,
    PartSpeedupDocument,
    PercentilesDocument,
    VerdictDocument,
)

WIDTH = 720.0
ROW = 26.0
LABEL = 170.0
# Where a label names part and arm.
LABEL_OF_TWO = 240.0
TICKS = (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
TICK_GAP = 34.0
# Series after the baseline, told apart by colour and by dash.
SERIES = ("s1", "s2", "s3", "s4", "s5", "s6")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps a value to a coordinate, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        # An unknown lower bound is 0, which has no logarithm.
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def value_at(self, share: float) -> float:
        """The value that lies at this share of the axis."""
        if self.is_log:
            return self.low * math.pow(self.high / self.low, share)
        return self.low + share * (self.high - self.low)


def forest(document: VerdictDocument) -> str:
    """Speedup per part of the traffic and arm, with its interval, against 1 and the bar."""
    rows: list[tuple[str, str, BoundsDocument]] = []
    for arm in document["speedups"]:
        if arm["overall"] is not None:
            rows.append(("all traffic", arm["arm"], arm["overall"]))
        rows += [(_where(part), arm["arm"], part) for part in arm["parts"]]
    if not rows:
        return ""
    bar = document["goals"]["min_speedup"]
    arms = [arm["arm"] for arm in document["speedups"]]
    start = LABEL if len(arms) == 1 else LABEL_OF_TWO
    scale = replace(_ratio_scale([bounds for _, _, bounds in rows], extra=(1.0, bar)), start=start)
    height = ROW * (len(rows) + 1.6)
    parts = [*_ratio_axis(scale, height, bar)]
    for index, (label, name, estimate) in enumerate(rows):
        y = ROW * (index + 0.7)
        words = label if len(arms) == 1 else f"{label} · {name}"
        parts.append(text(0, y + 4, words, limit=int(start / 6.6)))
        parts.append(_interval(scale, y, estimate, _judged(estimate, bar)))
        parts.append(text(WIDTH, y + 4, f"{estimate['value']:.2f}x", anchor="end"))
    return svg(height, parts, "Speedup per part of the traffic with 95 % intervals")


class _LoadPoint(NamedTuple):
    """Speedup at one load, of which both bounds are known."""

    load: float
    value: float
    low: float
    high: float


def speedup_over_load(document: VerdictDocument) -> str:
    """One line per arm with its band; the crossover and its interval on the axis."""
    known = [(arm["arm"], _load_points(arm["parts"])) for arm in document["speedups"]]
    arms = [(name, points) for name, points in known if len(points) > 1]
    if not arms:
        return ""
    every = [point for _, points in arms for point in points]
    loads = sorted({point.load for point in every})
    bar = document["goals"]["min_speedup"]
    x = Scale(low=loads[0], high=loads[-1], start=60, end=WIDTH - 20, is_log=True)
    bounds: list[BoundsDocument] = [
        {"value": point.value, "low": point.low, "high": point.high} for point in every
    ]
    ratios = _ratio_scale(bounds, extra=(1.0, bar))
    y = Scale(low=ratios.low, high=ratios.high, start=260, end=16, is_log=True)
    parts = [*_load_axes(x, y, loads, bar)]
    for crossing in document["crossover"]:
        if crossing["metric"] == document["goals"]["metric"]:
            parts += _crossing(crossing, x)
    for index, (name, points) in enumerate(arms):
        parts += _load_series(name, points, x, y, SERIES[index % len(SERIES)])
    return svg(290, parts, "Speedup over load with 95 % bands")


def _load_points(parts: Iterable[PartSpeedupDocument]) -> list[_LoadPoint]:
    points = [
        _LoadPoint(_load_number(part["label"]), part["value"], part["low"], part["high"])
        for part in parts
        if part["part"] is Part.LOAD and part["low"] is not None and part["high"] is not None
    ]
    return sorted(points, key=lambda point: point.load)


def _crossing(crossing: CrossoverDocument, x: Scale) -> list[str]:
    """Empty where the arm pays at every load, or at none."""
    if crossing["value"] is None:
        return []
    at = x(crossing["value"])
    left, right = x(crossing["low"] or x.low), x(crossing["high"] or x.high)
    return [
        f'<rect class="band" x="{left:.1f}" y="16" width="{right - left:.1f}" height="244"/>',
        line(at, 16, at, 260, "crossing"),
        text(at + 4, 28, f"crossover {crossing['value']:.3g}"),
    ]


def _load_series(name: str, points: Sequence[_LoadPoint], x: Scale, y: Scale, style: str) -> list[str]:
    upper = " ".join(f"{x(point.load):.1f},{y(point.high):.1f}" for point in points)
    lower = " ".join(f"{x(point.load):.1f},{y(point.low):.1f}" for point in reversed(points))
    middle = " ".join(f"{x(point.load):.1f},{y(point.value):.1f}" for point in points)
    last = points[-1]
    return [
        f'<polygon class="fill {style}" points="{upper} {lower}"/>',
        f'<polyline class="line {style}" points="{middle}"/>',
        text(x(last.load), y(last.value) - 6, name, anchor="end", style=f"name {style}"),
    ]


class _Percentile(NamedTuple):
    load: str
    name: str
    arm: str
    value: float
    interval: Sequence[float | None]


def percentiles(document: VerdictDocument, metric: Literal["ttft_s", "tpot_s"], arm: str) -> str:
    """Baseline against one arm: P50, P95 and P99 at each load, with order-statistic intervals."""
    rows = [
        row
        for cell in document["cells"]
        if cell["segment"] == "all" and cell["arm"] in ("baseline", arm)
        for row in _percentile_rows(cell["load"], cell["arm"], cell[metric])
    ]
    if not rows:
        return ""
    rows.sort(key=lambda row: (_load_number(row.load), row.name, row.arm != "baseline"))
    scale = Scale(low=0, high=max(row.value for row in rows) * 1.08, start=LABEL, end=WIDTH - 70)
    height = ROW * (len(rows) + 1.2)
    parts = [line(scale.start, 4, scale.start, height - ROW, "axis")]
    for index, row in enumerate(rows):
        y = ROW * (index + 0.7)
        style = "base" if row.arm == "baseline" else SERIES[0]
        low, high = row.interval
        parts.append(text(0, y + 4, f"{row.name.upper()} {row.load} {row.arm}", limit=30))
        parts.append(
            f'<rect class="bar {style}" x="{scale.start:.1f}" y="{y - 7:.1f}" '
            f'width="{scale(row.value) - scale.start:.1f}" height="14" rx="2"/>'
        )
        if low is not None and high is not None:
            parts.append(line(scale(low), y, scale(min(high, scale.high)), y, "whisker"))
        parts.append(text(WIDTH, y + 4, _ms(row.value), anchor="end"))
    return svg(height, parts, f"{metric} percentiles, baseline against {arm}")


def _percentile_rows(load: LoadDocument, arm: str, measured: PercentilesDocument | None) -> list[_Percentile]:
    if measured is None:
        return []
    label, intervals = load_label(load_of(load)), measured["intervals"]
    return [
        _Percentile(label, name, arm, value, intervals.get(name, (None, None)))
        for name, value in (("p50", measured["p50"]), ("p95", measured["p95"]), ("p99", measured["p99"]))
        if value is not None
    ]


def histogram(counts: Sequence[int], label: str) -> str:
    """Acceptance per request in ten bins of 10 %."""
    highest = max(counts, default=0)
    if not highest:
        return ""
    width, height = 220.0, 96.0
    step = width / len(counts)
    parts = []
    for index, count in enumerate(counts):
        tall = 70.0 * count / highest
        parts.append(
            f'<rect class="bar s1" x="{index * step + 1:.1f}" y="{78 - tall:.1f}" width="{step - 2:.1f}" '
            f'height="{tall:.1f}"><title>{index * 10}-{index * 10 + 10} %: {count} requests</title></rect>'
        )
    parts.append(line(0, 78, width, 78, "axis"))
    parts += [
        text(0, 92, "0"),
        text(width / 2, 92, "50 %", anchor="middle"),
        text(width, 92, "100 %", anchor="end"),
    ]
    return svg(height, parts, f"Acceptance per request: {label}", width=width)


def survival(document: VerdictDocument) -> str:
    """Share of decode steps in which at least j drafted tokens were accepted, per arm."""
    by_arm = {
        cell["arm"]: cell["per_position"]
        for cell in document["cells"]
        if cell["segment"] == "all" and cell["per_position"]
    }
    arms = list(by_arm.items())
    if not arms:
        return ""
    longest = max(len(rates) for _, rates in arms)
    x = Scale(low=0, high=max(longest, 2), start=50, end=WIDTH - 20)
    highest = max(rates[0] for _, rates in arms)
    y = Scale(low=0, high=max(highest * 1.1, 0.05), start=200, end=14)
    parts = [line(50, 200, WIDTH - 20, 200, "axis"), line(50, 14, 50, 200, "axis")]
    parts += [text(44, y(v) + 4, f"{v:.0%}", anchor="end") for v in (0.0, y.high / 2, y.high)]
    for position in _few(range(1, longest + 1), 12):
        parts.append(text(x(position), 216, str(position), anchor="middle"))
    for index, (name, rates) in enumerate(arms):
        style = SERIES[index % len(SERIES)]
        points = " ".join(f"{x(j + 1):.1f},{y(rate):.1f}" for j, rate in enumerate(rates))
        parts.append(f'<polyline class="line {style}" points="{points}"/>')
        parts += [
            f'<circle class="dot {style}" cx="{x(j + 1):.1f}" cy="{y(rate):.1f}" r="2.5">'
            f"<title>{escape(name)} position {j + 1}: {rate:.1%}</title></circle>"
            for j, rate in enumerate(rates)
        ]
        parts.append(text(x(1) + 8, y(rates[0]) - 6 + 14 * index, name, style=f"name {style}"))
    parts.append(text(WIDTH - 20, 232, "draft position", anchor="end"))
    return svg(236, parts, "Accepted per position")


def ceiling(rows: Sequence[CeilingDocument]) -> str:
    """Measured speedup against accepted length, the speedup if drafting and verifying cost nothing."""
    if not rows:
        return ""
    highest = max(max(row["ceiling"], row["measured"]) for row in rows)
    scale = Scale(low=0, high=highest * 1.08, start=LABEL, end=WIDTH - 120)
    height = ROW * (len(rows) + 0.9)
    parts = [line(scale(1), 4, scale(1), height - 10, "one")]
    for index, row in enumerate(rows):
        y = ROW * (index + 0.7)
        parts.append(text(0, y + 4, row["segment"], limit=30))
        for value, style, tall in ((row["ceiling"], "hollow", 16), (row["measured"], "bar s1", 8)):
            parts.append(
                f'<rect class="{style}" x="{scale.start:.1f}" y="{y - tall / 2:.1f}" '
                f'width="{scale(value) - scale.start:.1f}" height="{tall}" rx="2"/>'
            )
        parts.append(text(WIDTH, y + 4, f"{row['measured']:.2f}x of {row['ceiling']:.2f}x", anchor="end"))
    return svg(height, parts, "Measured speedup against its ceiling")


# Pieces


def escape(text: str) -> str:
    """Neither markup nor a character that reorders or moves what follows."""
    return escape_markup(printable(text, limit=500))


def _judged(estimate: BoundsDocument, bar: float) -> str:
    if estimate["low"] is not None and estimate["low"] >= bar:
        return "pays"
    if estimate["low"] is not None and estimate["low"] > 1:
        return "faster"
    if estimate["high"] is not None and estimate["high"] < 1:
        return "loses"
    return "unclear"


def _ratio_scale(estimates: Iterable[BoundsDocument], *, extra: tuple[float, ...]) -> Scale:
    listed = list(estimates)
    lows = [e["low"] if e["low"] is not None else e["value"] for e in listed]
    highs = [e["high"] if e["high"] is not None else e["value"] for e in listed]
    # An unbounded interval must not squeeze the others into a dot.
    low = max(min(*lows, *extra) * 0.95, 0.2)
    high = min(max(*highs, *extra) * 1.05, 8.0)
    return Scale(low=low, high=high, start=LABEL, end=WIDTH - 70, is_log=True)


def _ratio_axis(scale: Scale, height: float, bar: float) -> list[str]:
    bottom = height - ROW * 0.8
    parts = [
        line(scale(1.0), 4, scale(1.0), bottom, "one"),
        line(scale(bar), 4, scale(bar), bottom, "goal"),
    ]
    parts += [text(scale(tick), height - 4, f"{tick:g}x", anchor="middle") for tick in _ticks(scale)]
    return parts


def _ticks(scale: Scale) -> list[float]:
    """1 always, then what fits without touching, nearest to 1 first."""
    chosen: list[float] = []
    for tick in sorted(TICKS, key=lambda tick: abs(math.log(tick))):
        is_free = all(abs(scale(tick) - scale(other)) >= TICK_GAP for other in chosen)
        if scale.low <= tick <= scale.high and is_free:
            chosen.append(tick)
    return sorted(chosen)


def _load_axes(x: Scale, y: Scale, loads: Sequence[float], bar: float) -> list[str]:
    parts = [line(60, y(1.0), WIDTH - 20, y(1.0), "one"), line(60, y(bar), WIDTH - 20, y(bar), "goal")]
    parts += [text(54, y(t) + 4, f"{t:g}x", anchor="end") for t in _ticks(y)]
    parts += [text(x(load), 278, f"{load:g}", anchor="middle") for load in loads]
    return parts


def _interval(scale: Scale, y: float, estimate: BoundsDocument, style: str) -> str:
    low = scale(estimate["low"] if estimate["low"] is not None else scale.low)
    high = scale(estimate["high"] if estimate["high"] is not None else scale.high)
    return (
        f'<g class="{style}">{line(low, y, high, y, "range")}{line(low, y - 5, low, y + 5, "range")}'
        f"{line(high, y - 5, high, y + 5, 'range')}"
        f'<circle cx="{scale(estimate["value"]):.1f}" cy="{y:.1f}" r="4.5"/></g>'
    )


def _where(part: PartSpeedupDocument) -> str:
    return f"temperature {part['label']}" if part["part"] is Part.TEMPERATURE else part["label"]


def _load_number(label: str) -> float:
    digits = "".join(c if c.isdigit() or c == "." else " " for c in label).split()
    return float(digits[0]) if digits else 0.0


def _few(values: Sequence[int], most: int) -> list[int]:
    step = max(1, math.ceil(len(values) / most))
    return list(values)[::step]


def _ms(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, text: str, *, anchor: str = "start", style: str = "", limit: int = 60) -> str:
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    full = f"<title>{escape(text)}</title>" if shown != text else ""
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}{full}</text>'
    )


def svg(height: float, parts: Iterable[str], title: str, *, width: float = WIDTH) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}" '
        f'style="max-width:{width:.0f}px">{body}</svg>'
    )
