"""From values to the JSON documents of decide, tune, compare and measure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from speclift.core.arm import BASELINE, Arm
from speclift.core.documents import BoundsDocument, answer_document, finding_document, load_document
from speclift.core.goals import Goals
from speclift.core.records import Provenance
from speclift.core.results import (
    RAW_E2E,
    Acceptance,
    AtTemperature,
    Cell,
    Comparison,
    Conditions,
    Crossover,
    Estimate,
    Evidence,
    Finding,
    OpenPart,
    Part,
    Percentiles,
    Reason,
    Resources,
    TailRatio,
    Upgrade,
    over_temperatures,
)
from speclift.core.speculation import Attached
from speclift.core.typed_json import UNKNOWN_FROM, finite
from speclift.search.tuning_document import confirmed_document
from speclift.verdict.answer import answer_to
from speclift.verdict.articles import ArticleCheck, check_articles
from speclift.verdict.judgement import (
    AcceptanceBucket,
    AcceptanceHistogram,
    Judgement,
    NodeGroupSpeedups,
    OwnLineChange,
    Served,
)
from speclift.verdict.upgrade_answer import upgrade_sentence
from speclift.views.documents import (
    AcceptanceBucketDocument,
    AcceptanceDocument,
    AcceptanceHistogramDocument,
    ArmSpeedupsDocument,
    ArticleDocument,
    AtTemperatureDocument,
    CeilingDocument,
    CellDocument,
    ConditionsDocument,
    CrossoverDocument,
    EstimateDocument,
    GoalsDocument,
    KvPeakDocument,
    KvTokensDocument,
    MeasureDocument,
    NodeGroupDocument,
    OpenPartDocument,
    OwnLineDocument,
    PartSpeedupDocument,
    PercentilesDocument,
    ProvenanceDocument,
    ReasonDocument,
    ResourcesDocument,
    SpeedupByMetricDocument,
    SpeedupDocument,
    TailRatioDocument,
    UpgradeDocument,
    VerdictDocument,
    WinnerDocument,
)

DESIGN = "paired-log-ratio"
ALL = "all"


def verdict_document(judgement: Judgement) -> VerdictDocument:
    verdict, evidence, served = judgement.verdict, judgement.verdict.evidence, judgement.served
    document: VerdictDocument = {
        "schema": 1,
        "verdict": verdict.decision,
        "answer": answer_document(answer_to(judgement)),
        "reasons": [_reason(reason) for reason in verdict.reasons],
        "conditions": _conditions(verdict.conditions),
        "open": [_open_part(part) for part in verdict.open],
        "winner": _winner(verdict.winner, served),
        "goals": _goals(judgement.goals),
        "speedup": _speedup(evidence.overall if evidence else None),
        "e2e_speedup": _speedup(evidence.speedup_in("e2e") if evidence else None),
        "speedup_by_metric": _by_metric(evidence),
        "speedups": [_arm_speedups(evidence) for evidence in judgement.on_all],
        "cells": [_cell(cell) for cell in judgement.cells],
        "by_temperature": _by_temperature(judgement.at_temperatures),
        "acceptance_by_temperature": [_bucket(bucket) for bucket in judgement.acceptance_by_temperature],
        "acceptance_histograms": [_histogram(counted) for counted in judgement.acceptance_histograms],
        "ceiling": _ceilings(judgement.cells, judgement.on_all),
        "configuration": dict(served.forms) if served is not None else None,
        "crossover": [_crossover(crossing) for crossing in judgement.crossovers],
        "kv_tokens": _kv_tokens(judgement),
        "kv_peak": _kv_peak(judgement),
        "resources": _resources(judgement.resources),
        "lossless": judgement.lossless.document,
        "articles": [_article(check) for check in check_articles(judgement)],
        "findings": [finding_document(finding) for finding in judgement.findings],
        "failed_arms": list(judgement.failed_arms),
        "tuning": None if judgement.tuning is None else confirmed_document(judgement.tuning),
        "line": _own_line(judgement.line),
        "provenance": _provenance(judgement.provenance),
        "node_groups": _node_groups(judgement.node_groups),
        "study": judgement.study,
    }
    if judgement.upgrade is not None:
        document["upgrade"] = _upgrade(judgement.upgrade)
    return finite(document)


def _upgrade(upgrade: Upgrade) -> UpgradeDocument:
    return {
        "arm": upgrade.arm,
        "before": {"engine_version": upgrade.before_version, "speedup": upgrade.before},
        "after": {"engine_version": upgrade.after_version, "speedup": upgrade.after},
        "speedup": _bounds(upgrade.speedup),
        "accepted_length": None if upgrade.accepted_length is None else _bounds(upgrade.accepted_length),
        "step_cost": None if upgrade.step_cost is None else _bounds(upgrade.step_cost),
        "moved": list(upgrade.moved),
        "sentence": upgrade_sentence(upgrade),
    }


def _own_line(change: OwnLineChange | None) -> OwnLineDocument | None:
    return None if change is None else {"before": change.before, "after": change.after, "diff": change.diff}


def measure_document(
    cells: Sequence[Cell], findings: Sequence[Finding], *, resources: Sequence[Resources] = (), study: str
) -> MeasureDocument:
    document: MeasureDocument = {
        "schema": 1,
        "study": study,
        "cells": [_cell(cell) for cell in cells],
        "resources": _resources(resources),
        "findings": [finding_document(finding) for finding in findings],
    }
    return finite(document)


def _cell(cell: Cell) -> CellDocument:
    return {
        "arm": cell.arm,
        "load": load_document(cell.load),
        "segment": cell.segment,
        "temperature": cell.temperature,
        "ttft_s": _percentiles(cell.ttft_s),
        "tpot_s": _percentiles(cell.tpot_s),
        "e2e_s": _percentiles(cell.e2e_s),
        "throughput_tok_s": cell.throughput_tok_s,
        "acceptance_rate": None if cell.acceptance_rate is None else _acceptance(cell.acceptance_rate),
        "accepted_length": None if cell.accepted_length is None else _estimate(cell.accepted_length),
        "per_position": list(cell.per_position) if cell.per_position is not None else None,
        "output_tokens_mean": cell.output_tokens_mean,
        "requests": cell.requests,
        "prompts": cell.prompts,
        "failed": cell.failed,
    }


def _acceptance(acceptance: Acceptance) -> AcceptanceDocument:
    return {
        "p10": acceptance.p10,
        "p50": acceptance.p50,
        "p90": acceptance.p90,
        "mean": acceptance.mean,
        "requests": acceptance.requests,
    }


def _by_temperature(rows: Sequence[AtTemperature]) -> list[AtTemperatureDocument]:
    return [
        {
            "arm": row.arm,
            "temperature": row.label,
            "speedup": None if row.speedup is None else _estimate(row.speedup),
            "acceptance_rate": None if row.acceptance is None else _acceptance(row.acceptance),
            "accepted_length": None if row.accepted_length is None else _estimate(row.accepted_length),
            "requests": row.requests,
            "prompts": row.prompts,
        }
        for row in rows
    ]


def _bucket(bucket: AcceptanceBucket) -> AcceptanceBucketDocument:
    return {
        "arm": bucket.arm,
        "above": bucket.low,
        "up_to": bucket.high,
        **_acceptance(bucket.acceptance),
    }


def _histogram(counted: AcceptanceHistogram) -> AcceptanceHistogramDocument:
    return {
        "arm": counted.arm,
        "by": counted.by,
        "label": counted.label,
        "requests": sum(counted.counts),
        "counts": list(counted.counts),
    }


def _provenance(provenance: Provenance) -> ProvenanceDocument:
    return {
        "speclift": provenance.speclift_version,
        "engine": provenance.engine,
        "engine_version": provenance.engine_version,
        "model": provenance.model,
        "model_sha256": provenance.model_sha256,
        "host": provenance.host,
        "commands": [list(command) for command in provenance.commands],
        "argv": list(provenance.argv),
        "prompts_sha256": provenance.prompts_sha256,
        "seed": provenance.seed,
        "nodes": [
            {"name": node.name, "engine_version": node.engine_version, "host": node.host}
            for node in provenance.nodes
        ],
    }


def _node_groups(groups: Sequence[NodeGroupSpeedups]) -> list[NodeGroupDocument]:
    return [
        {
            "nodes": list(found.group.names),
            "kind": dict(found.group.kind),
            "judged": found.is_judged,
            "speedups": [
                {"arm": each.arm, **_bounds(each.speedup), "launches": each.launches}
                for each in found.overall
            ],
        }
        for found in groups
    ]


def _speedup(comparison: Comparison | None) -> SpeedupDocument | None:
    if comparison is None:
        return None
    estimate = comparison.simultaneous
    return {
        **_bounds(estimate),
        "level": estimate.level,
        "metric": comparison.metric,
        "arm": comparison.arm,
        "design": DESIGN,
        "method": estimate.method,
        "launches": comparison.launches,
        "n": comparison.prompts,
    }


def _by_metric(evidence: Evidence | None) -> SpeedupByMetricDocument:
    found = {} if evidence is None else {each.metric: _speedup(each) for each in evidence.by_metric}
    return {
        "e2e": found.get("e2e"),
        "tpot": found.get("tpot"),
        "ttft": found.get("ttft"),
        "e2e_raw": found.get(RAW_E2E),
        "throughput": found.get("throughput"),
    }


def _arm_speedups(evidence: Evidence) -> ArmSpeedupsDocument:
    return {
        "arm": evidence.arm.name,
        "overall": _speedup(evidence.overall),
        "e2e": _speedup(evidence.speedup_in("e2e")),
        "by_metric": _by_metric(evidence),
        "parts": [_part(part) for part in evidence.parts],
        "tail_ratios": [_tail(tail) for tail in evidence.tails],
        "pairs": {"asked": evidence.completeness.asked, "used": evidence.completeness.used},
        "prompts": evidence.prompts,
    }


def _part(part: Comparison) -> PartSpeedupDocument:
    simultaneous = _bounds(part.simultaneous)
    return {
        "part": part.part,
        "label": part.label,
        **_estimate(part.speedup),
        "simultaneous": {"low": simultaneous["low"], "high": simultaneous["high"]},
        "prompts": part.prompts,
        "launches": part.launches,
    }


def _tail(tail: TailRatio) -> TailRatioDocument:
    return {
        "metric": tail.metric,
        "statistic": tail.statistic,
        "load": None if tail.load is None else load_document(tail.load),
        **_estimate(tail.ratio),
    }


def _open_part(part: OpenPart) -> OpenPartDocument:
    comparison = part.comparison
    return {
        "arm": comparison.arm,
        "part": comparison.part,
        "label": comparison.label,
        **_bounds(comparison.speedup),
        "settle": part.settle,
    }


def _winner(arm: Arm | None, served: Served | None) -> WinnerDocument | None:
    if arm is None or served is None:
        return None
    is_known = not isinstance(arm.speculation, Attached)
    return {
        "arm": arm.name,
        "method": arm.method if is_known else None,
        "k": arm.k if is_known else None,
        "command": served.forms.get("command"),
        "config": dict(served.config) if is_known else None,
    }


def _article(check: ArticleCheck) -> ArticleDocument:
    return {
        "rule": check.rule.name,
        "source": check.rule.source,
        "says": check.rule.says,
        "outcome": check.sighting.outcome,
        "seen": check.sighting.seen,
    }


def _goals(goals: Goals) -> GoalsDocument:
    return {
        "min_speedup": goals.min_speedup,
        "metric": goals.metric,
        "tail_tolerance": goals.tail_tolerance,
        "slo": {slo.label: slo.limit_s for slo in goals.slos},
    }


def _ceilings(cells: Sequence[Cell], comparisons: Sequence[Evidence]) -> list[CeilingDocument]:
    """Accepted length is the speedup if drafting and verifying cost nothing ("acceptance times speed ratio is
    the ceiling" [S3]); measured speedup beside it, at the lightest load."""
    rows: list[CeilingDocument] = []
    for evidence in comparisons:
        measured = {part.label: part.speedup.value for part in evidence.parts if part.part is Part.SEGMENT}
        if evidence.overall is not None:
            measured[ALL] = evidence.overall.speedup.value
        lengths = {
            cell.segment: cell.accepted_length.value
            for cell in reversed(
                over_temperatures(cells)
            )  # the first cell of a segment, at the lightest load, stays
            if cell.arm == evidence.arm.name and cell.accepted_length is not None
        }
        rows += [
            {
                "arm": evidence.arm.name,
                "segment": segment,
                "ceiling": lengths[segment],
                "measured": speedup,
                "metric": evidence.completeness.metric,
            }
            for segment, speedup in measured.items()
            if segment in lengths
        ]
    return rows


def _conditions(conditions: Conditions | None) -> ConditionsDocument | None:
    if conditions is None:
        return None
    return {
        "segments": list(conditions.segments) if conditions.segments is not None else None,
        "max_concurrency": conditions.max_concurrency,
        "max_qps": conditions.max_qps,
        "max_temperature": conditions.max_temperature,
    }


def _crossover(crossing: Crossover) -> CrossoverDocument:
    return {
        "metric": crossing.metric,
        "axis": crossing.axis,
        "value": crossing.value,
        "low": crossing.low,
        "high": crossing.high,
        "arm": crossing.arm,
        "note": crossing.note,
    }


def _kv_tokens(judgement: Judgement) -> KvTokensDocument:
    winner = judgement.verdict.winner
    return {
        "baseline": judgement.kv_tokens.get(BASELINE),
        "winner": judgement.kv_tokens.get(winner.name) if winner else None,
    }


def _kv_peak(judgement: Judgement) -> KvPeakDocument:
    winner = judgement.verdict.winner
    return {
        "baseline": judgement.kv_peaks.get(BASELINE),
        "winner": judgement.kv_peaks.get(winner.name) if winner else None,
    }


def _resources(arms: Sequence[Resources]) -> list[ResourcesDocument]:
    return [
        {
            "arm": taken.arm,
            "kv_tokens": taken.kv_tokens,
            "kv_used_peak": taken.kv_used_peak,
            "prefix_hit_rate": taken.prefix_hit_rate,
            "gpu_memory_peak_bytes": taken.gpu_memory_peak_bytes,
        }
        for taken in arms
    ]


def _reason(reason: Reason) -> ReasonDocument:
    return {
        "rule": reason.rule,
        "level": reason.level,
        "message": reason.message,
        "source": reason.source,
    }


def _percentiles(held: Percentiles | None) -> PercentilesDocument | None:
    if held is None:
        return None
    intervals = {name: list(bounds) for name, bounds in held.intervals.items()}
    return {"p50": held.p50, "p95": held.p95, "p99": held.p99, "intervals": intervals}


def _estimate(estimate: Estimate) -> EstimateDocument:
    return {
        **_bounds(estimate),
        "n": estimate.n,
        "method": estimate.method,
        "level": estimate.level,
    }


def _bounds(estimate: Estimate) -> BoundsDocument:
    """Unknown is null on both sides: a lower bound of 0 beside no upper one is no bound."""
    is_known = math.isfinite(estimate.high) and estimate.high < UNKNOWN_FROM
    low, high = (estimate.low, estimate.high) if is_known else (None, None)
    return {"value": estimate.value, "low": low, "high": high}
