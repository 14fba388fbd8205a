"""What is settled when a study is looked at on the way, and what is still worth measuring?

An arm is done with when nothing more could make it ship, or make it ship on more than it does already. Pure: what is
known comes in as evidence, whose intervals hold at every look together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.core.goals import Goals
from speclift.core.looks import EVERYTHING, Scope, Wanted
from speclift.core.results import TEMPERATURE_DASH, Comparison, Decision, Evidence, Level, Part, Verdict
from speclift.core.traffic import load_label
from speclift.verdict import rules
from speclift.verdict.verdict import deciding_rules

# Of one launch nobody sees how much launches differ: an upper bound is taken to be so much higher. Starts that differ by
# 4 % put a ratio off by more than this in one of twenty.
UNSEEN_LAUNCHES = 1.1


# What more requests do not mend.
LASTING = {"lossy-method", "degenerate-output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is wanted of each arm from here on, and why anything is not."""

    wanted: Wanted
    dropped: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        return not self.wanted


def look_at(
    verdict: Verdict, on_all: Sequence[Evidence], goals: Goals, *, launches: int, launches_min: int
) -> Look:
    """`launches` so far, of at least `launches_min` without which nothing ships."""
    is_early = launches < launches_min
    best = verdict.evidence if verdict.decision is Decision.SHIP and not is_early else None
    open_scopes = {e.arm.name: _open_scopes(e, verdict, goals, is_early=is_early) for e in on_all}
    for evidence in on_all:
        if best is not None and not _may_beat(evidence, best, goals):
            open_scopes[evidence.arm.name] = ()
    return Look(wanted={arm: scopes for arm, scopes in open_scopes.items() if scopes})


def _may_beat(evidence: Evidence, best: Evidence, goals: Goals) -> bool:
    """An arm that looks faster than the one that ships is given the chance to; else the choice is made."""
    if evidence.arm == best.arm or evidence.overall is None or best.overall is None:
        return False
    return not _is_out(evidence, goals) and evidence.overall.speedup.value > best.overall.speedup.value


def _open_scopes(evidence: Evidence, verdict: Verdict, goals: Goals, *, is_early: bool) -> tuple[Scope, ...]:
    overall = evidence.overall
    if overall is None:
        return (EVERYTHING,)
    if is_early:
        out = all(_misses(part, goals, slack=UNSEEN_LAUNCHES) for part in (overall, *evidence.parts))
        return () if out else (EVERYTHING,)
    if not _is_out(evidence, goals):
        return _open_for_all(evidence, goals)
    shipped = verdict.evidence if verdict.decision is Decision.SHIP_ON_CONDITIONS else None
    return tuple(
        Scope(part=part.part, label=part.label)
        for part in evidence.parts
        if not _misses(part, goals)
        and not (shipped is not None and shipped.arm == evidence.arm and _is_within(part, shipped))
        and part.label not in {found.segment for found in evidence.degenerate}
    )


def _open_for_all(evidence: Evidence, goals: Goals) -> tuple[Scope, ...]:
    """Of an arm that may still ship on all traffic: what it lacks."""
    failed = {reason.rule for reason in deciding_rules(evidence, goals) if reason.level is Level.FAIL}
    if failed & LASTING:
        return ()
    if failed - {"no-part-loses"} or rules.tail_is_open(evidence, goals):
        return (EVERYTHING,)
    return tuple(Scope(part=part.part, label=part.label) for part in rules.losing_parts(evidence))


def _is_within(part: Comparison, shipped: Evidence) -> bool:
    """Whether the conditions on which an arm ships admit the part."""
    conditions = shipped.conditions
    if part.part is Part.SEGMENT:
        return conditions.segments is None or part.label in conditions.segments
    if part.part is Part.LOAD:
        return part.label in {load_label(cell.load) for cell in shipped.cells}
    ceiling = conditions.max_temperature
    return ceiling is None or float(part.label.rpartition(TEMPERATURE_DASH)[2]) <= ceiling


def _is_out(evidence: Evidence, goals: Goals) -> bool:
    """Whether it is shown that the arm does not ship on all traffic."""
    overall = evidence.overall
    if overall is None:
        return False
    shown_losing = any(part.speedup.high < rules.NO_PART_LOSES for part in rules.losing_parts(evidence))
    return _misses(overall, goals) or shown_losing or rules.tail_is_slower(evidence)


def _misses(comparison: Comparison, goals: Goals, *, slack: float = 1.0) -> bool:
    return comparison.speedup.high * slack < goals.min_speedup
