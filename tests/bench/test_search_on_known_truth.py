"""The search loop on a runner whose truth is known and whose time is virtual: what it finds, drops and survives."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from samples import request
from speclift.bench.observer import Observer
from speclift.bench.search_plan import (
    SearchPlan,
    SearchTime,
    plan_search,
)
from speclift.bench.search_run import run_search
from speclift.bench.search_space import Wanted, space_of
from speclift.core.arm import Arm, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Load, Request, Workload
from speclift.engines.vllm.dialect.tables import SCHEDULE
from speclift.search.conclusion import choose, confirmed_loads
from speclift.search.counts import request_counts
from speclift.search.problem import CellResult, JobResult, SearchJob
from speclift.search.search import Search
from speclift.search.space import Axes
from speclift.testing.fake_truth import FakeRequest, Truth, script_for, true_tpot_s

TOKENS = 128
KS = (1, 2, 4, 6, 8)
ALONE = (Concurrency(streams=1),)


class TruthRunner:
    """Answers a job from the fake engine's truth, without a process and without waiting."""

    def __init__(self, truth: Truth, *, fails: Sequence[str] = ()) -> None:
        self.truth, self._fails = truth, set(fails)
        self.asked: list[str] = []
        self.expected: list[tuple[str, ...]] = []
        self.now_s = 0.0

    async def expect(self, jobs: Sequence[tuple[SearchJob, Arm]]) -> None:
        self.expected.append(tuple(arm.name for _, arm in jobs))

    async def run(self, job: SearchJob, arm: Arm, requests: Sequence[Request]) -> JobResult:
        self.asked.append(arm.name)
        if arm.name in self._fails:
            return JobResult(job=job, launch_s=1.0, failure="died: exit code 1")
        cells = tuple(self._cell(load, arm, requests) for load in job.loads)
        result = JobResult(job=job, cells=cells, launch_s=1.0)
        self.now_s += result.engine_s
        return result

    def _cell(self, load: Load, arm: Arm, requests: Sequence[Request]) -> CellResult:
        assert isinstance(load, Concurrency)
        truth = replace(self.truth, k=arm.k)
        counts, wall_s = [], 0.0
        for each in requests:
            script = script_for(truth, FakeRequest(prompt=each.prompt or "", max_tokens=TOKENS))
            decode_s = sum(
                script.burst_s(truth, burst, in_flight=load.streams) for burst in script.bursts[1:]
            )
            wall_s += decode_s / load.streams
            counts.append(
                request_counts(
                    each.id,
                    output_tokens=TOKENS,
                    steps=script.steps if arm.k else None,
                    tpot_s=decode_s / (TOKENS - 1),
                )
            )
        return CellResult(load=load, requests=tuple(counts), wall_s=wall_s)


def workload(count: int) -> Workload:
    requests = tuple(request(f"p{number}", max_tokens=TOKENS) for number in range(count))
    return Workload(requests=requests, sha256="", source="")


def planned(
    loads: tuple[Load, ...] = ALONE, *, ks: tuple[int, ...] = KS, budget_s: float | None = None
) -> SearchPlan:
    space = space_of([Wanted(template=NGram(), ks=ks)], Axes(drafters=()))
    return plan_search(
        space,
        workload(60),
        loads,
        spec=EngineSpec(kind="fake", settings=ServerSettings()),
        seed=0,
        time=SearchTime(budget_s=budget_s, gate_share=0.12, launch_s=0.5, is_quick=False),
        together=None,
    )


