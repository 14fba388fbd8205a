"""Which launch is worth its time: promises, prices, what a grid would take, and what that allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tune_samples import DRAFT, LOADS, FormulaEngine, problem_of

from speclift.core.traffic import Load, load_label
from speclift.search.counts import RequestCounts
from speclift.search.effort import (
    CALIBRATIONS,
    GRID_REQUESTS_MIN,
    allowed_s,
    cell_s,
    grid_s,
    job_s,
    launch_s,
    left_s,
)
from speclift.search.posterior import Posterior
from speclift.search.posterior import posterior_of as posterior_from
from speclift.search.problem import CellResult, JobResult, Problem, Purpose, SearchJob, Settings
from speclift.search.search import Search, start
from speclift.search.selection import best_probe, doubts, expected_regret, promises


@pytest.fixture(scope="module")
def calibrated() -> Search:
    search, engine = start(problem_of({"draft": DRAFT})), FormulaEngine()
    for job in search.ask():
        search = search.tell(engine.run(search.problem, job))
    return search


def posterior_of(search: Search) -> Posterior:
    posterior = search.posterior()
    assert posterior is not None
    return posterior


def test_a_promise_is_never_negative_and_largest_among_the_arms_that_may_win(calibrated: Search) -> None:
    posterior = posterior_of(calibrated)
    for column in range(len(LOADS)):
        found = promises(posterior, column, frozenset())
        far = int(posterior.mean[:, column].argmin())
        assert found.min() >= 0
        assert found.max() > 0
        assert found[far] < found.max() / 10


def test_a_dropped_arm_promises_nothing_where_it_was_dropped(calibrated: Search) -> None:
    posterior = posterior_of(calibrated)
    best = posterior.best(0)
    name = posterior.candidates[best].name
    here = frozenset({(name, load_label(LOADS[0]))})
    assert promises(posterior, 0, here)[best] == 0
    assert promises(posterior, posterior.loads.index(LOADS[1]), here).max() > 0
    assert posterior.best(0, here) != best


def test_with_every_other_arm_dropped_nothing_is_promised_and_the_last_one_stands(calibrated: Search) -> None:
    posterior = posterior_of(calibrated)
    others = frozenset((each.name, None) for each in posterior.candidates[1:])
    assert promises(posterior, 0, others).max() == 0
    assert posterior.best(0, others) == 0
    everything = others | {(posterior.candidates[0].name, None)}
    assert posterior.candidates[posterior.best(0, everything)].is_baseline


def loads_probed(search: Search, price: float) -> int:
    seconds = dict.fromkeys(LOADS, 10.0)
    found = best_probe(
        search.problem, posterior_of(search), frozenset(), launch_s=30.0, cell_s=seconds, price=price
    )
    return 0 if found is None else len(found.loads)


def test_the_dearer_time_is_the_fewer_loads_are_probed_and_at_last_none(calibrated: Search) -> None:
    loads = [loads_probed(calibrated, price) for price in (1e-12, 2e-5, 1.0)]
    assert loads[0] > 1
    assert loads[0] >= loads[1] >= loads[2] == 0


def test_what_is_within_reach_of_the_best_anyway_is_not_worth_a_launch(calibrated: Search) -> None:
    posterior = posterior_of(calibrated)
    saved = [promises(posterior, 0, frozenset(), near=near).max() for near in (0.0, 0.02, 0.5)]
    assert saved[0] > 0
    assert saved[2] == 0
    assert saved[1] <= saved[0]


def test_a_probe_keeps_to_the_time_left_and_takes_the_loads_that_pay_best(calibrated: Search) -> None:
    def probe(left_s: float) -> tuple[Load, ...]:
        found = best_probe(
            calibrated.problem,
            posterior_of(calibrated),
            frozenset(),
            launch_s=30.0,
            cell_s=dict.fromkeys(LOADS, 10.0),
            price=1e-12,
            left_s=left_s,
        )
        return () if found is None else found.loads

    assert [len(probe(left_s)) for left_s in (35.0, 45.0, 55.0)] == [0, 1, 2]
    assert len(probe(math.inf)) > 2


def test_expected_regret_falls_as_more_is_measured(calibrated: Search) -> None:
    def regret(search: Search) -> float:
        return expected_regret(search.problem, doubts(search.problem, posterior_of(search), frozenset()))

    search, engine = calibrated, FormulaEngine(seed=0)
    before = regret(search)
    for _ in range(4):
        if search.finished:
            break
        search = search.tell(engine.run(search.problem, search.ask()[0]))
    assert len(search.results) > len(calibrated.results)
    assert regret(search) < before


def test_before_anything_ran_times_are_the_guesses() -> None:
    problem = problem_of(settings=Settings(launch_s_guess=7.0, cell_s_guess=2.0))
    assert launch_s(problem, ()) == 7.0
    assert job_s(problem, (), LOADS[:2]) == 11.0
    assert grid_s(problem, ()) == 3 * len(problem.candidates) * (7.0 + 2.0 * len(LOADS))
    assert allowed_s(problem, ()) == pytest.approx(problem.settings.grid_share * grid_s(problem, ()))


def test_a_grid_is_made_of_arms_as_slow_as_they_are_and_not_of_those_that_were_worth_a_launch() -> None:
    engine = FormulaEngine(launch_s=1.0)
    problem = problem_of()
    jobs = [
        SearchJob(
            id=number, candidate=candidate.name, loads=LOADS, purpose=Purpose.PROBE, reason="all of them"
        )
        for number, candidate in enumerate(problem.candidates)
    ]
    everything = tuple(engine.run(problem, job) for job in jobs)
    took = math.fsum(result.engine_s for result in everything)
    fast = [result for result in everything if result.job.candidate in {"draft-k2", "draft-k3"}]
    known = posterior_from(problem, everything)
    assert grid_s(problem, fast) < 0.95 * 3 * took
    assert grid_s(problem, fast, known) == pytest.approx(3 * took, rel=0.03)


def test_a_grid_sends_more_requests_than_a_small_cell_and_warms_up_as_long() -> None:
    problem = problem_of(loads=LOADS[:1])
    request = RequestCounts(request_id="r", tokens=100, steps=100, without_draft=100, tpot_s=0.01)
    cell = CellResult(load=LOADS[0], requests=(request,) * (GRID_REQUESTS_MIN // 2), wall_s=15.0)
    job = SearchJob(id=1, candidate="baseline", loads=LOADS[:1], purpose=Purpose.BASELINE, reason="small")
    ran = [JobResult(job=job, cells=(cell,), launch_s=30.0)]
    # 12 requests of 1 s each and 3 s that are not decoding.
    assert grid_s(problem, ran) == pytest.approx(3 * len(problem.candidates) * (30.0 + 3.0 + 24.0))


def test_a_load_that_never_ran_is_taken_to_last_as_long_as_the_nearest_that_did(calibrated: Search) -> None:
    problem: Problem = calibrated.problem
    seen = {cell.load for result in calibrated.results for cell in result.cells}
    (unseen,) = set(LOADS) - seen
    neighbours = [LOADS[LOADS.index(unseen) - 1], LOADS[LOADS.index(unseen) + 1]]
    assert cell_s(problem, calibrated.results, unseen) in {
        cell_s(problem, calibrated.results, load) for load in neighbours
    }


def test_a_small_space_may_spend_a_few_times_its_calibration(calibrated: Search) -> None:
    problem = problem_of({"draft": DRAFT}, settings=Settings(grid_share=1e-6))
    spent = math.fsum(result.engine_s for result in calibrated.results)
    assert allowed_s(problem, calibrated.results) == pytest.approx(CALIBRATIONS * spent)
    assert left_s(problem, calibrated.results) == pytest.approx((CALIBRATIONS - 1) * spent)
    short = problem_of({"draft": DRAFT}, settings=Settings(budget_s=spent + 9.0, reserve_s=4.0))
    assert left_s(short, calibrated.results) == pytest.approx(5.0)


def test_scores_drawn_together_have_the_mean_and_spread_of_the_posterior(calibrated: Search) -> None:
    posterior = posterior_of(calibrated)
    drawn = posterior.draws(1, seed=3)
    row = posterior.best(1)
    assert float(drawn[:, row].mean()) == pytest.approx(posterior.mean[row, 1], abs=0.01)
    assert float(drawn[:, row].std()) == pytest.approx(posterior.sd(row, 1), rel=0.2)
    assert np.array_equal(drawn, posterior.draws(1, seed=3))
