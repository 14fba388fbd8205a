"""The designs and truths that benchmarks/studies.py draws, and what share of studies may show what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from speclift.core.goals import Goals
from speclift.core.traffic import Concurrency, Load
from speclift.testing.simulated_study import ArmTruth, SpeedupOf, StudyTruth

ONE_STREAM = (Concurrency(streams=1),)
THREE_LOADS = tuple(Concurrency(streams=streams) for streams in (1, 4, 16))
DRAFTING = ArmTruth(prompt_sd=0.15, drafted_per_step=4, acceptance=0.6)
# The headline's interval is a 97 % one: conditions have the rest of the error.
COVERED = (93.0, 99.0)
# Bonferroni may err wide; what it may not do is cover less.
COVERED_TOGETHER = (93.0, 100.0)
FALSE_ALARMS = (0.0, 6.0)
# A bar of 1 asks for any gain: the lower bound of a 95 % interval lies above the truth in 2.5 % of studies.
SHIPS_BY_CHANCE = (0.0, 2.5)
NEVER = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A design, a truth, and what share of studies may show what."""

    name: str
    truth: StudyTruth
    promises: Mapping[str, tuple[float, float]]
    prompts: int = 36
    launches: int = 3
    loads: tuple[Load, ...] = ONE_STREAM
    goals: Goals = field(default_factory=Goals)
    # Where the prompts' temperatures come from: one for all, one per segment, each its own.
    temperatures: str = "one"
    # Of the studies asked for: what is cheap to tell apart needs fewer.
    share: float = 1.0


def cases() -> Iterator[Case]:
    yield from _coverage_cases()
    yield from _false_alarm_cases()
    yield from _aa_cases()
    yield from _power_cases()


def _coverage_cases() -> Iterator[Case]:
    arm = replace(DRAFTING, speedup=by_segment(copy=1.6, chat=0.95, code=1.2))
    plain = StudyTruth(arms={"arm-1": arm})
    yield Case(
        name="coverage, 1 arm", truth=plain, promises={"covered": COVERED_TOGETHER, "on all traffic": COVERED}
    )
    noise = {
        "server starts alike": replace(plain, launch_sd=0.0),
        "server starts differ by 4 %": replace(plain, launch_sd=0.04),
        "20 % drift, 3 % failed": replace(plain, drift=0.2, arms={"arm-1": replace(arm, failed_share=0.03)}),
    }
    for name, truth in noise.items():
        yield Case(
            name=f"coverage, 1 arm, {name}", truth=truth, promises={"on all traffic": COVERED}, share=0.25
        )
    per_load = replace(DRAFTING, speedup=by_load({1: 1.5, 4: 1.2, 16: 0.8}))
    yield Case(
        name="coverage, 1 arm, 3 loads",
        truth=StudyTruth(arms={"arm-1": per_load}),
        loads=THREE_LOADS,
        promises={"on all traffic": COVERED},
        share=0.25,
    )
    alike = replace(DRAFTING, speedup=by_segment(copy=1.5, chat=1.3, code=1.1))
    yield Case(
        name="coverage, 3 arms alike",
        truth=StudyTruth(arms=dict.fromkeys(("arm-1", "arm-2", "arm-3"), alike)),
        promises={"covered": COVERED_TOGETHER, "on all traffic": COVERED_TOGETHER},
        share=0.25,
    )


def _false_alarm_cases() -> Iterator[Case]:
    """A/A: arms that are the baseline under other names, and arms that draft without gain."""
    never = {"ship": NEVER, "ship-on-conditions": NEVER}
    claims = {"claims": FALSE_ALARMS, **never}
    any_gain = Goals(min_speedup=1.0)
    for named, names in (("1 arm", ("arm-1",)), ("3 arms", ("arm-1", "arm-2", "arm-3"))):
        same = StudyTruth(arms=dict.fromkeys(names, ArmTruth()))
        silent = replace(same, reports_drafts=False)
        in_vain = replace(same, arms=dict.fromkeys(names, DRAFTING))
        fewer = 1.0 / len(names)
        yield Case(name=f"A/A, {named}", truth=same, promises=claims, share=fewer)
        yield Case(
            name=f"A/A, {named}, --min-speedup 1",
            truth=same,
            promises=never,
            goals=any_gain,
            share=0.25 * fewer,
        )
        yield Case(
            name=f"A/A, {named}, --min-speedup 1, engine silent about drafts",
            truth=silent,
            promises=never,
            goals=any_gain,
            share=0.25 * fewer,
        )
        yield Case(name=f"drafts without gain, {named}", truth=in_vain, promises=claims, share=0.5 * fewer)
    yield Case(
        name="A/A, 1 arm, 3 loads",
        truth=StudyTruth(arms={"arm-1": ArmTruth()}),
        loads=THREE_LOADS,
        promises=claims,
        share=0.25,
    )
    at_the_bar = replace(DRAFTING, speedup=by_segment(copy=1.3, chat=1.3, code=1.3))
    yield Case(
        name="truth exactly at the bar",
        truth=StudyTruth(arms={"arm-1": at_the_bar}),
        promises={"ships": FALSE_ALARMS},
        share=0.25,
    )


