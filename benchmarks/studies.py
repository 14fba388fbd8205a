"""Does the verdict keep its promises? Whole studies with known truth, from records to decision, counted.

    python benchmarks/studies.py [--studies 2000] [--seed 1] [--only NAME] [--json]

Records come from speclift.simulate; everything after them is the product's own code. Exits 1 where a share lies
outside the range promised for it by more than two standard errors. All of it takes about three minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import product
from zlib import crc32

import numpy as np

from speclift.analyse.compare import Comparer, admits
from speclift.core.arm import Arm, baseline_arm
from speclift.core.goals import Goals
from speclift.core.records import Place, Record
from speclift.core.results import ALL_TRAFFIC, Conditions, Decision, Evidence, Verdict
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Load, Request
from speclift.decide.verdict import decide
from speclift.plan.experiment import StudyPlan, turns
from speclift.simulate.study import ArmTruth, SpeedupOf, StudyTruth, simulate_study, true_speedup

SEGMENTS = ("copy", "chat", "code")
ONE_STREAM = (Concurrency(streams=1),)
THREE_LOADS = tuple(Concurrency(streams=streams) for streams in (1, 4, 16))
DRAFTING = ArmTruth(prompt_sd=0.15, drafted_per_step=4, acceptance=0.6)
COVERED = (93.0, 97.0)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Percent of studies, with the standard error of a percentage of that many."""

    case: str
    studies: int
    percent: dict[str, float] = field(default_factory=dict)
    standard_error: dict[str, float] = field(default_factory=dict)
    half_width_percent: float = 0.0
    broken: list[str] = field(default_factory=list)


def cases() -> Iterator[Case]:
    yield from _coverage_cases()
    yield from _false_alarm_cases()
    yield from _aa_cases()
    yield from _power_cases()


def _coverage_cases() -> Iterator[Case]:
    arm = replace(DRAFTING, speedup=_by_segment(copy=1.6, chat=0.95, code=1.2))
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
    by_load = replace(DRAFTING, speedup=_by_load({1: 1.5, 4: 1.2, 16: 0.8}))
    yield Case(
        name="coverage, 1 arm, 3 loads",
        truth=StudyTruth(arms={"arm-1": by_load}),
        loads=THREE_LOADS,
        promises={"on all traffic": COVERED},
        share=0.25,
    )
    alike = replace(DRAFTING, speedup=_by_segment(copy=1.5, chat=1.3, code=1.1))
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
    at_the_bar = replace(DRAFTING, speedup=_by_segment(copy=1.3, chat=1.3, code=1.3))
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
        return StudyTruth(arms={"arm-1": replace(DRAFTING, speedup=_by_segment(**speedups))})

    mostly, right_part = (50.0, 100.0), {"wrong part": (0.0, 2.5)}
    on_copy = segments(copy=1.5, chat=0.9, code=0.9)
    by_load = StudyTruth(
        arms={"arm-1": replace(DRAFTING, speedup=_by_load({1: 1.7, 4: 1.6, 16: 0.7}))},
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
            promises={"ship-on-conditions": (90.0, 100.0), "segments copy": (90.0, 100.0), **right_part},
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
            truth=by_load,
            loads=THREE_LOADS,
            promises={"ship-on-conditions": (90.0, 100.0), "max_concurrency 4": mostly, **right_part},
        ),
    )
    for case in several:
        yield replace(case, share=0.1)


def run(case: Case, *, studies: int, seed: int) -> Outcome:
    count = max(1, round(studies * case.share))
    arms, places = design(case)

    @cache
    def truth_within(arm: str, conditions: Conditions) -> float:
        return true_speedup([p for p in places if admits(conditions, p)], case.truth, arm)

    seen: Counter[str] = Counter()
    half_widths = []
    # Cases must not share their luck.
    for child in np.random.SeedSequence([seed, crc32(case.name.encode())]).spawn(count):
        records = simulate_study(places, case.truth, np.random.default_rng(child))
        verdict, on_all = judged(records, arms, case.goals)
        seen.update(_observed(verdict, on_all, lambda e: truth_within(e.arm.name, e.conditions), case.goals))
        half_widths += [_half_width_percent(evidence) for evidence in on_all]
    percent = {name: 100 * seen[name] / count for name in sorted({*seen, *case.promises})}
    errors = {name: math.sqrt(share * (100 - share) / count) for name, share in percent.items()}
    return Outcome(
        case=case.name,
        studies=count,
        percent=percent,
        standard_error=errors,
        half_width_percent=float(np.mean(half_widths)),
        broken=[
            f"{name}: {percent[name]:.1f} outside {low:g}-{high:g}"
            for name, (low, high) in case.promises.items()
            if _is_outside(percent[name], errors[name], low=low, high=high)
        ],
    )


def _is_outside(share: float, error: float, *, low: float, high: float) -> bool:
    """By more than chance: two standard errors. Never means never."""
    slack = 0.0 if low == high else 2 * error
    return not low - slack <= share <= high + slack