def searched(
    plan: SearchPlan,
    runner: TruthRunner,
    *,
    deadline_s: float | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Search:
    held = set(plan.tuning)
    requests = [each for each in workload(60).requests if each.id in held]
    return asyncio.run(
        run_search(plan.search, runner, requests, observer=Observer(), deadline_s=deadline_s, clock=clock)
    )


def rate(truth: Truth, k: int, streams: int = 1) -> float:
    return 1 / true_tpot_s(replace(truth, k=k), in_flight=streams, tokens=TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "truth",
    [
        Truth(acceptance=0.5, step_cost=0.1),
        Truth(acceptance=0.9, step_cost=0.03),
    ],
    ids=["short drafts pay", "long drafts pay"],
)
def test_the_arm_it_chooses_is_within_three_per_cent_of_the_best(truth: Truth) -> None:
    search = searched(planned(), TruthRunner(truth))
    choice = choose(
        search, can_run=lambda _: True, wants_same_method=True, sequences_max=64, schedule_key=SCHEDULE
    )
    best = max(rate(truth, k) for k in KS)
    assert rate(truth, choice.winner.k) > 0.97 * best
    assert choice.runner_up is not None
    assert choice.runner_up.k != choice.winner.k


@pytest.mark.slow
def test_an_arm_that_fails_is_dropped_with_its_reason_and_the_search_goes_on() -> None:
    runner = TruthRunner(Truth(acceptance=0.6, step_cost=0.1), fails=["ngram-k8"])
    search = searched(planned(), runner)
    failed = [each for each in search.eliminated if each.stage == "failed"]
    assert [(each.candidate, each.reason) for each in failed] == [("ngram-k8", "died: exit code 1")]
    choice = choose(
        search, can_run=lambda _: True, wants_same_method=True, sequences_max=64, schedule_key=SCHEDULE
    )
    assert choice.winner.name != "ngram-k8"
    assert runner.asked.count("ngram-k8") == 1


@pytest.mark.slow
def test_a_deadline_that_has_passed_ends_the_search_with_what_it_has() -> None:
    ticks = itertools.count()
    runner = TruthRunner(Truth(acceptance=0.6))
    search = searched(planned(), runner, deadline_s=0.5, clock=lambda: float(next(ticks)))
    # One run of every way of drafting there is in any case: without it nothing could be chosen.
    assert runner.asked == ["baseline", "ngram-k8"]
    assert not search.finished
    assert choose(
        search, can_run=lambda _: True, wants_same_method=True, sequences_max=64, schedule_key=SCHEDULE
    ).winner


def test_a_search_stays_within_its_part_of_the_budget() -> None:
    plan = planned(budget_s=40.0)
    runner = TruthRunner(Truth(acceptance=0.6, tpot_s=0.002))
    assert plan.search_s is not None
    assert plan.search_s < 0.5 * 40.0
    search = searched(plan, runner, deadline_s=plan.search_s, clock=lambda: runner.now_s)
    assert not search.finished  # with more time it would have asked for more
    assert len(search.results) >= 2
    assert search.spent_s <= plan.search_s


SWITCHING = Truth(acceptance=0.8, step_cost=0.05, batch_verify_cost=0.04, load_cost=0.1)


LOADS: tuple[Load, ...] = (Concurrency(streams=1), Concurrency(streams=16))


@pytest.fixture(scope="module")
def switching() -> Search:
    """A server on which long drafts pay alone and short ones in company."""
    return searched(planned(LOADS), TruthRunner(SWITCHING))


@pytest.mark.slow
def test_loads_with_different_best_k_give_a_schedule_with_both_sides_of_its_switch_to_measure(
    switching: Search,
) -> None:
    choice = choose(
        switching, can_run=lambda _: True, wants_same_method=True, sequences_max=256, schedule_key=SCHEDULE
    )
    assert choice.schedule is not None
    assert choice.scheduled is not None
    first, *_, last = choice.schedule.segments
    assert first.k > last.k
    assert last.end == 256
    assert [arm.name for arm in choice.arms[:3]] == ["baseline", "ngram-schedule", choice.winner.name]
    measured = confirmed_loads(LOADS, choice)
    assert {Concurrency(streams=batch) for batch in choice.schedule.thresholds} <= set(measured)
    assert set(LOADS) <= set(measured)


@pytest.mark.slow
def test_where_drafting_pays_alone_and_hurts_in_company_the_schedule_stops_drafting() -> None:
    truth = Truth(acceptance=0.8, step_cost=0.05, batch_verify_cost=0.15, load_cost=0.1)
    search = searched(planned(LOADS), TruthRunner(truth))
    choice = choose(
        search, can_run=lambda _: True, wants_same_method=True, sequences_max=256, schedule_key=SCHEDULE
    )
    assert choice.schedule is not None
    assert [segment.k > 0 for segment in choice.schedule.segments] == [True, False]
    assert choice.conclusion.schedule_gain > 0


@pytest.mark.slow
@pytest.mark.parametrize(("can_run", "key"), [(False, SCHEDULE), (True, None)])
def test_a_schedule_that_the_engine_cannot_run_is_kept_as_conditions_and_not_measured(
    switching: Search, can_run: bool, key: str | None
) -> None:
    choice = choose(
        switching, can_run=lambda _: can_run, wants_same_method=True, sequences_max=256, schedule_key=key
    )
    assert choice.schedule is not None
    assert choice.scheduled is None
    assert confirmed_loads(LOADS, choice) == LOADS
