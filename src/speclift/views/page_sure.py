"""How sure is it: the interval against the bar, what it rests on, what is open and what would settle it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.core.results import Conditions, Finding, Level, Part, Reason
from speclift.verdict.document import OpenPartSpeedup, Speedup, VerdictDocument
from speclift.views.charts import Forest, ratio_forest
from speclift.views.page_document import METRIC_WORDS, speedups_of

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


def part_words(part: str, label: str) -> str:
    """As a reader calls it: all traffic, chat, c=8, temperature 0.7."""
    if part == Part.ALL:
        return "all traffic"
    return f"temperature {label}" if part == Part.TEMPERATURE else label


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
