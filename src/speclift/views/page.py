"""The report: one self-contained HTML page from the JSON document, and from nothing else.

A section for each question that people ask, in the order in which they ask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speclift.core.arm import BASELINE
from speclift.core.quantities import number, ratio_words, seconds
from speclift.core.results import (
    Bounds,
    Cell,
    Conditions,
    Decision,
    Finding,
    Level,
    Part,
    Percentiles,
    Reason,
)
from speclift.search.tuning import ConfirmedTuning
from speclift.verdict.document import ArmSpeedups, OpenPartSpeedup, Speedup, VerdictDocument
from speclift.views.charts import Forest, judged, ratio_forest, speedup_over_load, survival
from speclift.views.page_figures import (
    ALL,
    METRIC_WORDS,
    by_temperature,
    cell_table,
    cells_of,
    histograms,
    panels,
    part_words,
    resources,
    shown_arm,
    speedups_of,
    step_forest,
    steps,
    tail_forest,
    temperature_rows,
)
from speclift.views.page_templates import GLOSSARY, TermLinks, page_template
from speclift.views.tuning_figures import (
    cost_line,
    dropped_lines,
    error_lines,
    pareto,
    schedule_line,
    speedup_tables,
)

TITLES = {
    Decision.SHIP: "Ship",
    Decision.SHIP_ON_CONDITIONS: "Ship on conditions",
    Decision.DO_NOT_SHIP: "Do not ship",
    Decision.INCONCLUSIVE: "Inconclusive",
    Decision.OUTPUT_CHANGED: "Output changed",
}
# The place of each on the page, and its heading.
QUESTIONS = {
    "do": "What should I do?",
    "sure": "How sure is it?",
    "where": "Where does it pay, and where not?",
    "latency": "What does it do to the latency people feel?",
    "why": "Why?",
    "output": "Did the output change?",
    "articles": "What do the articles say, and what was measured here?",
    "configuration": "Which configuration do I copy?",
    "cells": "What was measured in every cell?",
    "rerun": "How do I run it again?",
}


def page(document: VerdictDocument) -> str:
    arm = shown_arm(document)
    rows = steps(document, arm) if arm is not None else []
    shown, left_out_loads = panels(document, arm) if arm is not None else ([], [])
    return page_template("page.html").render(
        d=document,
        title=TITLES[document.verdict],
        questions=QUESTIONS,
        glossary=GLOSSARY,
        term=TermLinks(),
        arm=arm,
        sure=sureness(document, arm),
        open_rows=open_rows(document.open),
        conditions=condition_lines(document.conditions),
        heat=heat_table(document, arm) if arm is not None else None,
        part_forests=part_forests(document, arm),
        load_plot=speedup_over_load(document),
        crossings=crossing_lines(document),
        panels=shown,
        left_out_loads=left_out_loads,
        tails=tail_forest(document, arm) if arm is not None else None,
        steps=rows,
        step_forest=step_forest(rows),
        survival=survival(document),
        histograms=histograms(document, arm) if arm is not None else [],
        resources=resources(document),
        by_temperature=by_temperature(document),
        temperatures=temperature_rows(document),
        tuning=_tuning(document.tuning) if document.tuning is not None else None,
        table=cell_table(document),
    )


def _tuning(tuning: ConfirmedTuning) -> dict[str, object]:
    """What the page says of the search, in the words of the terminal."""
    schedule = schedule_line(tuning)
    return {
        "cost": cost_line(tuning),
        "picture": pareto(tuning),
        "tables": speedup_tables(tuning),
        "notes": [
            ("What was dropped", dropped_lines(tuning)),
            ("Predicted and measured", error_lines(tuning, tuning.confirmed_errors)),
            ("Schedule", [schedule] if schedule is not None else []),
        ],
    }


_ORDER = (Level.FAIL, Level.WARN, Level.PASS, Level.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sureness:
    """`facts` are a name and a figure each; reasons and findings the gravest first, those that only inform apart."""

    forest: Forest | None
    # The same traffic in every metric.
    by_metric: Forest | None
    facts: tuple[tuple[str, str], ...]
    told: tuple[Reason, ...]
    told_more: tuple[Reason, ...]
    noted: tuple[Finding, ...]
    noted_more: tuple[Finding, ...]


def sureness(document: VerdictDocument, arm: str | None) -> Sureness:
    reasons = [reason for reason in document.reasons if reason.source == "measured"]
    findings = document.findings
    return Sureness(
        forest=ratio_forest(_overall(document), document.goals.min_speedup),
        by_metric=ratio_forest(
            [(METRIC_WORDS[speedup.metric], _rests_on(speedup), speedup) for speedup in document.by_metric],
            1.0,
        ),
        facts=tuple(_facts(document, arm)),
        told=tuple(
            sorted(
                (reason for reason in reasons if reason.level != Level.INFO),
                key=lambda reason: _ORDER.index(reason.level),
            )
        ),
        told_more=tuple(reason for reason in reasons if reason.level == Level.INFO),
        noted=tuple(
            sorted(
                (finding for finding in findings if finding.level != Level.INFO),
                key=lambda finding: _ORDER.index(finding.level),
            )
        ),
        noted_more=tuple(finding for finding in findings if finding.level == Level.INFO),
    )


def _overall(document: VerdictDocument) -> list[tuple[str, str, Speedup]]:
    """Of the verdict's own scope first: within conditions it is none of the arms' figures on all traffic."""
    headline, rows = document.speedup, []
    if headline is not None and document.conditions is not None:
        rows.append((f"{headline.arm}, within the conditions", _rests_on(headline), headline))
    suffix = ", all traffic" if rows else ""
    rows += [
        (f"{entry.arm}{suffix}", _rests_on(entry.overall), entry.overall)
        for entry in document.speedups
        if entry.overall is not None
    ]
    if not rows and headline is not None:
        rows.append((headline.arm, _rests_on(headline), headline))
    return rows


def _rests_on(speedup: Speedup) -> str:
    return f", {speedup.n} prompts, {speedup.launches} launches"


def _facts(document: VerdictDocument, arm: str | None) -> list[tuple[str, str]]:
    headline = document.speedup
    if headline is None:
        return []
    facts = [
        ("metric", f"{headline.metric}, {METRIC_WORDS.get(headline.metric, headline.metric)}"),
        ("required speedup", f"{document.goals.min_speedup:g}x"),
        ("prompts", str(headline.n)),
        ("launches of each server", str(headline.launches)),
        # Of all that is said together, at every look; a single interval has to hold more surely.
        ("confidence", f"95% together, {headline.level:.1%} for this one"),
    ]
    entry = speedups_of(document, arm)
    if entry is not None:
        facts.append(("pairs of requests compared", f"{entry.pairs.used} of {entry.pairs.asked}"))
    return facts


def open_rows(parts: Sequence[OpenPartSpeedup]) -> list[tuple[str, str, OpenPartSpeedup]]:
    return [(part.arm, part_words(part.part, part.label), part) for part in parts]


def condition_lines(conditions: Conditions | None) -> list[str]:
    """One condition each; all of them must hold."""
    if conditions is None:
        return []
    lines = []
    if conditions.segments:
        lines.append(f"segments: {', '.join(conditions.segments)}")
    if conditions.max_concurrency is not None:
        at_once = conditions.max_concurrency
        lines.append(f"at most {at_once} request{'s' if at_once > 1 else ''} at once")
    if conditions.max_qps is not None:
        lines.append(f"at most {conditions.max_qps:g} requests/s")
    if conditions.max_temperature is not None:
        lines.append(f"temperature at most {conditions.max_temperature:g}")
    return lines


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
