"""Does a schedule of k by load beat the best single k? Paired on the same prompts; else it is not worth the trouble."""

from __future__ import annotations

from collections.abc import Sequence

from speclift.core.arm import Arm
from speclift.core.records import Record
from speclift.core.results import Finding, inform
from speclift.statistics.head_to_head import head_to_head
from speclift.statistics.pairs import ALL_DISTINCT, PromptOf

SCHEDULE_NO_GAIN = "schedule-no-gain"


def schedule_without_gain(
    scheduled: Arm,
    static: Arm,
    records: Sequence[Record],
    *,
    metric: str,
    prompt_of: PromptOf = ALL_DISTINCT,
) -> Finding | None:
    """None where the schedule is faster than the static arm it was made from."""
    overall = head_to_head(scheduled, static, records, metric=metric, prompt_of=prompt_of)
    if overall is not None and overall.speedup.low > 1.0:
        return None
    found = (
        "could not be compared"
        if overall is None
        else (f"{overall.speedup.value:.3f}x [{overall.speedup.low:.3f}, {overall.speedup.high:.3f}]")
    )
    return inform(
        SCHEDULE_NO_GAIN,
        f"{scheduled.name} does not beat {static.name}: {found} on the same prompts; the schedule "
        "was dropped",
        then="use one k for every load",
        arm=scheduled.name,
    )
