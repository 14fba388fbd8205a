"""From what the gate found to what the verdict takes of it. An arm that changes the output is out of the running;
where no other is left, that is the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.core.arm import Arm
from speclift.core.results import Finding, fail
from speclift.lossless.gate import ArmOutcome, Gate, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWord:
    result: Result = Result.SKIPPED
    note: str = ""
    # Whoever asked for the full gate wants proof, not the absence of a disproof.
    is_proof_required: bool = False


NOT_ASKED = GateWord()


def changed_arms(outcome: Gate) -> tuple[ArmOutcome, ...]:
    return tuple(arm for arm in outcome.outcomes if arm.result is Result.FAIL)


def changed_findings(outcome: Gate) -> tuple[Finding, ...]:
    """For arms that are out while others stay in."""
    return tuple(
        fail(
            "output-changed",
            f"{arm.arm}: {arm.message}",
            then="the report shows both outputs side by side",
            arm=arm.arm,
        )
        for arm in changed_arms(outcome)
    )


def gate_for_verdict(outcome: Gate, standing: Sequence[Arm], competing: Sequence[Arm]) -> GateWord:
    is_full = outcome.mode == "full"
    if not outcome.arms:
        return GateWord(result=outcome.result, note=outcome.why, is_proof_required=is_full)
    result, note = _of_arms(outcome.outcomes, [arm.name for arm in (standing or competing)])
    return GateWord(result=result, note=note, is_proof_required=is_full)


def _of_arms(arms: Sequence[ArmOutcome], wanted: Sequence[str]) -> tuple[Result, str]:
    judged = {arm.arm: arm for arm in arms}
    seen = [judged[name] for name in wanted if name in judged]
    unseen = [name for name in wanted if name not in judged]
    if unseen and not any(arm.result is Result.FAIL for arm in seen):
        return Result.INCONCLUSIVE, f"not compared with the baseline: {', '.join(unseen)}"
    for result in (Result.FAIL, Result.INCONCLUSIVE, Result.PASS):
        deciding = [arm for arm in seen if arm.result is result]
        if deciding:
            return result, "; ".join(f"{arm.arm}: {arm.message}" for arm in deciding[:2])
    return Result.INCONCLUSIVE, ""
