"""Where it pays and where not: segments against loads as one table, and every part with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from speclift.core.arm import BASELINE
from speclift.core.quantities import number, ratio_words, seconds
from speclift.core.results import Bounds, Cell, Part, Percentiles
from speclift.verdict.document import ArmSpeedups, VerdictDocument
from speclift.views.charts import Forest, judged, ratio_forest
from speclift.views.page_document import ALL, cells_of, speedups_of
from speclift.views.page_sure import part_words

# Colour of a cell, in percent: a cell without an interval stays pale.
_STRENGTH_LOW, _STRENGTH_HIGH, _STRENGTH_PALE = 14, 46, 0.5
# Within this distance of 1 two medians are as good as equal.
_EVEN = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    words: str
    interval: str
    tip: str
    style: str
    strength: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatTable:
    """The first row is all segments together, the first column all loads together; None where nothing is known."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]

    @property
    def has_points(self) -> bool:
        """Whether some cell has no interval."""
        return any(cell is not None and not cell.interval for _, cells in self.rows for cell in cells)


def heat_table(document: VerdictDocument, arm: str) -> HeatTable | None:
    """None where there is but one segment at one load."""
    own, base = cells_of(document, arm), cells_of(document, BASELINE)
    loads = list(dict.fromkeys(load for load, _ in own))
    segments = list(dict.fromkeys(segment for _, segment in own if segment != ALL))
    if len(loads) * len(segments) < 2:
        return None
    metric, bar = document.goals.metric, document.goals.min_speedup
    known = _known(speedups_of(document, arm), bar)

    def cell(segment: str, load: str) -> HeatCell | None:
        """With its interval where that is of one side alone, or where the other side has but one value."""
        keys = [(ALL, ALL)] if (segment, load) == (ALL, ALL) else []
        keys += [("load", load)] if segment == ALL or len(segments) == 1 else []
        keys += [("segment", segment)] if load == ALL or len(loads) == 1 else []
        found = [known[key] for key in keys if key in known]
        at = loads[0] if load == ALL and len(loads) == 1 else load
        return found[0] if found else _point(base.get((at, segment)), own.get((at, segment)), metric, bar)

    # One load alone is all of them, and so is one segment.
    columns = {ALL: "all loads", **{load: load for load in loads}} if len(loads) > 1 else {ALL: loads[0]}
    names = (
        {ALL: "all segments", **{name: name for name in segments}}
        if len(segments) > 1
        else {ALL: segments[0]}
    )
    return HeatTable(
        heads=tuple(columns.values()),
        rows=tuple((name, tuple(cell(segment, load) for load in columns)) for segment, name in names.items()),
    )


def _known(entry: ArmSpeedups | None, bar: float) -> dict[tuple[str, str], HeatCell]:
    """What has an interval: all traffic, each segment, each load."""
    if entry is None:
        return {}
    parts: dict[tuple[str, str], Bounds] = {(str(part.part), part.label): part for part in entry.parts}
    if entry.overall is not None:
        parts[ALL, ALL] = entry.overall
    return {key: _heat(bounds, bar) for key, bounds in parts.items()}


def _heat(bounds: Bounds, bar: float) -> HeatCell:
    words = ratio_words(bounds)
    value, _, interval = words.partition(" ")
    return HeatCell(
        words=value,
        interval=interval,
        tip=f"{words}, paired by prompt",
        style=judged(bounds, bar),
        strength=_strength(bounds.value),
    )


def _point(base: Cell | None, own: Cell | None, metric: str, bar: float) -> HeatCell | None:
    """The ratio of two medians, which has no interval."""
    if base is None or own is None:
        return None
    if metric == "throughput":
        before, after = base.throughput_tok_s, own.throughput_tok_s
        ratio = after / before if before and after else None
        shown = f"{number(before, 1)} and {number(after, 1)} tokens/s"
    else:
        before, after = _median(base, metric), _median(own, metric)
        ratio = before / after if before and after else None
        shown = f"median {metric} {seconds(before)}, with {own.arm} {seconds(after)}"
    if ratio is None:
        return None
    style = (
        "pays" if ratio >= bar else "faster" if ratio > 1 + _EVEN else "loses" if ratio < 1 - _EVEN else ""
    )
    return HeatCell(
        words=f"{ratio:.2f}x",
        interval="",
        tip=f"{shown}; {own.requests} requests",
        style=style or "unclear",
        strength=round(_STRENGTH_PALE * _strength(ratio)),
    )


def _median(cell: Cell, metric: str) -> float | None:
    measured: Mapping[str, Percentiles | None] = {
        "tpot": cell.tpot_s,
        "e2e": cell.e2e_s,
        "ttft": cell.ttft_s,
    }
    percentiles = measured.get(metric)
    return percentiles.p50 if percentiles is not None else None


def _strength(ratio: float) -> int:
    """Twice as fast, or half as fast, has the full colour."""
    distance = min(abs(math.log2(ratio)), 1.0) if ratio > 0 else 1.0
    return round(_STRENGTH_LOW + distance * (_STRENGTH_HIGH - _STRENGTH_LOW))


def part_forests(document: VerdictDocument, first: str | None) -> list[tuple[str, Forest]]:
    """For each arm, the one that is shown first, its parts with intervals."""
    bar = document.goals.min_speedup
    forests = []
    for entry in sorted(document.speedups, key=lambda entry: entry.arm != first):
        rows: list[tuple[str, str, Bounds]] = [
            (
                part_words(part.part, part.label),
                f", {part.prompts} prompts",
                part,
            )
            for part in sorted(entry.parts, key=lambda part: list(Part).index(part.part))
        ]
        forest = ratio_forest(rows, bar)
        if forest is not None:
            forests.append((entry.arm, forest))
    return forests


def crossing_lines(document: VerdictDocument) -> list[str]:
    """Where each arm stops being faster, a line for each metric."""
    lines = []
    for crossing in document.crossover:
        unit = "requests at once" if crossing.axis == "concurrency" else "requests/s"
        if crossing.value is None:
            said = crossing.note
        else:
            low = "less than was measured" if crossing.low is None else f"{crossing.low:.3g}"
            high = "more than was measured" if crossing.high is None else f"{crossing.high:.3g}"
            said = f"no longer faster from {crossing.value:.3g} {unit} on (95 % interval: {low} to {high})"
        lines.append(f"{crossing.arm}, {crossing.metric}: {said}")
    return lines