def judged(records: Sequence[Record], arms: Sequence[Arm], goals: Goals) -> tuple[Verdict, list[Evidence]]:
    comparer = Comparer(
        records, metric=goals.metric, bar=goals.min_speedup, arm_count=len(arms), by_temperature=False
    )
    evidence_for = cache(comparer.evidence)
    verdict = decide(arms, evidence_for, goals=goals)
    return verdict, [evidence_for(arm, ALL_TRAFFIC) for arm in arms]


def _half_width_percent(evidence: Evidence) -> float:
    if evidence.overall is None:
        return math.inf
    bounds = evidence.overall.simultaneous
    return 50 * math.log(bounds.high / bounds.low)


def design(case: Case) -> tuple[list[Arm], tuple[Place, ...]]:
    """The arms and every place of the study in the order the product would measure it."""
    arms = [Arm(name=name, speculation=NGram(k=4)) for name in case.truth.arms]
    everyone = (baseline_arm(), *arms)
    requests = tuple(
        Request(id=f"p{number}", segment=SEGMENTS[number % len(SEGMENTS)], prompt="")
        for number in range(case.prompts)
    )
    temperature_of = {
        request.id: {
            "one": None,
            "by segment": 0.5 * SEGMENTS.index(request.segment),
            "own": round(number / case.prompts, 3),
        }[case.temperatures]
        for number, request in enumerate(requests)
    }
    plan = StudyPlan(
        arms=everyone,
        loads=case.loads,
        requests=requests,
        temperatures=(None,),
        rounds=case.launches,
        together=True,
        seed=0,
    )
    segment_of = {request.id: request.segment for request in requests}
    number_of = {arm.name: number for number, arm in enumerate(everyone)}
    places = tuple(
        Place(
            arm=turn.arm,
            launch=turn.round * len(everyone) + number_of[turn.arm],
            round=turn.round,
            block=turn.block,
            load=turn.load,
            request_id=item.request_id,
            segment=segment_of[item.request_id],
            temperature=temperature_of[item.request_id],
        )
        for round_index in range(plan.rounds)
        for turn in turns(plan, round_index)
        for item in turn.items
    )
    return arms, places


def _observed(
    verdict: Verdict, on_all: Sequence[Evidence], truth_of: Callable[[Evidence], float], goals: Goals
) -> Iterator[str]:
    """What one study shows. `covered` is the interval the verdict publishes, on the winner's scope; `on all traffic`
    are those of every arm at once."""
    yield verdict.decision.value
    if verdict.decision in (Decision.SHIP, Decision.SHIP_ON_CONDITIONS):
        yield "ships"
    published = verdict.evidence
    if published is None or published.overall is None:
        return
    bounds = published.overall.simultaneous
    if _covers(published, truth_of(published)):
        yield "covered"
    if all(_covers(evidence, truth_of(evidence)) for evidence in on_all):
        yield "on all traffic"
    if bounds.excludes(1.0) or any(part.simultaneous.excludes(1.0) for part in published.parts):
        yield "claims"
    if verdict.conditions is not None:
        if truth_of(published) < goals.min_speedup:
            yield "wrong part"
        if verdict.conditions.segments is not None:
            yield f"segments {' '.join(sorted(verdict.conditions.segments))}"
        if verdict.conditions.max_concurrency is not None:
            yield f"max_concurrency {verdict.conditions.max_concurrency}"


def _covers(evidence: Evidence, truth: float) -> bool:
    if evidence.overall is None:
        return False
    return evidence.overall.simultaneous.low <= truth <= evidence.overall.simultaneous.high


def _by_segment(**speedups: float) -> SpeedupOf:
    return lambda segment, _load, _temperature: speedups[segment]


def _by_load(speedups: Mapping[int, float]) -> SpeedupOf:
    def speedup(_segment: str, load: Load, _temperature: float | None) -> float:
        return speedups[load.streams] if isinstance(load, Concurrency) else 1.0

    return speedup


def main() -> None:
    parser = argparse.ArgumentParser(description="The verdict on simulated studies with known truth.")
    parser.add_argument(
        "--studies",
        type=int,
        default=2000,
        help="simulated studies per case; most cases take a share of them",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    options = parser.parse_args()
    outcomes = []
    for case in cases():
        if options.only in case.name:
            outcomes.append(run(case, studies=options.studies, seed=options.seed))
            if not options.json:
                print(_line(outcomes[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    sys.exit(any(outcome.broken for outcome in outcomes))


def _line(outcome: Outcome) -> str:
    shares = ", ".join(f"{name} {value:.1f}" for name, value in outcome.percent.items() if value)
    broken = f"\n    BROKEN {'; '.join(outcome.broken)}" if outcome.broken else ""
    return (
        f"{outcome.case} ({outcome.studies} studies, half-width {outcome.half_width_percent:.1f} %)\n"
        f"    % of studies: {shares}{broken}"
    )


if __name__ == "__main__":
    main()