def _aa_cases() -> Iterator[Case]:
    """Arms that draft without gain, on prompts more and less unlike, in designs a user would make."""
    for prompt_sd, temperatures in product((0.05, 0.2, 0.3), ("one", "by segment", "own")):
        truth = StudyTruth(arms={"arm-1": replace(DRAFTING, prompt_sd=prompt_sd)})
        designs = (("36 prompts, 3 launches", 36, 3), ("12 prompts, 1 launch", 12, 1))
        for named, prompts, launches in designs:
            where = f"A/A, prompt sd {prompt_sd:g}, temperatures {temperatures}, {named}"
            whole = Case(
                name=where,
                truth=truth if launches > 1 else replace(truth, launch_sd=0.0),
                promises={"ships": NEVER},
                prompts=prompts,
                launches=launches,
                temperatures=temperatures,
                # Six designs of each spread: together as many studies as asked for, twice.
                share=1 / 3,
            )
            yield whole
            yield replace(
                whole,
                name=f"{where}, --min-speedup 1",
                goals=Goals(min_speedup=1.0),
                promises={"ships": SHIPS_BY_CHANCE},
            )


def _power_cases() -> Iterator[Case]:
    def segments(**speedups: float) -> StudyTruth:
        return StudyTruth(arms={"arm-1": replace(DRAFTING, speedup=by_segment(**speedups))})

    mostly, right_part = (40.0, 100.0), {"wrong part": (0.0, 2.5)}
    on_copy = segments(copy=1.5, chat=0.9, code=0.9)
    per_load = StudyTruth(
        arms={"arm-1": replace(DRAFTING, speedup=by_load({1: 1.7, 4: 1.6, 16: 0.7}))},
    )
    several = (
        Case(
            name="1.5x everywhere",
            truth=segments(copy=1.5, chat=1.5, code=1.5),
            promises={"ship": (90.0, 100.0)},
        ),
        Case(
            name="1.5x on copy, 0.9x elsewhere, 72 prompts, 3 launches",
            truth=on_copy,
            promises={"ship-on-conditions": mostly, "segments copy": mostly, **right_part},
            prompts=72,
        ),
        Case(
            name="1.5x on copy, 0.9x elsewhere, 72 prompts, 5 launches",
            truth=on_copy,
            promises={"ship-on-conditions": (80.0, 100.0), "segments copy": (80.0, 100.0), **right_part},
            prompts=72,
            launches=5,
        ),
        Case(
            name="0.9x everywhere",
            truth=segments(copy=0.9, chat=0.9, code=0.9),
            promises={"do-not-ship": (90.0, 100.0)},
        ),
        Case(
            name="1.3x everywhere",
            truth=segments(copy=1.3, chat=1.3, code=1.3),
            promises={"inconclusive": (90.0, 100.0)},
        ),
        Case(
            name="1.7x at c=1, 1.6x at c=4, 0.7x at c=16",
            truth=per_load,
            loads=THREE_LOADS,
            promises={"ship-on-conditions": (90.0, 100.0), "max_concurrency 4": mostly, **right_part},
        ),
    )
    for case in several:
        yield replace(case, share=0.1)


def by_segment(**speedups: float) -> SpeedupOf:
    return lambda segment, _load, _temperature: speedups[segment]


def by_load(speedups: Mapping[int, float]) -> SpeedupOf:
    def speedup(_segment: str, load: Load, _temperature: float | None) -> float:
        return speedups[load.streams] if isinstance(load, Concurrency) else 1.0

    return speedup
