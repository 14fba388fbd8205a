"""Which launch is worth its time: promises, prices, what a grid would take, and what that allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tune_samples import DRAFT, LOADS, FormulaEngine, problem_of

from speclift.core.traffic import Load
from speclift.search.posterior import Posterior
from speclift.search.posterior import posterior_of as posterior_from
from speclift.search.problem import Purpose, SearchJob, Settings
from speclift.search.search import Search, start
from speclift.search.selection import (
    GAIN_SHARE,
    Doubt,
    best_probe,
    contested,
    doubts,
    expected_regret,
    grid_s,
    promises,
    race_entries,
)


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


@pytest.mark.slow
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


def test_scores_drawn_together_have_the_mean_and_spread_of_the_posterior(calibrated: Search) -> None:
    posterior = posterior_of(calibrated)
    drawn = posterior.draws(1, seed=3)
    row = posterior.best(1)
    assert float(drawn[:, row].mean()) == pytest.approx(posterior.mean[row, 1], abs=0.01)
    assert float(drawn[:, row].std()) == pytest.approx(posterior.sd(row, 1), rel=0.2)
    assert np.array_equal(drawn, posterior.draws(1, seed=3))


class TestRaceEntries:
    """Rows 0 to 6: the baseline and the draft at k 1, 2, 3, 4, 6, 8."""

    def entries(
        self,
        search: Search,
        *doubted: tuple[int, int, float, dict[int, float]],
        arms: int = 2,
        weights: tuple[float, ...] = (),
    ) -> dict[str, tuple[Load, ...]]:
        """Of doubts as (load's place, incumbent's row, regret, gain by row)."""
        posterior = posterior_of(search)
        problem = problem_of({"draft": DRAFT}, settings=Settings(race_arms=arms), weights=weights)
        found = []
        for place, incumbent, regret, gains in doubted:
            row_gains = np.array([gains.get(row, 0.0) for row in range(len(posterior.candidates))])
            found.append(Doubt(load=LOADS[place], incumbent=incumbent, regret=regret, gains=row_gains))
        names = [candidate.name for candidate in posterior.candidates]
        raced = race_entries(problem, posterior, found)
        assert set(raced) <= set(names)
        return {str(names.index(name)): loads for name, loads in raced.items()}

    def test_a_load_races_with_its_incumbent_and_the_rival_that_may_gain_most(
        self, calibrated: Search
    ) -> None:
        doubt = (1, 2, 0.01, {1: 0.002, 3: 0.004})
        assert self.entries(calibrated, doubt) == {"2": (LOADS[1],), "3": (LOADS[1],)}

    @pytest.mark.parametrize(("arms", "raced"), [(1, []), (2, [2, 3]), (3, [2, 3, 4]), (4, [2, 3, 4, 5])])
    def test_more_rivals_join_as_far_as_arms_may_race(
        self, calibrated: Search, arms: int, raced: list[int]
    ) -> None:
        doubt = (0, 2, 0.01, {3: 0.005, 4: 0.004, 5: 0.003, 6: 0.002})
        assert list(self.entries(calibrated, doubt, arms=arms)) == [str(row) for row in raced]

    @pytest.mark.parametrize(("share", "raced"), [(0.9 * GAIN_SHARE, 2), (1.1 * GAIN_SHARE, 3)])
    def test_a_rival_with_a_small_gain_beside_the_largest_is_left_out(
        self, calibrated: Search, share: float, raced: int
    ) -> None:
        assert len(self.entries(calibrated, (0, 2, 0.01, {3: 0.01, 4: 0.01 * share}), arms=7)) == raced

    @pytest.mark.parametrize(("weights", "raced"), [((), ["4", "5"]), ((20.0, 1.0, 1.0), ["2", "3"])])
    def test_the_load_that_loses_most_over_the_traffic_comes_first(
        self, calibrated: Search, weights: tuple[float, ...], raced: list[str]
    ) -> None:
        small, large = (0, 2, 0.01, {3: 0.005}), (1, 4, 0.02, {5: 0.005})
        padded = weights and (*weights, *[1.0] * (len(LOADS) - len(weights)))
        assert list(self.entries(calibrated, small, large, weights=padded)) == raced

    def test_arms_that_race_already_take_further_loads_along_in_the_loads_order(
        self, calibrated: Search
    ) -> None:
        first, second = (2, 2, 0.03, {3: 0.005}), (0, 3, 0.01, {2: 0.005})
        assert self.entries(calibrated, first, second) == {
            "2": (LOADS[0], LOADS[2]),
            "3": (LOADS[0], LOADS[2]),
        }


def test_only_loads_that_two_arms_share_are_contested() -> None:
    first, second, third = LOADS[:3]
    entries = {"a": (first, second), "b": (second,), "c": (third,)}
    assert contested(entries) == {"a": (second,), "b": (second,)}
    assert contested({"a": (first,)}) == contested({}) == {}
