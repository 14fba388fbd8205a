"""A soak as JSON, within the document of verify."""

from __future__ import annotations

from typing import TypedDict

from speclift.core.documents import FindingDocument, finding_document
from speclift.lossless.result import Result
from speclift.lossless.soak.outcome import Distribution, Soak, SoakArm
from speclift.lossless.soak.rates import FaultRate, SoakResult

EVIDENCE_MAX = 3


class SoakFaultDocument(TypedDict):
    """One fault of one arm. `count` of `exposed` requests showed it, a conversation counting once; `low` and `high` are
    the exact 95 % interval of `rate`. `script` reproduces it, null where nothing was found to reproduce."""

    arm: str
    name: str
    result: SoakResult
    message: str
    count: int
    exposed: int
    rate: float
    low: float
    high: float
    control_count: int
    control_exposed: int
    control_rate: float
    p_value: float
    # Seconds since this arm's soak began; null where it was not seen.
    first_seen_s: float | None
    # Where it shows: "only from 9 streams on".
    places: list[str]
    evidence: list[str]
    # Requests to be exposed for a result, where these were too few.
    needed: int
    script: str | None
    # Whether the script's setup showed it again on a fresh launch.
    reproduced: bool


class DistributionDocument(TypedDict):
    """The gate's sampled test on answers given under load; too few tokens are inconclusive, and stop no pass."""

    result: Result
    message: str
    tokens: int
    tokens_needed: int
    detectable: float | None


class SoakArmDocument(TypedDict):
    arm: str
    method: str
    result: Result
    requests: int
    launches: int
    # Of the draft tokens; null where the server does not say.
    acceptance_rate: float | None
    # Null where nothing was sampled, or the server cannot tell probabilities.
    distribution: DistributionDocument | None
    findings: list[FindingDocument]


class SoakDocument(TypedDict):
    """`seconds` is what it took over all servers, launching them and the reproductions included."""

    result: Result
    seconds: float
    planned_s: float
    partial: bool
    requests: int
    launches: int
    concurrency: list[int]
    faults: list[SoakFaultDocument]
    arms: list[SoakArmDocument]
    kinds: dict[str, int]
    stages: dict[str, int]
    refused_kinds: dict[str, str]
    # Of full length, for most answers: below 1 where the engine had no time for more.
    scale: float
    findings: list[FindingDocument]
    study: str


def soak_document(soak: Soak) -> SoakDocument:
    return {
        "result": soak.result,
        "seconds": round(soak.seconds, 3),
        "planned_s": soak.planned_s,
        "partial": soak.is_partial,
        "requests": soak.requests,
        "launches": soak.launches,
        "concurrency": list(soak.levels),
        "faults": [_fault(arm, rate) for arm in soak.arms for rate in arm.asked],
        "arms": [_arm(soak, arm) for arm in soak.arms],
        "kinds": dict(soak.kinds),
        "stages": dict(soak.stages),
        "refused_kinds": dict(soak.refused_kinds),
        "scale": soak.scale,
        "findings": [finding_document(finding) for finding in soak.findings],
        "study": soak.study,
    }


def _arm(soak: Soak, arm: SoakArm) -> SoakArmDocument:
    return {
        "arm": arm.arm,
        "method": arm.method,
        "result": arm.result,
        "requests": arm.requests,
        "launches": arm.launches,
        "acceptance_rate": soak.acceptance.get(arm.arm),
        "distribution": None if arm.distribution is None else _distribution(arm.distribution),
        "findings": [finding_document(finding) for finding in arm.findings],
    }


def _distribution(found: Distribution) -> DistributionDocument:
    return {
        "result": found.result,
        "message": found.message,
        "tokens": found.tokens,
        "tokens_needed": found.tokens_needed,
        "detectable": found.detectable,
    }


def _fault(arm: SoakArm, rate: FaultRate) -> SoakFaultDocument:
    low, high = rate.arm.interval
    return {
        "arm": arm.arm,
        "name": rate.fault.value,
        "result": rate.result,
        "message": rate.message,
        "count": rate.arm.faulty,
        "exposed": rate.arm.exposed,
        "rate": rate.arm.rate,
        "low": low,
        "high": high,
        "control_count": rate.control.faulty,
        "control_exposed": rate.control.exposed,
        "control_rate": rate.control.rate,
        "p_value": rate.p_value,
        "first_seen_s": rate.first_seen_s,
        "places": list(rate.places),
        "evidence": [example.evidence for example in rate.examples[:EVIDENCE_MAX]],
        "needed": rate.needed,
        "script": arm.scripts.get(rate.fault),
        "reproduced": rate.fault in arm.reproduced,
    }
