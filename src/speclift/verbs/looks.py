"""A study looked at on the way: what its records so far say, and what of it is still worth measuring.

A look after so many laps is a function of their records alone: a study that was interrupted sees the same and goes on
the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from speclift.bench.course import LookAt, lap_rounds
from speclift.bench.observer import Observer
from speclift.core.arm import Arm
from speclift.core.goals import Goals
from speclift.core.looks import LAST_LEVEL, Look, Scope, at_everything
from speclift.core.results import ALL_TRAFFIC, CONFIDENCE, Finding, inform
from speclift.statistics.head_to_head import head_to_head
from speclift.studies.study import Study
from speclift.verbs.held import Held, comparer_of, look_of, read_held
from speclift.verdict.looks import look_at
from speclift.verdict.verdict import decide
from speclift.workload.laps import laps


def looks_of(study: Study, observer: Observer) -> LookAt:
    """What `bench/run.py` asks after each lap. What is dropped is said once, and kept with the study."""
    said: dict[str, tuple[Scope, ...]] = {}

    def look(laps_done: int) -> Look:
        if laps_done == 0:
            return at_everything(arm.name for arm in study.plan.arms if arm.speculates)
        found = look_after(study, laps_done)
        news = {arm: why for arm, why in found.because.items() if said.get(arm) != found.wanted.get(arm, ())}
        said.update({arm: found.wanted.get(arm, ()) for arm in found.because})
        known = set(study.findings())
        for finding in _dropped(news, laps_done):
            if finding not in known:
                study.add_finding(finding)
                observer.say(finding.message)
        return found

    return look


def look_after(study: Study, laps_done: int) -> Look:
    held = _measured_in(read_held([study]), study, laps_done)
    # An arm that failed since is wanted as it was: whoever measures knows which of them are up.
    held = replace(held, competing=held.arms)
    return _look(held, study.goals, level=_level_after(study, laps_done))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """At which confidence a study is reported, and whether it ended because nothing more could change the verdict."""

    level: float
    is_settled: bool


def ending_of(studies: Sequence[Study], held: Held) -> Ending:
    """By a study's own goals. Where no look settled it, its level is that of the last one, for which the largest share
    of the error is kept."""
    if not held.has_laps:
        return Ending(level=CONFIDENCE, is_settled=False)
    if len(studies) == 1 and (laps_done := len(lap_rounds(studies[0]))):
        level = _level_after(studies[0], laps_done)
        look = _look(held, studies[0].goals, level=level)
        if look.is_settled:
            return Ending(level=level, is_settled=True)
    return Ending(level=LAST_LEVEL, is_settled=False)


def _look(held: Held, goals: Goals, *, level: float) -> Look:
    """Servers that were there before are of one launch, whatever is done: they may ship on it."""
    evidence_for = cache(comparer_of(held, goals, level=level).evidence)
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

    return look_at(
        verdict, on_all, goals, may_ship=held.is_one_launch or launches > 1, faster_at_most=faster_at_most
    )


def _measured_in(held: Held, study: Study, laps_done: int) -> Held:
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
