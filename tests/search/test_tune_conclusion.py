"""What a search says in the end, at any time: choices, cells, the static arm, a schedule, its own errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tune_samples import DRAFT, HEAD, FormulaEngine, finish, plain_step_s, problem_of

from speclift.search.conclusion import conclude, prediction_errors
from speclift.search.problem import Purpose, Settings
from speclift.search.search import Search, start
from speclift.search.space import Candidate


@pytest.fixture(scope="module")
def finished() -> Search:
    return finish(start(problem_of()), FormulaEngine())


@pytest.mark.slow
def test_cells_tell_measured_from_predicted_and_compare_with_the_baseline(finished: Search) -> None:
    conclusion = conclude(finished)
    assert conclusion is not None
    measured = {(cell.candidate, cell.load) for cell in conclusion.cells if cell.is_measured}
    ran = {(result.job.candidate, cell.load) for result in finished.results for cell in result.cells}
    assert measured == ran
    for cell in conclusion.cells:
        assert cell.rate.low < cell.rate.value < cell.rate.high
        if cell.candidate == "baseline":
            assert cell.speedup == pytest.approx(1.0)


def test_a_rates_interval_is_the_middle_95_percent_of_what_the_search_draws(finished: Search) -> None:
    """Drawn scores are the search's own idea of what may be true; the interval has to hold 95 % of them."""
    conclusion, posterior = conclude(finished), finished.posterior()
    assert conclusion is not None
    assert posterior is not None
    for cell in conclusion.cells:
        row, column = posterior.row(cell.candidate), posterior.loads.index(cell.load)
        drawn = np.concatenate([np.exp(posterior.draws(column, seed)[:, row]) for seed in range(10)])
        inside = np.mean((drawn > cell.rate.low) & (drawn < cell.rate.high))
        assert inside == pytest.approx(0.95, abs=0.015)
        assert cell.rate.value**2 == pytest.approx(cell.rate.low * cell.rate.high)


def test_measured_rates_and_speedups_are_those_of_the_engine(finished: Search) -> None:
    engine, conclusion = FormulaEngine(), conclude(finished)
    assert conclusion is not None
    for cell in conclusion.cells:
        if cell.is_measured:
            true = engine.true_rate(finished.problem.candidate(cell.candidate), cell.load)
            assert cell.rate.value == pytest.approx(true, rel=0.03)


def test_regret_is_small_where_a_choice_was_settled_and_never_negative(finished: Search) -> None:
    conclusion = conclude(finished)
    assert conclusion is not None
    assert all(0 <= choice.regret < 0.02 for choice in conclusion.choices)
    shares = [finished.problem.share(choice.load) for choice in conclusion.choices]
    regrets = [choice.regret for choice in conclusion.choices]
    assert conclusion.expected_regret == pytest.approx(float(np.dot(shares, regrets)))


def test_what_was_eliminated_is_never_chosen(finished: Search) -> None:
    conclusion = conclude(finished)
    assert conclusion is not None
    out = {each.candidate for each in conclusion.eliminated if each.load is None}
    assert not out & {conclusion.static, *(choice.candidate for choice in conclusion.choices)}


def test_a_schedule_drafts_less_at_large_batches_and_beats_the_static_arm(finished: Search) -> None:
    conclusion = conclude(finished)
    assert conclusion is not None
    assert conclusion.schedule is not None
    ks = [segment.k for segment in conclusion.schedule.segments]
    assert ks == sorted(ks, reverse=True)
    assert len(ks) > 1
    assert conclusion.schedule_gain > 0


def test_where_one_k_is_best_everywhere_there_is_no_schedule() -> None:
    def free(candidate: Candidate, batch: int) -> float:
        return 0.01 + 0.00001 * candidate.k + (0.0002 if candidate.k else 0.0)

    search = finish(start(problem_of({"draft": DRAFT}, ks=(1, 8))), FormulaEngine(step_s=free))
    conclusion = conclude(search)
    assert conclusion is not None
    assert (conclusion.static, conclusion.schedule, conclusion.schedule_gain) == ("draft-k8", None, 0.0)


def test_where_nothing_pays_the_baseline_is_chosen_everywhere() -> None:
    def hopeless(candidate: Candidate, batch: int) -> float:
        return plain_step_s(candidate, batch) * (8.0 if candidate.k else 1.0)

    search = finish(start(problem_of({"eagle": HEAD})), FormulaEngine(step_s=hopeless))
    conclusion = conclude(search)
    assert conclusion is not None
    assert {choice.candidate for choice in conclusion.choices} == {"baseline"}
    assert conclusion.static == conclusion.baseline == "baseline"
    assert conclusion.schedule is None


@pytest.mark.slow
def test_every_probed_cell_reports_how_far_off_its_prediction_was() -> None:
    engine = FormulaEngine(noise_sd=0.0)
    search = finish(start(problem_of(settings=Settings(price=1e-6, grid_share=1.0, probes=3))), engine)
    errors = prediction_errors(search)
    probed = {result.job.candidate for result in search.results if result.job.purpose is Purpose.PROBE}
    raced = {result.job.candidate for result in search.results if result.job.purpose is Purpose.RACE}
    assert probed & {error.candidate for error in errors}
    assert {error.candidate for error in errors} <= probed | raced
    for error in errors:
        assert abs(error.log_ratio) < 0.15
        assert error.sd > 0
        assert math.isfinite(error.log_ratio)
