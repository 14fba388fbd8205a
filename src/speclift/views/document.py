"""The JSON documents of decide, compare and measure. Fields may be added; those here stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from speclift.core.arm import Arm
from speclift.core.goals import Goals
from speclift.core.records import Provenance
from speclift.core.results import (
    Acceptance,
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
    Verdict,
    finding_to_dict,
)
from speclift.core.speculation import Attached
from speclift.core.traffic import load_to_dict

SCHEMA = 1
DESIGN = "paired-log-ratio"
ALL = "all"
# exp of an unknown bound; JSON has no infinity.
UNKNOWN_FROM = 1e300


def verdict_document(
    verdict: Verdict,
    *,
    cells: Sequence[Cell],
    comparisons: Sequence[Evidence],
    findings: Sequence[Finding],
    provenance: Provenance,
    kv_tokens: Mapping[str, int],
    kv_peaks: Mapping[str, float],
    acceptance_by_temperature: Sequence[dict[str, Any]],
    acceptance_histograms: Sequence[dict[str, Any]],
    crossovers: Sequence[Crossover],
    goals: Goals,
    configuration: Mapping[str, str] | None,
    winner_config: Mapping[str, Any] | None,
    study: str,
    failed_arms: Sequence[str],
    lossless: Mapping[str, Any] | None = None,
    tuning: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    evidence = verdict.evidence
    return _document(
        {
            "schema": SCHEMA,
            "verdict": verdict.decision.value,
            "reasons": [_reason(reason) for reason in verdict.reasons],
            "conditions": _conditions(verdict.conditions),
            "open": [_open_part(part) for part in verdict.open],
            "winner": _winner(verdict.winner, configuration, winner_config),
            "goals": _goals(goals),
            "speedup": _speedup(evidence.overall if evidence else None),
            "e2e_speedup": _speedup(evidence.e2e if evidence else None),
            "speedups": [_arm_speedups(each) for each in comparisons],
            "cells": [cell_document(cell) for cell in cells],
            "acceptance_by_temperature": list(acceptance_by_temperature),
            "acceptance_histograms": list(acceptance_histograms),
            "ceiling": _ceilings(cells, comparisons),
            "configuration": dict(configuration) if configuration else None,
            "crossover": [asdict(crossing) for crossing in crossovers],
            "kv_tokens": {
                "baseline": kv_tokens.get("baseline"),
                "winner": kv_tokens.get(verdict.winner.name) if verdict.winner else None,
            },
            "kv_peak": {
                "baseline": kv_peaks.get("baseline"),
                "winner": kv_peaks.get(verdict.winner.name) if verdict.winner else None,
            },
            "lossless": dict(lossless) if lossless else {"result": "skipped"},
            "findings": [finding_to_dict(finding) for finding in findings],
            "failed_arms": list(failed_arms),
            "tuning": dict(tuning) if tuning else None,
            "provenance": provenance_document(provenance),
            "study": study,
        }
    )


def measure_document(cells: Sequence[Cell], findings: Sequence[Finding], *, study: str) -> dict[str, Any]:
    return _document(
        {
            "schema": SCHEMA,
            "study": study,
            "cells": [cell_document(cell) for cell in cells],
            "findings": [finding_to_dict(finding) for finding in findings],
        }
    )


def cell_document(cell: Cell) -> dict[str, Any]:
    return {
        "arm": cell.arm,
        "load": load_to_dict(cell.load),
        "segment": cell.segment,
        "temperature": cell.temperature,
        "ttft_s": _percentiles(cell.ttft_s),
        "tpot_s": _percentiles(cell.tpot_s),
        "e2e_s": _percentiles(cell.e2e_s),
        "throughput_tok_s": cell.throughput_tok_s,
        "acceptance_rate": acceptance_document(cell.acceptance_rate),
        "accepted_length": _estimate(cell.accepted_length),
        "per_position": list(cell.per_position) if cell.per_position is not None else None,
        "output_tokens_mean": cell.output_tokens_mean,
        "requests": cell.requests,
        "prompts": cell.prompts,
        "failed": cell.failed,
    }


def acceptance_document(acceptance: Acceptance | None) -> dict[str, Any] | None:
    if acceptance is None:
        return None
    return {
        "p10": acceptance.p10,
        "p50": acceptance.p50,
        "p90": acceptance.p90,
        "mean": acceptance.mean,
        "requests": acceptance.requests,
    }


def provenance_document(provenance: Provenance) -> dict[str, Any]:
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
    }


def _speedup(comparison: Comparison | None) -> dict[str, Any] | None:
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


def _arm_speedups(evidence: Evidence) -> dict[str, Any]:
    return {
        "arm": evidence.arm.name,
        "overall": _speedup(evidence.overall),
        "e2e": _speedup(evidence.e2e),
        "parts": [
            {
                "part": part.part.value,
                "label": part.label,
                **_estimate_required(part.speedup),
                "simultaneous": {name: _bounds(part.simultaneous)[name] for name in ("low", "high")},
                "prompts": part.prompts,
                "launches": part.launches,
            }
            for part in evidence.parts
        ],
        "tail_ratios": [
            {
                "metric": tail.metric,
                "statistic": tail.statistic,
                "load": load_to_dict(tail.load),
                **_estimate_required(tail.ratio),
            }
            for tail in evidence.tails
        ],
        "pairs": {"asked": evidence.completeness.asked, "used": evidence.completeness.used},
        "prompts": evidence.prompts,
    }


def _open_part(part: OpenPart) -> dict[str, Any]:
    comparison = part.comparison
    return {
        "arm": comparison.arm,
        "part": comparison.part.value,
        "label": comparison.label,
        **_bounds(comparison.speedup),
        "settle": part.settle,
    }


def _winner(
    arm: Arm | None, configuration: Mapping[str, str] | None, config: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    if arm is None:
        return None
    is_known = not isinstance(arm.speculation, Attached)
    return {
        "arm": arm.name,
        "method": arm.method if is_known else None,
        "k": arm.k if is_known else None,
        "command": (configuration or {}).get("command"),
        "config": dict(config or {}) if is_known else None,
    }


def _goals(goals: Goals) -> dict[str, Any]:
    return {
        "min_speedup": goals.min_speedup,
        "metric": goals.metric,
        "tail_tolerance": goals.tail_tolerance,
        "slo": {slo.label: slo.limit_s for slo in goals.slos},
    }


def _ceilings(cells: Sequence[Cell], comparisons: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Accepted length is the speedup if drafting and verifying cost nothing ("acceptance times speed ratio is
    the ceiling" [S3]); measured speedup beside it, at the lightest load."""
    rows = []
    for evidence in comparisons:
        measured = {part.label: part.speedup.value for part in evidence.parts if part.part is Part.SEGMENT}
        if evidence.overall is not None:
            measured[ALL] = evidence.overall.speedup.value
        lengths = {
            cell.segment: cell.accepted_length.value
            for cell in reversed(cells)  # the first cell of a segment, at the lightest load, stays
            if cell.arm == evidence.arm.name and cell.accepted_length is not None
        }
        rows += [
            {"arm": evidence.arm.name, "segment": segment, "ceiling": lengths[segment], "measured": speedup}
            for segment, speedup in measured.items()
            if segment in lengths
        ]
    return rows


