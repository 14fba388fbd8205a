"""What studies hold, read once for everything that judges them; what they took; and what is still worth measuring.

An interim check after so many laps is a function of their records alone: a study that was interrupted sees the same and
goes on the same way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from speclift.bench.course import InterimCheck, lap_rounds
from speclift.bench.observer import Observer
from speclift.core.arm import BASELINE, CONTROL, Arm
from speclift.core.errors import StudyError
from speclift.core.fleet import NodeGroup, groups_of
from speclift.core.goals import Goals
from speclift.core.interim import LAST_LEVEL, InterimDecision, Scope, at_everything
from speclift.core.records import Launch, Phase, Record
from speclift.core.results import ALL_TRAFFIC, CONFIDENCE, Finding, inform
from speclift.core.traffic import repeated_prompts
from speclift.core.units import Seconds
from speclift.lossless.gate import Gate
from speclift.statistics.balance import PromptCounts
from speclift.statistics.bursts import mark_bursts
from speclift.statistics.cells import NO_TOTALS, Totals, told_by_totals
from speclift.statistics.compare import Comparer, OneLook
from speclift.statistics.failures import causes_of, told
from speclift.statistics.head_to_head import head_to_head
from speclift.statistics.pairs import PromptOf
from speclift.statistics.repeats import without_echoes
from speclift.studies.merge import merged_records
from speclift.studies.prompt_files import bundled_workload
from speclift.studies.study import Study
from speclift.verdict.interim import interim_decision
from speclift.verdict.judgement import Effort
from speclift.verdict.verdict import EvidenceFor, decide
from speclift.workload.laps import laps


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyData:
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


def read_data(studies: Sequence[Study]) -> StudyData:
    totals = _totals(studies)
    everything, group, unlike = _alike(studies, mark_bursts(told_by_totals(merged_records(studies), totals)))
    records = [record for record in everything if record.place.arm != CONTROL]
    _require_a_baseline(studies[0], records)
    arms, failed = _measured_arms(studies, records), _failed_arms(studies)
    plans = [study.plan for study in studies]
    requests = [request for plan in plans for request in plan.requests]
    prompt_of = repeated_prompts(requests)
    segments = {prompt_of.get(request.id, request.id): request.segment for request in requests}
    return StudyData(
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


def comparer_of(held: StudyData, goals: Goals, *, level: float) -> Comparer:
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


def look_of(held: StudyData, level: float) -> OneLook:
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


def effort_of(
    studies: Sequence[Study], records: Sequence[Record], gate: Gate, *, is_settled: bool = False
) -> Effort:
    """Of several pooled studies, the first one's plan and the time of all. Of one that is settled nothing is left."""
    plan, launches = studies[0].plan, [launch for study in studies for launch, _ in study.launches()]
    arms = {arm.name for arm in plan.arms if not arm.is_control}
    arms -= {launch.arm for launch in launches if launch.failure and launch.arm != BASELINE}
    rounds, starts = plan.rounds * len(studies), _starts(launches)
    asked = sum(r.place.phase is Phase.MEASURED and r.place.arm in arms for r in records)
    planned = len(arms) * len(plan.loads) * len(plan.items) * rounds
    return Effort(
        arms=max(1, len(arms)),
        requests=max(1, len(plan.items) // len(plan.temperatures)),
        launches=rounds,
        planned=planned,
        asked=asked,
        is_settled=is_settled,
        starts=len(starts),
        starting_s=union_length_s((begin, ready) for _, begin, ready in starts),
        asking_s=union_length_s((record.sent_s, record.end_s) for record in records),
        checking_s=gate.wall_s,
        ready_s=_ready_s(starts),
        segments=tuple(dict.fromkeys(request.segment for request in plan.requests)),
        max_tokens=max((request.max_tokens for request in plan.requests), default=None),
        pool=_pool(studies[0]),
    )


def _starts(launches: Sequence[Launch]) -> list[tuple[str, Seconds, Seconds]]:
    """Arm, start and readiness of every server that got ready; the control is none of the arms that a study names."""
    return [
        (launch.arm, launch.started_s, launch.ready_s)
        for launch in launches
        if launch.ready_s is not None and launch.arm != CONTROL
    ]


def union_length_s(spans: Iterable[tuple[Seconds, Seconds]]) -> Seconds:
    """The time that spans cover together: what overlaps counts once, and a night between two of them not at all."""
    total = 0.0
    until = float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _pool(study: Study) -> Mapping[str, int] | None:
    """Of prompts that come along the number is known; those of a file may have changed since."""
    argv = study.provenance.argv
    if not argv or any(word.partition("=")[0] == "--prompts" for word in argv):
        return None
    return Counter(request.segment for request in bundled_workload().requests)


def _ready_s(starts: Sequence[tuple[str, Seconds, Seconds]]) -> dict[str, Seconds]:
    taken: dict[str, list[Seconds]] = {}
    for arm, begin, ready in starts:
        taken.setdefault(arm, []).append(ready - begin)
    return {arm: median(each) for arm, each in taken.items()}


def interim_checks(study: Study, observer: Observer) -> InterimCheck:
    """What `bench/run.py` asks after each lap. What is dropped is said once, and kept with the study."""
    said: dict[str, tuple[Scope, ...]] = {}

    def look(laps_done: int) -> InterimDecision:
        if laps_done == 0:
            return at_everything(arm.name for arm in study.plan.arms if arm.speculates)
        found = interim_check(study, laps_done)
        news = {arm: why for arm, why in found.because.items() if said.get(arm) != found.wanted.get(arm, ())}
        said.update({arm: found.wanted.get(arm, ()) for arm in found.because})
        known = set(study.findings())
        for finding in _dropped(news, laps_done):
            if finding not in known:
                study.add_finding(finding)
                observer.say(finding.message)
        return found

    return look


def interim_check(study: Study, laps_done: int) -> InterimDecision:
    held = _measured_in(read_data([study]), study, laps_done)
    # An arm that failed since is wanted as it was: whoever measures knows which of them are up.
    held = replace(held, competing=held.arms)
    level = _level_after(study, laps_done)
    evidence_for = cache(comparer_of(held, study.goals, level=level).evidence)
    return _decision(held, study.goals, evidence_for, level=level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """At which confidence a study is reported, and whether it ended because nothing more could change the verdict."""

    level: float
    is_settled: bool
    # By the study's own goals, what settled it was decided by.
    evidence_for: EvidenceFor | None = None


def ending_of(studies: Sequence[Study], held: StudyData) -> Ending:
    """By a study's own goals. Where no look settled it, its level is that of the last one, for which the largest share
    of the error is kept."""
    if not held.has_laps:
        return Ending(level=CONFIDENCE, is_settled=False)
    if len(studies) == 1 and (laps_done := len(lap_rounds(studies[0]))):
        level = _level_after(studies[0], laps_done)
        evidence_for = cache(comparer_of(held, studies[0].goals, level=level).evidence)
        if _decision(held, studies[0].goals, evidence_for, level=level).is_settled:
            return Ending(level=level, is_settled=True, evidence_for=evidence_for)
    return Ending(level=LAST_LEVEL, is_settled=False)


def _decision(held: StudyData, goals: Goals, evidence_for: EvidenceFor, *, level: float) -> InterimDecision:
    """Servers that were there before are of one launch, whatever is done: they may ship on it."""
    verdict = decide(held.competing, evidence_for, goals=goals)
    on_all = [evidence_for(arm, ALL_TRAFFIC) for arm in held.competing]
    launches = len({record.place.round for record in held.records})

    def faster_at_most(arm: Arm, other: Arm) -> float:
        found = head_to_head(
            arm,
            other,
            held.records,
            metric=goals.metric,
            prompt_of=held.prompt_of,
            look=look_of(held, level),
        )
        return math.inf if found is None else found.speedup.high

    return interim_decision(
        verdict, on_all, goals, may_ship=held.is_one_launch or launches > 1, faster_at_most=faster_at_most
    )


def _measured_in(held: StudyData, study: Study, laps_done: int) -> StudyData:
    within = {block.number for lap in laps(study.plan, lap_rounds(study)[:laps_done]) for block in lap.blocks}
    return replace(held, records=[record for record in held.records if record.place.block in within])


def _level_after(study: Study, laps_done: int) -> float:
    looks = study.plan.looks
    assert looks is not None, "only a study in laps is looked at"
    return looks.level(laps_done - 1)


def _dropped(news: Mapping[str, str], laps_done: int) -> list[Finding]:
    return [
        inform(
            "measured-less",
            f"{arm}: after lap {laps_done}, {why}",
            then="--fixed measures everything",
            arm=arm,
        )
        for arm, why in news.items()
    ]
