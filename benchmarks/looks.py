"""Does stopping early cost anything? Whole studies in laps, looked at after each, beside fixed ones on like prompts.

    python benchmarks/looks.py [--studies 200] [--seed 1] [--only NAME] [--prompts 96]

Records are drawn as in studies.py; laps, looks and verdicts are the product's own code. Of each truth: how many
requests the looks saved, whether the verdict is the fixed design's, how often either is wrong, whether the published
interval covers the truth, and the power of a fixed design of as many requests as the looks took on average.
Exits 1 where a promise is broken by more than two standard errors.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median
from zlib import crc32

import numpy as np

from speclift.core.arm import BASELINE, Arm, baseline_arm
from speclift.core.goals import Goals
from speclift.core.interim import EVERYTHING, LAST_LEVEL, InterimPlan, Wanted
from speclift.core.records import Place, Record
from speclift.core.results import ALL_TRAFFIC, CONFIDENCE, Decision, Evidence, Verdict
from speclift.core.speculation import NGram
from speclift.core.traffic import Load
from speclift.statistics.compare import Comparer, OneLook, admits
from speclift.testing.simulated_study import ArmTruth, StudyTruth, simulate_study, true_speedup
from speclift.verdict.interim import interim_decision
from speclift.verdict.rules import NO_PART_LOSES
from speclift.verdict.verdict import decide
from speclift.workload.experiment import StudyPlan, Turn, turns
from speclift.workload.laps import interim_plan_for, lap_turns, laps
from study_cases import DRAFTING, ONE_STREAM, THREE_LOADS, by_load, by_segment
from trials import dealt_requests, places_of, slack, trial_options

ARM = Arm(name="arm-1", speculation=NGram(k=4))
LAUNCHES = 3
SHIPS = (Decision.SHIP, Decision.SHIP_ON_CONDITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    name: str
    arm: ArmTruth
    loads: tuple[Load, ...] = ONE_STREAM
    launch_sd: float = 0.02
    is_in_mix: bool = True


def truths() -> Iterator[Truth]:
    yield Truth(name="A/A", arm=ArmTruth())
    yield Truth(name="A/A that drafts without gain", arm=DRAFTING)
    for speedup in (0.9, 1.2, 1.5, 2.0):
        yield Truth(name=f"{speedup:g}x", arm=_flat(speedup))
    gains = by_segment(copy=2.0, chat=0.9, code=0.9)
    yield Truth(name="2x on one segment, 0.9x on two", arm=replace(DRAFTING, speedup=gains))
    gains = by_load({1: 1.8, 4: 1.1, 16: 0.8})
    yield Truth(name="1.8x, 1.1x, 0.8x by load", arm=replace(DRAFTING, speedup=gains), loads=THREE_LOADS)
    for launch_sd in (0.0, 0.04):
        name = f"A/A, server starts differ by {launch_sd:.0%}"
        yield Truth(name=name, arm=DRAFTING, launch_sd=launch_sd, is_in_mix=False)
    yield Truth(name="1.5x, server starts differ by 4 %", arm=_flat(1.5), launch_sd=0.04, is_in_mix=False)


def _flat(speedup: float) -> ArmTruth:
    return replace(DRAFTING, speedup=by_segment(copy=speedup, chat=speedup, code=speedup))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One study, in laps and fixed."""

    share: float
    agrees: bool
    is_wrong: bool
    is_wrong_fixed: bool
    covers: bool
    claims: bool
    ships: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    truth: str
    studies: int
    share_median: float
    share_mean: float
    share_max: float
    agree_percent: float
    wrong_percent: float
    wrong_fixed_percent: float
    covered_percent: float
    claims_percent: float
    ships_percent: float
    ships_fixed_alike_percent: float


