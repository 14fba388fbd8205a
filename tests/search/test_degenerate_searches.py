"""The tuner on designs that carry little: no certainty from a cell or a request, and no crash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from tune_samples import DRAFT, HEAD, FormulaEngine, finish, problem_of

from speclift.core.errors import EngineError
from speclift.core.traffic import Concurrency
from speclift.engines.vllm.dialect.tables import SCHEDULE
from speclift.search.conclusion import choose, conclude
from speclift.search.cost import fit_cost
from speclift.search.counts import RequestCounts, step_s
from speclift.search.posterior import posterior_of
from speclift.search.predictor import REQUEST_SD, AcceptanceRun, accepted_lengths
from speclift.search.problem import CellResult, JobResult, Problem, Purpose, SearchJob, Settings
from speclift.search.search import Search, start
from speclift.search.selection import PROMPTS_MIN, beaten, far_from_best, standings

ALONE = Concurrency(streams=1)
KS = (1, 3, 8)


def drafting(
    request_id: str, accepted: int, *, k: int = 8, steps: int = 40, tpot_s: float | None = 0.005
) -> RequestCounts:
    """A request whose every step accepted as many."""
    return RequestCounts(
        request_id=request_id,
        tokens=steps * (accepted + 1),
        steps=steps,
        accepted=(accepted,) * steps,
        drafted=(k,) * steps,
        tpot_s=tpot_s,
    )


def plain(request_id: str, *, tpot_s: float | None = 0.01, tokens: int = 100) -> RequestCounts:
    return RequestCounts(
        request_id=request_id, tokens=tokens, steps=tokens, without_draft=tokens, tpot_s=tpot_s
    )


def silent(request_id: str, *, tpot_s: float | None = 0.01) -> RequestCounts:
    """Of an arm that never drafted."""
    return plain(request_id, tpot_s=tpot_s)


# Acceptance


def log_sd(requests: Sequence[RequestCounts], *, prefix_only: bool = True) -> list[float]:
    curve = accepted_lengths([AcceptanceRun(k=8, requests=tuple(requests))], KS, prefix_only=prefix_only)
    assert all(math.isfinite(point.length.value) for point in curve.points)
    return [math.sqrt(value) for value in np.diag(curve.log_covariance)]


@pytest.mark.parametrize("prefix_only", [True, False])
@pytest.mark.parametrize("accepted", [0, 1, 7, 8])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_requests_that_agree_leave_the_next_one_open(
    count: int, accepted: int, prefix_only: bool
) -> None:
    sds = log_sd([drafting(f"r{i}", accepted) for i in range(count)], prefix_only=prefix_only)
    assert sds[-1] > 0.9 * REQUEST_SD / count
    assert sds == sorted(sds) or not prefix_only


def test_many_requests_that_agree_are_nearly_sure() -> None:
    assert log_sd([drafting(f"r{i}", 3) for i in range(40)])[-1] < 0.02


def test_one_request_sent_a_hundred_times_is_one_request() -> None:
    once, often = log_sd([drafting("r", 3)]), log_sd([drafting("r", 3)] * 100)
    assert often == pytest.approx(once)


def test_one_request_has_no_interval_narrower_than_what_is_possible() -> None:
    curve = accepted_lengths([AcceptanceRun(k=8, requests=(drafting("r", 3),))], KS, prefix_only=True)
    for point in curve.points:
        assert (point.length.low, point.length.high) == (1.0, point.k + 1.0)


def test_two_requests_that_agree_at_another_k_do_not_settle_the_correction() -> None:
    runs = [
        AcceptanceRun(k=8, requests=tuple(drafting(f"r{i}", 4) for i in range(2))),
        AcceptanceRun(k=3, requests=tuple(drafting(f"r{i}", 2, k=3) for i in range(2))),
    ]
    curve = accepted_lengths(runs, KS, prefix_only=False)
    assert math.sqrt(curve.log_covariance[1, 1]) > 0.02


def test_a_drafter_that_never_drafts_yields_one_token_a_step() -> None:
    curve = accepted_lengths(
        [AcceptanceRun(k=8, requests=tuple(silent(f"r{i}") for i in range(5)))], KS, prefix_only=True
    )
    assert [point.length.value for point in curve.points] == [1.0, 1.0, 1.0]
    assert [point.drafted for point in curve.points] == [0.0, 0.0, 0.0]


# Step times


@pytest.mark.parametrize("tpot_s", [None, 0.0, math.nan, math.inf, -1.0])
def test_what_has_no_time_is_not_timed(tpot_s: float | None) -> None:
    untimed = plain("r", tpot_s=tpot_s)
    assert untimed.decode_s is None
    assert step_s([untimed]) is None
    assert step_s([plain("a"), untimed]) == pytest.approx(0.01)
    # Fewer than half do not stand for the rest.
    assert step_s([plain("a"), untimed, untimed]) is None


def test_nothing_and_answers_of_no_tokens_have_no_step() -> None:
    assert step_s([]) is None
    assert step_s([RequestCounts(request_id="r", tokens=0, steps=0, tpot_s=0.01)]) is None


# The posterior


def job(
    number: int, candidate: str, *, purpose: Purpose = Purpose.LONG, block: int = 0, turn: int = 0
) -> SearchJob:
    return SearchJob(
        id=number, candidate=candidate, loads=(ALONE,), purpose=purpose, reason="", block=block, turn=turn
    )


def ran(
    number: int, candidate: str, requests: Sequence[RequestCounts], *, purpose: Purpose = Purpose.LONG
) -> JobResult:
    cell = CellResult(load=ALONE, requests=tuple(requests), wall_s=10.0)
    return JobResult(job=job(number, candidate, purpose=purpose), cells=(cell,), launch_s=5.0)


def alone(**drafters: object) -> Problem:
    return problem_of(drafters or {"draft": DRAFT}, ks=KS, loads=(ALONE,))  # type: ignore[arg-type]


def two_cells(count: int, *, accepted: int = 3, tpot_s: float | None = 0.005) -> list[JobResult]:
    return [
        ran(1, "baseline", [plain(f"r{i}") for i in range(count)], purpose=Purpose.BASELINE),
        ran(2, "draft-k8", [drafting(f"r{i}", accepted, tpot_s=tpot_s) for i in range(count)]),
    ]


@pytest.mark.parametrize("accepted", [0, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 24])
def test_a_posterior_of_equal_requests_is_finite_and_surer_the_more_there_are(
    count: int, accepted: int
) -> None:
    problem = alone()
    found = posterior_of(problem, two_cells(count, accepted=accepted))
    assert found is not None
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.covariance).all()
    row = found.row("draft-k8")
    assert found.sd(row, 0) > 0.9 * REQUEST_SD / count
    fewer = posterior_of(problem, two_cells(max(1, count // 2), accepted=accepted))
    assert fewer is not None
    assert count == 1 or fewer.sd(row, 0) > found.sd(row, 0)


def test_no_arm_is_dropped_for_one_request() -> None:
    """By one request the draft model loses a fourth; the next may accept three times as much."""
    problem = alone()
    few, many = (posterior_of(problem, two_cells(count, accepted=2, tpot_s=0.0135)) for count in (1, 60))
    assert few is not None
    assert many is not None
    assert far_from_best(problem, few) == []
    assert "draft-k8" in {each.candidate for each in far_from_best(problem, many)}


def test_the_step_time_of_one_request_is_less_sure_than_that_of_twelve() -> None:
    problem = alone()
    found = [posterior_of(problem, two_cells(count)) for count in (1, 12, 24)]
    sds = [math.sqrt(each.time_covariance[0, 0, 0]) for each in found if each is not None]
    assert sds[0] > 1.2 * sds[1]
    assert sds[1] == pytest.approx(sds[2])


def test_a_cell_that_could_not_be_timed_was_not_measured() -> None:
    found = posterior_of(alone(), two_cells(12, tpot_s=None))
    assert found is not None
    assert found.is_measured[found.row("baseline"), 0]
    assert not found.is_measured[found.row("draft-k8"), 0]


def test_a_cost_fit_of_nothing_is_refused() -> None:
    found = posterior_of(alone(), two_cells(12))
    assert found is not None
    with pytest.raises(ValueError, match="at least one measured cell"):
        fit_cost(found.fit.surface, [])


# The search


def told(problem: Problem, engine: FormulaEngine, change: object) -> Search:
    search = start(problem)
    for _ in range(200):
        if search.finished:
            return search
        result = engine.run(problem, search.ask()[0])
        search = search.tell(change(result))  # type: ignore[operator]
    raise AssertionError("the search does not end")


def with_requests(result: JobResult, chosen: slice) -> JobResult:
    return replace(
        result, cells=tuple(replace(each, requests=each.requests[chosen]) for each in result.cells)
    )


def untimed(result: JobResult) -> JobResult:
    cells = tuple(
        replace(cell, requests=tuple(structs.replace(each, tpot_s=None) for each in cell.requests))
        for cell in result.cells
    )
    return replace(result, cells=cells)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("loads", [1, 3])
def test_a_search_with_few_requests_ends_and_says_that_it_may_be_wrong(count: int, loads: int) -> None:
    problem = problem_of(
        {"draft": DRAFT, "eagle": HEAD},
        ks=KS,
        loads=tuple(Concurrency(streams=4**place) for place in range(loads)),
        settings=Settings(probes=2),
    )
    search = told(problem, FormulaEngine(), lambda result: with_requests(result, slice(count)))
    conclusion = conclude(search)
    assert conclusion is not None
    assert conclusion.expected_regret > 0.002
    assert all(math.isfinite(cell.rate.high) and cell.rate.low < cell.rate.high for cell in conclusion.cells)


def test_a_baseline_that_cannot_be_timed_is_nothing_to_choose_by() -> None:
    search = told(alone(), FormulaEngine(), untimed)
    assert conclude(search) is None
    with pytest.raises(EngineError, match="could be timed"):
        choose(
            search, can_run=lambda _: True, wants_same_method=True, sequences_max=64, schedule_key=SCHEDULE
        )


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["baseline", "draft-k8", "draft-k3"])
def test_an_arm_that_fails_half_way_fails_alone(failing: str) -> None:
    """Its first loads ran; the server then died."""
    problem = problem_of({"draft": DRAFT, "eagle": HEAD}, ks=KS)

    def half(result: JobResult) -> JobResult:
        if result.job.candidate != failing:
            return result
        return replace(result, cells=result.cells[:1], failure="died")

    search = told(problem, FormulaEngine(), half)
    conclusion = conclude(search)
    assert conclusion is not None
    assert failing == "baseline" or conclusion.static != failing


def test_an_arm_that_dies_in_the_second_pass_of_a_race_does_not_end_the_search() -> None:
    problem = alone()
    raced = [
        *two_cells(12),
        replace(ran(3, "draft-k3", [drafting(f"r{i}", 2, k=3) for i in range(12)], purpose=Purpose.RACE)),
        ran(4, "draft-k8", [drafting(f"r{i}", 3) for i in range(12)], purpose=Purpose.RACE),
        JobResult(job=job(5, "draft-k3", purpose=Purpose.RACE, turn=1), failure="died"),
    ]
    posterior = posterior_of(problem, raced)
    assert posterior is not None
    assert beaten(posterior, raced) == []


def test_one_k_and_one_load_end_with_a_finite_table() -> None:
    problem = problem_of({"draft": DRAFT}, ks=(4,), loads=(ALONE,))
    conclusion = conclude(finish(start(problem), FormulaEngine()))
    assert conclusion is not None
    assert len(conclusion.cells) == 2
    assert conclusion.schedule is None


# Races


@pytest.mark.parametrize("prompts", [0, 1, 2, 3, PROMPTS_MIN - 1])
def test_no_arm_is_beaten_on_a_few_prompts_however_alike_their_ratios(prompts: int) -> None:
    slow = {(1, turn): {f"p{i}": 1.0 for i in range(prompts)} for turn in (0, 1)}
    fast = {(1, turn): {f"p{i}": 0.0 for i in range(prompts)} for turn in (0, 1)}
    (standing,) = standings({"a": fast, "b": slow}, "a", pass_sd=0.01)
    assert math.isinf(standing.radius)
    assert not standing.is_beaten


def test_enough_prompts_with_one_ratio_still_leave_what_launches_do() -> None:
    slow = {(1, 0): {f"p{i}": 0.02 for i in range(PROMPTS_MIN)}}
    fast = {(1, 0): {f"p{i}": 0.0 for i in range(PROMPTS_MIN)}}
    (standing,) = standings({"a": fast, "b": slow}, "a", pass_sd=0.01)
    assert standing.radius > 0.02
    assert not standing.is_beaten
