"""Does the verdict keep its promises? Whole studies with known truth, from records to decision, counted.

    python benchmarks/studies.py [--studies 2000] [--seed 1] [--only NAME]

Records come from speclift.simulate; everything after them is the product's own code. Exits 1 where a share lies
outside the range promised for it by more than two standard errors. All of it takes about three minutes.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from zlib import crc32

import numpy as np

from speclift.core.arm import Arm, baseline_arm
from speclift.core.goals import Goals
from speclift.core.records import Place, Record
from speclift.core.results import ALL_TRAFFIC, Conditions, Decision, Evidence, Verdict
from speclift.core.speculation import NGram
from speclift.statistics.compare import Comparer, admits
from speclift.testing.simulated_study import simulate_study, true_speedup
from speclift.verdict.verdict import decide
from speclift.workload.experiment import StudyPlan, turns
from study_cases import Case, cases
from trials import SEGMENTS, dealt_requests, places_of, trial_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Percent of studies, with the standard error of a percentage of that many."""

    case: str
    studies: int
    percent: dict[str, float] = field(default_factory=dict)
    standard_error: dict[str, float] = field(default_factory=dict)
    half_width_percent: float = 0.0
    broken: list[str] = field(default_factory=list)


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
    requests = dealt_requests(case.prompts)
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
    places = places_of(
        (turn for index in range(plan.rounds) for turn in turns(plan, index)),
        requests,
        [arm.name for arm in everyone],
        temperatures=temperature_of,
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


def main() -> None:
    options = trial_options(str(__doc__), seed=1, studies=2000, only="")
    outcomes = []
    for case in cases():
        if options.only in case.name:
            outcomes.append(run(case, studies=options.studies, seed=options.seed))
            print(_line(outcomes[-1]), flush=True)
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