class Simulated:
    def __init__(self, truth: Truth, prompts: int, looks: InterimPlan) -> None:
        self.truth, self.prompts = truth, prompts
        self.plan = StudyPlan(
            arms=(baseline_arm(), ARM),
            loads=truth.loads,
            requests=dealt_requests(prompts),
            temperatures=(None,),
            rounds=LAUNCHES,
            together=True,
            seed=0,
            looks=looks,
        )
        self._counts = Counter(request.segment for request in self.plan.requests)
        self._study = StudyTruth(arms={ARM.name: truth.arm}, launch_sd=truth.launch_sd)
        self._fixed = self._places([turn for index in range(LAUNCHES) for turn in turns(self.plan, index)])
        everything: Wanted = {ARM.name: (EVERYTHING,)}
        self._laps = [
            self._places(lap_turns(self.plan, lap, everything), launch_from=1000)
            for lap in laps(self.plan, range(len(looks.sizes)))
        ]

    def _places(self, several: Sequence[Turn], launch_from: int = 0) -> tuple[Place, ...]:
        return places_of(several, self.plan.requests, (BASELINE, ARM.name), launch_from=launch_from)

    def run(self, random: np.random.Generator) -> Outcome:
        """Both designs meet the same prompts; their launches and their noise are their own."""
        sent = [self._fixed, *self._laps]
        drawn = simulate_study([place for each in sent for place in each], self._study, random)
        cuts = np.cumsum([len(each) for each in sent])
        fixed, *parts = (drawn[end - len(each) : end] for end, each in zip(cuts.tolist(), sent, strict=True))
        of_fixed, _ = self.judged(fixed, CONFIDENCE, in_laps=False)
        verdict, on_all, measured = self._sequence(parts)
        overall = on_all.overall
        assert overall is not None
        bounds = overall.simultaneous
        return Outcome(
            share=measured / len(fixed),
            agrees=verdict.decision is of_fixed.decision,
            is_wrong=self._is_wrong(verdict),
            is_wrong_fixed=self._is_wrong(of_fixed),
            covers=bounds.low <= self._true(on_all) <= bounds.high,
            claims=bounds.excludes(1.0),
            ships=verdict.decision in SHIPS,
        )

    def fixed_ships(self, random: np.random.Generator) -> bool:
        drawn = simulate_study(self._fixed, self._study, random)
        return self.judged(drawn, CONFIDENCE, in_laps=False)[0].decision in SHIPS

    def _sequence(self, parts: Sequence[Sequence[Record]]) -> tuple[Verdict, Evidence, int]:
        looks = self.plan.looks
        assert looks is not None
        have: list[Record] = []
        wanted: Wanted = {ARM.name: (EVERYTHING,)}
        for number, part in enumerate(parts):
            scopes = wanted[ARM.name]
            have += [
                record
                for record in part
                if any(s.admits(record.place.segment, record.place.load, None) for s in scopes)
            ]
            verdict, on_all = self.judged(have, looks.level(number), in_laps=True)
            look = interim_decision(
                verdict, [on_all], self.goals, may_ship=number > 0, faster_at_most=lambda _arm, _other: 1.0
            )
            if look.is_settled:
                return verdict, on_all, len(have)
            wanted = look.wanted
        verdict, on_all = self.judged(have, LAST_LEVEL, in_laps=True)
        return verdict, on_all, len(have)

    goals = Goals()

    def judged(self, records: Sequence[Record], level: float, *, in_laps: bool) -> tuple[Verdict, Evidence]:
        comparer = Comparer(
            records,
            metric=self.goals.metric,
            bar=self.goals.min_speedup,
            arm_count=1,
            by_temperature=False,
            look=OneLook(level=level, prompt_counts=self._counts) if in_laps else None,
        )
        evidence_for = cache(comparer.evidence)
        return decide([ARM], evidence_for, goals=self.goals), evidence_for(ARM, ALL_TRAFFIC)

    def _true(self, evidence: Evidence) -> float:
        admitted = [place for place in self._fixed if admits(evidence.conditions, place)]
        return true_speedup(admitted, self._study, ARM.name)

    def _is_wrong(self, verdict: Verdict) -> bool:
        """Ships where the truth is under the bar or a part loses, or says not to where the truth is above it."""
        if verdict.evidence is None:
            return False
        true = self._true(verdict.evidence)
        if verdict.decision in SHIPS:
            parts = (
                true_speedup([place], self._study, ARM.name)
                for place in self._fixed
                if admits(verdict.evidence.conditions, place)
            )
            return true < self.goals.min_speedup or min(parts) < NO_PART_LOSES
        return verdict.decision is Decision.DO_NOT_SHIP and true >= self.goals.min_speedup


