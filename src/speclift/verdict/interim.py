"""What is settled when a study is looked at on the way, and what is still worth measuring?

An arm is done with when nothing more could make it ship, or make it ship on more than it does already. Pure: what is
known comes in as evidence, whose intervals hold at all looks together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from speclift.core.arm import Arm
from speclift.core.goals import Goals
from speclift.core.interim import EVERYTHING, InterimDecision, Scope
from speclift.core.results import TEMPERATURE_DASH, Comparison, Decision, Evidence, Level, Part, Verdict
from speclift.verdict import rules
from speclift.verdict.verdict import deciding_rules

# What more requests do not mend.
LASTING = {"lossy-method", "degenerate-output"}
# Of the variance, what launches must add for the next one to narrow an interval more than its prompts do.
LAUNCH_SHARE_MIN = 0.2
# Nobody needs to know which of two arms is faster by less (the search's own tolerance).
SAME_SPEED = 1.02


# How much faster an arm may be than another, as a factor that holds at this look; infinite where nobody can say.
FasterAtMost: TypeAlias = Callable[[Arm, Arm], float]


def interim_decision(
    verdict: Verdict,
    on_all: Sequence[Evidence],
    goals: Goals,
    *,
    may_ship: bool,
    faster_at_most: FasterAtMost,
) -> InterimDecision:
    """`may_ship` from the second launch on: before it, only what is hopeless is dropped."""
    found = {e.arm.name: _open_scopes(e, verdict, goals, may_ship=may_ship) for e in on_all}
    if may_ship and verdict.decision is Decision.SHIP and verdict.winner is not None:
        found |= _beside(verdict.winner, on_all, goals, faster_at_most)
    wanted = {arm: scopes for arm, scopes in found.items() if scopes}
    less = [e for e in on_all if found[e.arm.name] != (EVERYTHING,)]
    return InterimDecision(
        wanted=wanted,
        needs_launch=not may_ship or any(_varies(e) for e in on_all if e.arm.name in wanted),
        because={e.arm.name: _why(e, found[e.arm.name], verdict, goals) for e in less},
    )


def _beside(
    ships: Arm, on_all: Sequence[Evidence], goals: Goals, faster_at_most: FasterAtMost
) -> dict[str, tuple[Scope, ...]]:
    """The choice is made once no other may be faster; till then both are measured on, because they are told apart on
    requests that both were sent."""
    others = [evidence for evidence in on_all if evidence.arm != ships]
    standing = [evidence.arm for evidence in others if not _is_out(evidence, goals)]
    rivals = [arm for arm in standing if faster_at_most(arm, ships) > SAME_SPEED]
    done: dict[str, tuple[Scope, ...]] = {evidence.arm.name: () for evidence in others}
    return done | {arm.name: (EVERYTHING,) for arm in ((ships, *rivals) if rivals else ())}


def _varies(evidence: Evidence) -> bool:
    return evidence.overall is None or evidence.overall.launch_share >= LAUNCH_SHARE_MIN


def _open_scopes(evidence: Evidence, verdict: Verdict, goals: Goals, *, may_ship: bool) -> tuple[Scope, ...]:
    if evidence.overall is None:
        return (EVERYTHING,)
    if not may_ship:
        everywhere = (evidence.overall, *evidence.parts)
        return () if all(_misses(part, goals) for part in everywhere) else (EVERYTHING,)
    if not _is_out(evidence, goals):
        return _open_on_all_traffic(evidence, goals)
    looping = {found.segment for found in evidence.degenerate}
    return tuple(
        _scope(part)
        for part in evidence.parts
        if not _misses(part, goals) and not _ships_on(verdict, evidence, part) and part.label not in looping
    )


def _open_on_all_traffic(evidence: Evidence, goals: Goals) -> tuple[Scope, ...]:
    """Of an arm that may still ship on all of it: what it lacks."""
    failed = {reason.rule for reason in deciding_rules(evidence, goals) if reason.level is Level.FAIL}
    if failed & LASTING:
        return ()
    if failed - {"no-part-loses"} or _has_open_tail(evidence, goals):
        return (EVERYTHING,)
    return tuple(_scope(part) for part in rules.losing_parts(evidence))


def _has_open_tail(evidence: Evidence, goals: Goals) -> bool:
    """One that looks slow, or that the workload's prompts could settle. Before there are enough requests to compare it,
    any that took far longer is a sign of one."""
    if not evidence.tails:
        return evidence.slow_pairs > 0
    return not rules.tail_is_slower(evidence) and any(
        tail.ratio.value < goals.tail_tolerance
        or rules.prompts_to_settle(tail, goals.tail_tolerance) <= _prompts_there(evidence)
        for tail in rules.unsure_tails(evidence, goals)
    )


def _prompts_there(evidence: Evidence) -> int:
    return 0 if evidence.overall is None else evidence.overall.prompts_there


def _ships_on(verdict: Verdict, evidence: Evidence, part: Comparison) -> bool:
    """Whether the conditions on which the arm ships admit the part."""
    conditions, shipped = verdict.conditions, verdict.evidence
    if conditions is None or shipped is None or shipped.arm != evidence.arm:
        return False
    if part.part is Part.SEGMENT:
        return conditions.segments is None or part.label in conditions.segments
    if part.part is Part.LOAD:
        return part.label in {cell.load.label for cell in shipped.cells}
    ceiling = conditions.max_temperature
    return ceiling is None or float(part.label.rpartition(TEMPERATURE_DASH)[2]) <= ceiling


def _is_out(evidence: Evidence, goals: Goals) -> bool:
    """Whether it is shown that the arm does not ship on all traffic."""
    if evidence.overall is None:
        return False
    loses = any(part.speedup.high < rules.NO_PART_LOSES for part in rules.losing_parts(evidence))
    return _misses(evidence.overall, goals) or loses or rules.tail_is_slower(evidence)


def _misses(comparison: Comparison, goals: Goals) -> bool:
    return comparison.speedup.high < goals.min_speedup


def _scope(part: Comparison) -> Scope:
    return Scope(part=part.part, label=part.label)


# Words


def _why(evidence: Evidence, scopes: Sequence[Scope], verdict: Verdict, goals: Goals) -> str:
    bar = f"{goals.min_speedup:g}x"
    if scopes:
        return f"only {', '.join(scope.label for scope in scopes)} can still change the verdict"
    if verdict.evidence is not None and verdict.evidence.arm == evidence.arm and verdict.winner is not None:
        return f"it is settled that it ships{' on a part of the traffic' if verdict.conditions else ''}"
    if evidence.overall is not None and _misses(evidence.overall, goals):
        return f"it cannot reach {bar}: at most {evidence.overall.speedup.high:.2f}x overall"
    if verdict.winner is not None and verdict.decision is Decision.SHIP:
        return f"{verdict.winner.name} ships and is not slower"
    return f"more requests cannot make it ship at {bar}"
