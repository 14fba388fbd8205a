"""--verify full: without proof that the output stayed the same there is nothing to ship."""

from __future__ import annotations

import pytest

from simulated import evidence
from speclift.core.goals import Goals
from speclift.core.results import Decision
from speclift.lossless.result import Result
from speclift.verdict.gate_word import GateWord
from speclift.verdict.verdict import decide


@pytest.mark.parametrize(
    ("result", "decision"),
    [
        (Result.PASS, Decision.SHIP),
        (Result.INCONCLUSIVE, Decision.INCONCLUSIVE),
        (Result.SKIPPED, Decision.INCONCLUSIVE),
        (Result.FAIL, Decision.OUTPUT_CHANGED),
    ],
)
def test_only_a_pass_lets_speed_decide(result: Result, decision: Decision) -> None:
    found = evidence()
    gate = GateWord(result=result, is_proof_required=True)
    verdict = decide([found.arm], lambda _arm, _conditions: found, goals=Goals(), gate=gate)
    assert verdict.decision is decision


def test_what_the_gate_said_stands_in_the_reason() -> None:
    found = evidence()
    verdict = decide(
        [found.arm],
        lambda _arm, _conditions: found,
        goals=Goals(),
        gate=GateWord(result=Result.PASS, note="900 tokens"),
    )
    (reason,) = [reason for reason in verdict.reasons if reason.rule == "lossless"]
    assert "900 tokens" in reason.message