def run(
    truth: Truth, *, studies: int, seed: int, prompts: int, looks: InterimPlan
) -> tuple[Row, list[Outcome]]:
    seeds = np.random.SeedSequence([seed, crc32(truth.name.encode())]).spawn(2 * studies)
    simulated = Simulated(truth, prompts, looks)
    found = [simulated.run(np.random.default_rng(child)) for child in seeds[:studies]]
    mean = fmean(one.share for one in found)
    alike = Simulated(truth, max(3, round(prompts * mean)), looks)
    ships_alike = fmean(alike.fixed_ships(np.random.default_rng(child)) for child in seeds[studies:])

    def percent(name: str) -> float:
        return 100 * fmean(getattr(one, name) for one in found)

    row = Row(
        truth=truth.name,
        studies=studies,
        share_median=median(one.share for one in found),
        share_mean=mean,
        share_max=max(one.share for one in found),
        agree_percent=percent("agrees"),
        wrong_percent=percent("is_wrong"),
        wrong_fixed_percent=percent("is_wrong_fixed"),
        covered_percent=percent("covers"),
        claims_percent=percent("claims"),
        ships_percent=percent("ships"),
        ships_fixed_alike_percent=100 * ships_alike,
    )
    return row, found


def broken_promises(rows: Sequence[Row], mix: Sequence[Outcome]) -> Iterator[str]:
    if median(one.share for one in mix) > 1 / 3:
        yield "over a third of the requests in the median"
    if max(one.share for one in mix) > 1.1:
        yield "more than 1.1 times the requests"
    if 100 * fmean(one.agrees for one in mix) < 95 - slack(95, len(mix)):
        yield "agrees with the fixed design in less than 95 %"
    if (
        fmean(one.is_wrong for one in mix)
        > fmean(one.is_wrong_fixed for one in mix) + slack(1, len(mix)) / 100
    ):
        yield "wrong more often than the fixed design"
    for row in rows:
        if row.covered_percent < 93 - slack(93, row.studies):
            yield f"{row.truth}: covered in {row.covered_percent:.1f} %"
        if row.truth.startswith("A/A") and row.claims_percent > 5 + slack(5, row.studies):
            yield f"{row.truth}: called different in {row.claims_percent:.1f} %"
        if row.ships_percent < row.ships_fixed_alike_percent - slack(row.ships_percent, row.studies) - 1:
            yield f"{row.truth}: less power than a fixed design of as many requests"


def main() -> None:
    options = trial_options(str(__doc__), seed=1, studies=200, only="", prompts=96)
    looks = interim_plan_for(LAUNCHES, together=True)
    assert looks is not None
    rows, mix = [], []
    for truth in truths():
        if options.only not in truth.name:
            continue
        row, found = run(
            truth, studies=options.studies, seed=options.seed, prompts=options.prompts, looks=looks
        )
        rows.append(row)
        mix += found if truth.is_in_mix else []
        print(_line(row), flush=True)
    broken = list(broken_promises(rows, mix)) if mix else []
    if mix:
        print(
            f"the mix: {median(one.share for one in mix):.2f} of the requests in the median, "
            f"agrees in {100 * fmean(one.agrees for one in mix):.1f} %, wrong in "
            f"{100 * fmean(one.is_wrong for one in mix):.2f} % "
            f"(fixed {100 * fmean(one.is_wrong_fixed for one in mix):.2f} %)"
        )
        print("\n".join(f"BROKEN {promise}" for promise in broken))
    sys.exit(1 if broken else 0)


def _line(row: Row) -> str:
    return (
        f"{row.truth:36s} requests {row.share_median:.2f} ({row.share_mean:.2f}, at most {row.share_max:.2f})"
        f"  agrees {row.agree_percent:5.1f}  wrong {row.wrong_percent:.1f} (fixed {row.wrong_fixed_percent:.1f})"
        f"  covered {row.covered_percent:5.1f}  differs {row.claims_percent:5.1f}"
        f"  ships {row.ships_percent:5.1f} (fixed, as many {row.ships_fixed_alike_percent:.1f})"
    )


if __name__ == "__main__":
    main()
