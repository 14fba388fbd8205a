"""The protocol's corners: an edge that behaves on the baseline and not on the arm is a fault; one that is refused
is traffic that speculation shuts out."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.lossless.answers import Answer
from speclift.lossless.divergence import Compared, Divergence, compare
from speclift.lossless.questions import Edge, fits_schema
from speclift.lossless.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCheck:
    name: str
    result: Result
    message: str
    divergence: Divergence | None = None


def judge_edge(edge: Edge, baseline: Answer, arm: Answer, *, fault_nats: float) -> EdgeCheck:
    if not baseline.is_ok:
        why = f"the baseline rejects it too: {baseline.error[:120]}"
        return EdgeCheck(name=edge.name, result=Result.SKIPPED, message=why)
    if not arm.is_ok:
        why = f"rejected under speculation: {arm.error[:160]}"
        return EdgeCheck(name=edge.name, result=Result.INCONCLUSIVE, message=why)
    broken = _broken(edge, arm)
    if broken and not _broken(edge, baseline):
        return EdgeCheck(name=edge.name, result=Result.FAIL, message=broken)
    compared: Compared = compare(baseline, arm)
    if compared.divergence is None or edge.is_sampled:
        return EdgeCheck(name=edge.name, result=Result.PASS, message="kept")
    margin = compared.divergence.margin
    if margin is not None and margin > fault_nats:
        message = f"differs where the baseline was sure ({margin:.1f} nats)"
        return EdgeCheck(name=edge.name, result=Result.FAIL, message=message, divergence=compared.divergence)
    return EdgeCheck(
        name=edge.name,
        result=Result.PASS,
        message="kept; the text differs at a near-tie"
        if margin is not None
        else "kept; the text differs, the log-probabilities are unknown",
        divergence=compared.divergence,
    )


def _broken(edge: Edge, answer: Answer) -> str:
    """What the answer does that the request forbids; empty where it keeps to it."""
    if edge.forbidden and edge.forbidden in answer.text:
        return f"the stop string {edge.forbidden!r} is in the answer"
    if edge.tokens_max is not None and answer.tokens is not None and answer.tokens > edge.tokens_max:
        return f"{answer.tokens} tokens, limit {edge.tokens_max}"
    if edge.is_schema and answer.finish_reason == "stop" and not fits_schema(answer.text):
        return f"does not match the JSON schema: {answer.text[:80]!r}"
    return ""
