"""Does a schedule of k by load beat the best single k? Paired on the same prompts; else it is not worth the trouble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Record
from speclift.core.results import Conditions, Finding, Level
from speclift.statistics.compare import Comparer
from speclift.statistics.pairs import ALL_DISTINCT, PromptOf

SCHEDULE_NO_GAIN = "schedule-no-gain"


def schedule_without_gain(
    tuning: Mapping[str, Any] | None,
    records: Sequence[Record],
    arms: Sequence[Arm],
    *,
    metric: str,
    prompt_of: PromptOf = ALL_DISTINCT,
) -> Finding | None:
    """None where there is no schedule, or it is faster than the static arm it was made from."""
    schedule = tuning["schedule"] if tuning is not None else None
    by_name = {arm.name: arm for arm in arms}
    if schedule is None or not {schedule["arm"], schedule["static"]} <= by_name.keys():
        return None
    against_static = [
        replace(record, place=replace(record.place, arm=BASELINE))
        if record.place.arm == schedule["static"]
        else record
        for record in records
        if record.place.arm in (schedule["arm"], schedule["static"])
    ]
    comparer = Comparer(
        against_static, metric=metric, bar=1.0, arm_count=1, by_temperature=False, prompt_of=prompt_of
    )
    overall = comparer.evidence(by_name[schedule["arm"]], Conditions()).overall
    if overall is not None and overall.speedup.low > 1.0:
        return None
    found = (
        "could not be compared"
        if overall is None
        else (f"{overall.speedup.value:.3f}x [{overall.speedup.low:.3f}, {overall.speedup.high:.3f}]")
    )
    return Finding(
        check=SCHEDULE_NO_GAIN,
        level=Level.INFO,
        message=f"{schedule['arm']} does not beat {schedule['static']}: {found} on the same prompts; the schedule "
        "was dropped",
        next_step="one k for every load is the smaller configuration",
        arm=schedule["arm"],
    )
