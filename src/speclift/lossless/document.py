"""The gate as JSON: what verify prints, and what decide keeps under "lossless"."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from speclift.core.results import finding_to_dict
from speclift.lossless.calibration import SetTest
from speclift.lossless.edges import EdgeCheck
from speclift.lossless.gate import ArmGate, Gate
from speclift.lossless.greedy import Control, Greedy
from speclift.lossless.rates import Hazard
from speclift.lossless.result import Result
from speclift.lossless.sampled import Sampled

SCHEMA = 1


def gate_document(gate: Gate) -> dict[str, Any]:
    """`greedy` and `sampled` are those of the arm that decides; every arm's own are under `arms`."""
    deciding = next((arm for arm in gate.arms if arm.result is gate.result), None)
    arms = [arm_document(arm) for arm in gate.arms]
    document: dict[str, Any] = _clean(
        {
            "schema": SCHEMA,
            "result": gate.result.value,
            "arm": deciding.arm if deciding else None,
            "depth": gate.depth,
            "detect": gate.detect,
            "planned_tokens": gate.planned_tokens,
            "greedy": _greedy(deciding.greedy if deciding else None),
            "sampled": _sampled(deciding.sampled if deciding else None),
            "control": _control(gate.control),
            "arms": arms,
            "examples": [asdict(example) for arm in gate.arms for example in arm.examples],
            "findings": [finding for arm in arms for finding in arm["findings"]],
            "notes": list(gate.notes),
            "wall_s": gate.wall_s,
        }
    )
    return document


def arm_document(arm: ArmGate) -> dict[str, Any]:
    return {
        "arm": arm.arm,
        "method": arm.method,
        "result": arm.result.value,
        "greedy": _greedy(arm.greedy),
        "sampled": _sampled(arm.sampled),
        "edges": [_edge(edge) for edge in arm.edges],
        "findings": [finding_to_dict(finding) for finding in arm.findings],
    }


def _greedy(greedy: Greedy | None) -> dict[str, Any]:
    if greedy is None:
        return {"result": Result.SKIPPED.value}
    return {
        "result": greedy.result.value,
        "message": greedy.message,
        "tokens": greedy.tokens,
        "checks": [
            {
                "name": check.name,
                "answers": check.answers,
                **_hazard(check.hazard),
                "control": _hazard(check.control),
                "p_value": check.p_value,
            }
            for check in greedy.checks
        ],
        "ties": greedy.ties,
        "wide": greedy.wide,
        "faults": greedy.faults,
        "unknown_margin": greedy.unknown,
        "refused": greedy.refused,
    }


def _sampled(sampled: Sampled | None) -> dict[str, Any]:
    if sampled is None:
        return {"result": Result.SKIPPED.value}
    return {
        "result": sampled.result.value,
        "message": sampled.message,
        "method": sampled.method,
        "detect": sampled.detect,
        "tokens": sampled.tokens,
        "tokens_needed": sampled.tokens_needed,
        "detectable": sampled.detectable,
        "identity": _hazard(sampled.identity) if sampled.identity else None,
        "tests": [_test(test) for test in sampled.tests],
        "control_tests": [_test(test) for test in sampled.control_tests],
        "foreign_tokens_p": sampled.foreign_p,
        "text_tests": [asdict(test) for test in sampled.text_tests],
        "notes": list(sampled.notes),
    }


def _control(control: Control | None) -> dict[str, Any]:
    if control is None:
        return {}
    return {
        **{shape: _hazard(hazard) for shape, hazard in control.hazards.items()},
        "margins": list(control.margins),
        "noise_tokens": control.noise_tokens,
        "noise_nats_p999": control.noise_nats,
        "noise_nats_max": control.noise_nats_max,
        "tie_nats": control.tie_nats,
        "fault_nats": control.fault_nats,
    }


def _hazard(hazard: Hazard) -> dict[str, Any]:
    return {
        "divergences": hazard.events,
        "tokens": hazard.tokens,
        "per_1000_tokens": 1000 * hazard.per_token,
        "upper_per_1000_tokens": 1000 * hazard.upper() if hazard.tokens else None,
    }


def _test(test: SetTest) -> dict[str, Any]:
    return {
        "name": test.name,
        "tokens": test.tokens,
        "observed": test.observed,
        "expected": test.expected,
        "deviation": test.deviation,
        "z": test.z,
        "p_value": test.p_value,
        "used": test.is_usable,
    }


def _edge(edge: EdgeCheck) -> dict[str, Any]:
    return {"name": edge.name, "result": edge.result.value, "message": edge.message}


def _clean(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _clean(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(entry) for entry in value]
    return value
