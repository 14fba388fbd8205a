"""A study looked at on the way: what its records so far say, and what of it is still worth measuring.

A look after so many laps is a function of their records alone: a study that was interrupted sees the same and goes on
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from speclift.bench.course import LookAt, lap_rounds
from speclift.bench.observer import Observer
from speclift.core.goals import Goals
from speclift.core.looks import EVERYTHING, LAST_LEVEL, Wanted
from speclift.core.results import ALL_TRAFFIC, CONFIDENCE, Finding, Level
from speclift.studies.study import Study
from speclift.verbs.held import Held, comparer_of, read_held
from speclift.verdict.looks import Look, look_at
from speclift.verdict.verdict import decide
from speclift.workload.laps import laps


def looks_of(study: Study, observer: Observer) -> LookAt:
    """What `bench/run.py` asks after each lap. What is dropped is said, and kept with the study."""

    def wanted(laps_done: int) -> Wanted:
        if laps_done == 0:
            return {arm.name: (EVERYTHING,) for arm in study.plan.arms if arm.speculates}
        found = look_after(study, laps_done)
        known = set(study.findings())
        for finding in _dropped(found, laps_done):
            if finding not in known:
                study.add_finding(finding)
                observer.say(finding.message)
        return found.wanted

    return wanted


def look_after(study: Study, laps_done: int) -> Look:
    held = _measured_in(read_held([study]), study, laps_done)
    return _look(held, study.goals, level=_level_after(study, laps_done), is_attached=study.plan.rounds == 1)


def level_of(studies: Sequence[Study], held: Held) -> float:
    """The confidence at which a study is reported: that of the look which settled it, by its own goals; where none did,
    that of the last one, for which the largest share of the error is kept."""
    if not held.has_laps:
        return CONFIDENCE
    if len(studies) > 1 or not (laps_done := len(lap_rounds(studies[0]))):
        return LAST_LEVEL
    level = _level_after(studies[0], laps_done)
    look = _look(held, studies[0].goals, level=level, is_attached=studies[0].plan.rounds == 1)
    return level if look.is_settled else LAST_LEVEL


def _look(held: Held, goals: Goals, *, level: float, is_attached: bool) -> Look:
    """Servers that were there before are of one launch, whatever is done: they may ship on it."""
    evidence_for = cache(comparer_of(held, goals, level=level).evidence)
    verdict = decide(held.competing, evidence_for, goals=goals)
    on_all = [evidence_for(arm, ALL_TRAFFIC) for arm in held.competing]
    launches = len({record.place.round for record in held.records})
    return look_at(verdict, on_all, goals, may_ship=is_attached or launches > 1)


def _measured_in(held: Held, study: Study, laps_done: int) -> Held:
    within = {block.number for lap in laps(study.plan, lap_rounds(study)[:laps_done]) for block in lap.blocks}
    return replace(held, records=[record for record in held.records if record.place.block in within])


def _level_after(study: Study, laps_done: int) -> float:
    looks = study.plan.looks
    assert looks is not None, "only a study in laps is looked at"
    return looks.level(laps_done - 1)


def _dropped(look: Look, laps_done: int) -> list[Finding]:
    return [
        Finding(
            check="measured-less",
            level=Level.INFO,
            message=f"{arm}: after lap {laps_done}, {why}",
            next_step="--fixed measures everything",
            arm=arm,
        )
        for arm, why in look.because.items()
    ]
