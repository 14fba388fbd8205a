"""The articles' diagnostic of a tail that loses while the median wins: the same load with homogeneous traffic alone.

It runs after everything that decides, where there is time, in a study of its own inside the one it explains: none of
its records can enter the verdict. What it shows is a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.bench.observer import Observer
from speclift.bench.prepare import Bench
from speclift.bench.run import launches_took
from speclift.bench.study_paths import provide_texts
from speclift.bench.workplace import HERE, Workplace
from speclift.core.arm import BASELINE, Arm
from speclift.core.errors import EngineError
from speclift.core.records import Phase, Record
from speclift.core.results import ALL_TRAFFIC, TailRatio
from speclift.core.traffic import Concurrency, Load, Request, repeated_prompts
from speclift.core.units import Seconds
from speclift.statistics.bursts import mark_bursts
from speclift.statistics.cells import load_size
from speclift.statistics.compare import Comparer
from speclift.statistics.repeats import without_echoes
from speclift.statistics.slow_requests import DIAGNOSIS_CHECK, slower_tail, tail_diagnosis
from speclift.statistics.temperatures import TEMPERATURE_BUCKETS
from speclift.studies.study import Study, is_study
from speclift.workload.experiment import StudyPlan

DIAGNOSIS = "diagnosis"


@dataclass(frozen=True, slots=True, kw_only=True)
class Homogeneous:
    """The part of the traffic that is alike, and how it is called."""

    requests: tuple[Request, ...]
    temperatures: tuple[float | None, ...]
    words: str


def diagnose_tail(bench: Bench, observer: Observer, place: Workplace = HERE) -> None:
    """Nothing where no tail loses, all traffic is alike, there is no time, or it was done before."""
    study = bench.study
    if any(finding.check == DIAGNOSIS_CHECK for finding in study.findings()):
        return
    records = mark_bursts(study.records())
    found, alike = _losing(study, records), homogeneous(study.plan)
    if found is None or alike is None:
        return
    arm, tail = found
    load = tail.load or max((record.place.load for record in records), key=load_size)
    plan = _plan(study.plan, arm, load, alike, requests=_requests_at(records, load))
    if not bench.deadline.has(_takes_s(study, plan, records)):
        return
    observer.say(f"the slowest requests of {arm.name} are slower: the same load with {alike.words} alone")
    with _opened(study, plan, bench) as alone:
        try:
            place.run_study(alone, observer=observer, deadline=bench.deadline, workers=bench.ask.workers)
        except EngineError:
            return  # it explains and never decides, so the study stands as it is
        here = [record for record in records if record.place.load == load]
        finding = tail_diagnosis(here, mark_bursts(alone.records()), tail, traffic=alike.words)
    if finding is not None:
        study.add_finding(finding)
        observer.noticed(finding)


def homogeneous(plan: StudyPlan) -> Homogeneous | None:
    """The coldest traffic; where all has one temperature, the largest segment; None where that is all of it."""
    swept = sorted(temperature for temperature in plan.temperatures if temperature is not None)
    if len(swept) > 1:
        return Homogeneous(
            requests=plan.requests, temperatures=(swept[0],), words=f"temperature {swept[0]:g}"
        )
    for edge in TEMPERATURE_BUCKETS if not swept else ():
        cold = tuple(r for r in plan.requests if r.temperature is not None and r.temperature <= edge)
        if 0 < len(cold) < len(plan.requests):
            return Homogeneous(
                requests=cold, temperatures=plan.temperatures, words=f"temperature up to {edge:g}"
            )
    segments = [request.segment for request in plan.requests]
    largest = max(dict.fromkeys(segments), key=segments.count)
    own = tuple(request for request in plan.requests if request.segment == largest)
    if len(own) == len(plan.requests):
        return None
    return Homogeneous(requests=own, temperatures=plan.temperatures, words=f"segment {largest}")


def _losing(study: Study, records: Sequence[Record]) -> tuple[Arm, TailRatio] | None:
    """The fastest arm whose tail is shown to be slower, and that tail."""
    seen = {record.place.arm for record in records if record.place.phase is Phase.MEASURED}
    arms = [arm for arm in study.plan.arms if arm.speculates and arm.name in seen]
    comparer = Comparer(
        without_echoes(records, arms),
        metric=study.goals.metric,
        bar=study.goals.min_speedup,
        arm_count=max(1, len(arms)),
        by_temperature=False,
        prompt_of=repeated_prompts(study.plan.requests),
    )
    compared = [comparer.evidence(arm, ALL_TRAFFIC) for arm in arms]
    losing = [(each, tail) for each in compared if (tail := slower_tail(each)) is not None]
    if not losing:
        return None
    evidence, tail = max(losing, key=lambda pair: pair[0].overall.speedup.value if pair[0].overall else 0.0)
    return evidence.arm, tail


def _requests_at(records: Sequence[Record], load: Load) -> int:
    """As many as the baseline was sent there, by whatever launches."""
    own = [r for r in records if (r.place.arm, r.place.load) == (BASELINE, load)]
    return max(1, sum(record.place.phase is Phase.MEASURED for record in own))


def _plan(mixed: StudyPlan, arm: Arm, load: Load, alike: Homogeneous, *, requests: int) -> StudyPlan:
    return StudyPlan(
        arms=tuple(each for each in mixed.arms if each.name in (BASELINE, arm.name)),
        loads=(load,),
        requests=alike.requests,
        temperatures=alike.temperatures,
        rounds=1,
        together=mixed.together,
        seed=mixed.seed,
        # No more than one launch of the whole study would have been sent.
        request_count=min(requests, len(mixed.items)),
    )


def _takes_s(study: Study, plan: StudyPlan, records: Sequence[Record]) -> Seconds:
    """A launch of each arm, and its requests one after the other in as many streams, by what those before took."""
    (load,) = plan.loads
    took = [r.end_s - r.intended_s for r in records if r.place.load == load]
    each_s = sum(took) / len(took) / load.streams if isinstance(load, Concurrency) else 1.0 / load.per_s
    launching_s = max(launches_took(study), default=0.0)
    return len(plan.arms) * (launching_s + len(plan.items) * each_s)


def _opened(study: Study, plan: StudyPlan, bench: Bench) -> Study:
    path = study.path / DIAGNOSIS
    if is_study(path):
        alone = Study.open(path)
        provide_texts(alone, bench.ask)
        return alone
    return Study.create(
        path,
        plan=plan,
        engine=study.engine,
        goals=study.goals,
        provenance=study.provenance,
        keeps_text=study.keeps_text,
    )
