"""Where does an arm's gain come from? The control has what speculation switched off switched off too, and no drafts:
baseline to control is what that costs, control to arm what drafting gains. It explains and never decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from speclift.core.arm import BASELINE, CONTROL, Arm, control_arm
from speclift.core.records import Launch, Phase, Record
from speclift.core.results import Conditions, Finding, inform
from speclift.statistics.compare import Comparer
from speclift.statistics.engine_checks import changed_settings


def explained_gains(
    records: Sequence[Record], arms: Sequence[Arm], launches: Sequence[Launch], *, metric: str
) -> Iterator[Finding]:
    """Over the prompts of the control's one launch, and the launch of the others that was nearest to it: where a budget
    left rounds out, the last one that there is. What else the engine changed for an arm and not for the control is
    not told apart from drafting, and named."""
    settings = {launch.arm: launch.settings for launch in launches if launch.settings}
    for arm in arms:
        own = _beside_control(records, arm)
        whole = _ratio(own, arm, over=BASELINE, metric=metric)
        cost = _ratio(own, control_arm(), over=BASELINE, metric=metric)
        gain = _ratio(own, arm, over=CONTROL, metric=metric)
        if whole is None or cost is None or gain is None:
            continue
        changed = changed_settings(settings.get(arm.name, {}), settings.get(CONTROL, {}), of=CONTROL)
        drafting = " and ".join(["drafting", *changed])
        yield inform(
            "gain-explained",
            f"{arm.name}: {whole:.2f}x in the launch next to the control: scheduling alone gives {cost:.2f}x"
            f", {drafting} {'together give' if changed else 'gives'} {gain:.2f}x",
            then="the verdict uses the engine's normal baseline, not this control",
            arm=arm.name,
        )


def _beside_control(records: Sequence[Record], arm: Arm) -> list[Record]:
    """The control's launch told as of the same round as the launch of the others that was nearest before it."""
    compared = _rounds(records, BASELINE) & _rounds(records, arm.name)
    beside: list[Record] = []
    for index in _rounds(records, CONTROL):
        nearest = max((round_index for round_index in compared if round_index <= index), default=None)
        if nearest is None:
            continue
        beside += [r for r in records if r.place.arm != CONTROL and r.place.round == nearest]
        beside += [
            replace(r, place=replace(r.place, round=nearest))
            for r in records
            if r.place.arm == CONTROL and r.place.round == index
        ]
    return beside


def _rounds(records: Sequence[Record], arm: str) -> set[int]:
    """In which it answered."""
    return {r.place.round for r in records if r.place.arm == arm and r.place.phase is Phase.MEASURED}


def _ratio(records: Sequence[Record], arm: Arm, *, over: str, metric: str) -> float | None:
    sides = [
        replace(record, place=replace(record.place, arm=BASELINE)) if record.place.arm == over else record
        for record in records
        if record.place.arm in (arm.name, over)
    ]
    comparer = Comparer(sides, metric=metric, bar=1.0, arm_count=1, by_temperature=False)
    overall = comparer.evidence(arm, Conditions()).overall
    return None if overall is None else overall.speedup.value