def _conditions(conditions: Conditions | None) -> dict[str, Any] | None:
    if conditions is None:
        return None
    return {
        "segments": list(conditions.segments) if conditions.segments is not None else None,
        "max_concurrency": conditions.max_concurrency,
        "max_qps": conditions.max_qps,
        "max_temperature": conditions.max_temperature,
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "rule": reason.rule,
        "level": reason.level.value,
        "message": reason.message,
        "source": reason.source,
    }


def _percentiles(held: Percentiles | None) -> dict[str, Any] | None:
    if held is None:
        return None
    intervals = {name: list(bounds) for name, bounds in held.intervals.items()}
    return {"p50": held.p50, "p95": held.p95, "p99": held.p99, "intervals": intervals}


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else _estimate_required(estimate)


def _estimate_required(estimate: Estimate) -> dict[str, Any]:
    return {
        **_bounds(estimate),
        "n": estimate.n,
        "method": estimate.method,
        "level": estimate.level,
    }


def _bounds(estimate: Estimate) -> dict[str, float | None]:
    """Unknown is null on both sides: a lower bound of 0 beside no upper one is no bound."""
    is_known = math.isfinite(estimate.high) and estimate.high < UNKNOWN_FROM
    low, high = (estimate.low, estimate.high) if is_known else (None, None)
    return {"value": estimate.value, "low": low, "high": high}


def _document(content: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: an unknown bound is null."""
    return {key: _clean(value) for key, value in content.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, float) and (not math.isfinite(value) or abs(value) > UNKNOWN_FROM):
        return None
    if isinstance(value, dict):
        return {key: _clean(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(entry) for entry in value]
    return value
