"""Two arms against each other, on the requests that both were sent: what makes prompts unlike cancels once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Record
from speclift.core.results import ALL_TRAFFIC, Comparison
from speclift.statistics.compare import Comparer, OneLook
from speclift.statistics.pairs import ALL_DISTINCT, PromptOf


def head_to_head(
    arm: Arm,
    other: Arm,
    records: Sequence[Record],
    *,
    metric: str,
    prompt_of: PromptOf = ALL_DISTINCT,
    look: OneLook | None = None,
) -> Comparison | None:
    """How much faster `arm` is than `other`; None where they have no request in common."""
    both = [
        replace(record, place=replace(record.place, arm=BASELINE))
        if record.place.arm == other.name
        else record
        for record in records
        if record.place.arm in (arm.name, other.name)
    ]
    comparer = Comparer(
        both, metric=metric, bar=1.0, arm_count=1, by_temperature=False, prompt_of=prompt_of, look=look
    )
    return comparer.evidence(arm, ALL_TRAFFIC).overall
