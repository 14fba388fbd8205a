"""What studies hold, read once, as everything that judges them wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from speclift.core.arm import BASELINE, CONTROL, Arm
from speclift.core.errors import StudyError
from speclift.core.fleet import NodeGroup, groups_of
from speclift.core.goals import Goals
from speclift.core.records import Launch, Phase, Record
from speclift.core.traffic import repeated_prompts
from speclift.statistics.balance import PromptCounts
from speclift.statistics.bursts import mark_bursts
from speclift.statistics.cells import NO_TOTALS, Totals, told_by_totals
from speclift.statistics.compare import Comparer, OneLook
from speclift.statistics.failures import causes_of, told
from speclift.statistics.pairs import PromptOf
from speclift.statistics.repeats import without_echoes
from speclift.studies.merge import merged_records
from speclift.studies.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The control explains and never decides: it is in `everything` alone."""

    everything: Sequence[Record]
    records: Sequence[Record]
    totals: Totals
    launches: Sequence[Launch]
    arms: Sequence[Arm]
    competing: Sequence[Arm]
    failed_arms: tuple[str, ...]
    by_temperature: bool
    prompt_of: PromptOf
    # Of the workload, by segment, however many of them were sent.
    prompt_counts: PromptCounts
    # Whether it was measured in laps, each a part of the prompts; and whether all of them on one launch.
    has_laps: bool
    is_one_launch: bool
    # Of a fleet whose nodes are unlike: the group that everything above is of, and the others with their records.
    group: NodeGroup | None = None
    unlike: tuple[tuple[NodeGroup, Sequence[Record]], ...] = ()


def read_held(studies: Sequence[Study]) -> Held:
    totals = _totals(studies)
    everything, group, unlike = _alike(studies, mark_bursts(told_by_totals(merged_records(studies), totals)))
    records = [record for record in everything if record.place.arm != CONTROL]
    _require_a_baseline(studies[0], records)
    arms, failed = _measured_arms(studies, records), _failed_arms(studies)
    plans = [study.plan for study in studies]
    requests = [request for plan in plans for request in plan.requests]
    prompt_of = repeated_prompts(requests)
    segments = {prompt_of.get(request.id, request.id): request.segment for request in requests}
    return Held(
        everything=everything,
        records=records,
        totals=totals,
        launches=[
            launch
            for study in studies
            for launch, _ in study.launches()
            if group is None or launch.node in group.names
        ],
        arms=arms,
        competing=[arm for arm in arms if arm.name not in failed],
        failed_arms=failed,
        by_temperature=plans[0].temperatures != (None,),
        prompt_of=prompt_of,
        prompt_counts=Counter(segments.values()),
        has_laps=any(plan.looks is not None for plan in plans),
        is_one_launch=len(plans) == 1 and plans[0].rounds == 1,
        group=group,
        unlike=unlike,
    )


def _alike(
    studies: Sequence[Study], records: Sequence[Record]
) -> tuple[Sequence[Record], NodeGroup | None, tuple[tuple[NodeGroup, Sequence[Record]], ...]]:
    """Machines that are unlike are never pooled: the records of the group that has most of them, and those of the
    others. No group where all are alike."""
    groups = groups_of(node for study in studies for node in study.nodes)
    if len(groups) < 2:
        return records, None, ()
    shares = [(group, [record for record in records if record.place.node in group.names]) for group in groups]
    (group, own), *others = sorted(
        (share for share in shares if share[1]), key=lambda share: len(share[1]), reverse=True
    )
    return (own, group, tuple(others)) if others else (records, None, ())


def comparer_of(held: Held, goals: Goals, *, level: float) -> Comparer:
    return Comparer(
        without_echoes(held.records, held.arms),
        metric=goals.metric,
        bar=goals.min_speedup,
        arm_count=max(1, len(held.competing)),
        by_temperature=held.by_temperature,
        totals=held.totals,
        prompt_of=held.prompt_of,
        look=look_of(held, level) if held.has_laps else None,
    )


def look_of(held: Held, level: float) -> OneLook:
    return OneLook(level=level, prompt_counts=held.prompt_counts, is_one_launch=held.is_one_launch)


def _require_a_baseline(study: Study, records: Sequence[Record]) -> None:
    sent = [record for record in records if record.place.arm == BASELINE]
    causes = causes_of(sent)
    if not sent:
        raise StudyError(
            f"{study.path} has no successful baseline request: no request was sent yet",
            hint="run it again with --resume",
        )
    if not any(record.is_ok for record in sent):
        raise StudyError(
            f"{study.path} has no successful baseline request: all {len(sent)} failed{told(causes)}",
            hint=causes[0].hint,
        )


def _measured_arms(studies: Sequence[Study], records: Sequence[Record]) -> list[Arm]:
    seen = {record.place.arm for record in records if record.place.phase is Phase.MEASURED}
    planned = {arm.name: arm for study in studies for arm in study.plan.arms}
    return [arm for name, arm in planned.items() if name in seen and arm.speculates]


def _failed_arms(studies: Sequence[Study]) -> tuple[str, ...]:
    """Arms whose last launch failed; one that came through on resume is back in the running."""
    last = {launch.arm: launch for study in studies for launch, _ in study.launches()}
    return tuple(sorted(arm for arm, launch in last.items() if launch.failure and arm != CONTROL))


def _totals(studies: Sequence[Study]) -> Totals:
    """Pooled studies number their launches anew, so only one alone can be matched with its turns."""
    if len(studies) > 1:
        return NO_TOTALS
    return {(turn.launch, turn.block): turn.counters for turn in studies[0].turn_totals()}
