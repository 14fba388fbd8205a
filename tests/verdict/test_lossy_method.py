"""Forced acceptance measures cost: however fast, such an arm is nothing to ship."""

from __future__ import annotations

from simulated import comparison, evidence, verdict_on
from speclift.core.arm import Arm
from speclift.core.results import Decision
from speclift.core.speculation import NGram, Synthetic

FORCED = Arm(name="forced", speculation=Synthetic(inner=NGram(k=2), rates=(1.0, 1.0)))


def test_the_same_evidence_ships_only_without_forced_acceptance() -> None:
    fast = comparison(value=2.0, low=1.9, high=2.1)

    assert verdict_on(evidence(overall=fast)).decision is Decision.SHIP
    forced = verdict_on(evidence(overall=fast, arm=FORCED))
    assert forced.decision is Decision.INCONCLUSIVE
    assert [reason.level.value for reason in forced.reasons if reason.rule == "lossy-method"] == ["fail"]
