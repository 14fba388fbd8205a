"""--verify full: without proof that the output stayed the same there is nothing to ship."""

from __future__ import annotations

import pytest

from simulated import evidence
from speclift.core.goals import Goals
from speclift.core.results import Decision
from speclift.verdict.verdict import decide


@pytest.mark.parametrize(
    ("lossless", "decision"),
    [
        ("pass", Decision.SHIP),
        ("inconclusive", Decision.INCONCLUSIVE),
        ("skipped", Decision.INCONCLUSIVE),
        ("fail", Decision.OUTPUT_CHANGED),
    ],
)
def test_only_a_pass_lets_speed_decide(lossless: str, decision: Decision) -> None:
    found = evidence()
    verdict = decide(
        [found.arm], lambda _arm, _conditions: found, goals=Goals(), lossless=lossless, is_proof_required=True
    )
    assert verdict.decision is decision


def test_what_the_gate_said_stands_in_the_reason() -> None:
    found = evidence()
    verdict = decide(
        [found.arm],
        lambda _arm, _conditions: found,
        goals=Goals(),
        lossless="pass",
        lossless_note="900 tokens",
    )
    (reason,) = [reason for reason in verdict.reasons if reason.rule == "lossless"]
    assert "900 tokens" in reason.message
