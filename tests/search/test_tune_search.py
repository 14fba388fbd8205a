"""The laws of ask and tell: what is asked, told, refused, eliminated, retried, paid for and chosen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tune_samples import DRAFT, HEAD, LOADS, LOOKUP, FormulaEngine, finish, plain_step_s, problem_of

from speclift.core.errors import UsageError
from speclift.core.speculation import Drafter
from speclift.core.traffic import Concurrency, Rate
from speclift.search.conclusion import conclude
from speclift.search.problem import JobResult, Problem, Purpose, Settings
from speclift.search.search import (
    Search,
    SearchPhase,
    search_from_dict,
    search_to_dict,
    start,
)
from speclift.search.space import Candidate


@pytest.fixture(scope="module")
def finished() -> Search:
    return finish(start(problem_of()), FormulaEngine())


def test_first_come_the_baseline_and_the_longest_run_of_every_drafter() -> None:
    search = start(problem_of({"draft": DRAFT, "ngram": LOOKUP}))
    assert [(job.candidate, job.purpose) for job in search.ask()] == [
        ("baseline", Purpose.BASELINE),
        ("draft-k8", Purpose.LONG),
        ("ngram-k8", Purpose.LONG),
    ]


@pytest.mark.slow
def test_what_is_chosen_is_within_two_percent_of_the_best_at_every_load(finished: Search) -> None:
    engine, conclusion = FormulaEngine(), conclude(finished)
    assert conclusion is not None
    for choice in conclusion.choices:
        rate = engine.true_rate(finished.problem.candidate(choice.candidate), choice.load)
        assert rate > 0.98 * engine.best(finished.problem, choice.load)


def test_a_job_that_was_not_asked_for_is_refused_and_changes_nothing() -> None:
    search, engine = start(problem_of()), FormulaEngine()
    job = search.ask()[0]
    with pytest.raises(UsageError, match="not asked for"):
        search.tell(engine.run(search.problem, replace(job, id=99)))
    told = search.tell(engine.run(search.problem, job))
    with pytest.raises(UsageError, match="already told"):
        told.tell(engine.run(search.problem, job))


@pytest.mark.slow
def test_a_search_resumed_from_its_dictionary_asks_and_ends_as_the_uninterrupted_one(
    finished: Search,
) -> None:
    search, engine = start(problem_of()), FormulaEngine()
    while not search.finished:
        search = search_from_dict(json.loads(json.dumps(search_to_dict(search))))
        search = search.tell(engine.run(search.problem, search.ask()[0]))
    assert search == finished


@pytest.mark.slow
def test_the_same_seed_gives_the_same_search(finished: Search) -> None:
    assert finish(start(problem_of()), FormulaEngine()) == finished


@pytest.mark.slow
def test_a_failed_launch_takes_out_its_candidate_alone_and_the_drafter_is_tried_at_a_smaller_k() -> None:
    engine = FormulaEngine()
    engine.failing = {"draft-k8": "out of memory"}
    search = start(problem_of({"draft": DRAFT}))
    for job in search.ask():
        search = search.tell(engine.run(search.problem, job))
    (retry,) = search.ask()
    assert (retry.candidate, retry.purpose) == ("draft-k4", Purpose.LONG)
    assert "out of memory" in retry.reason
    search = finish(search, engine)
    assert [each.candidate for each in search.eliminated if each.stage == "failed"] == ["draft-k8"]
    conclusion = conclude(search)
    assert conclusion is not None
    assert any(choice.candidate.startswith("draft") for choice in conclusion.choices)
    assert all(cell.candidate != "draft-k8" for cell in conclusion.cells)


@pytest.mark.parametrize("failing", ["draft", "ngram"])
def test_a_failed_drafter_is_retried_itself_whatever_ran_or_stands_beside_it(failing: str) -> None:
    search, engine = start(problem_of({"draft": DRAFT, "ngram": LOOKUP})), FormulaEngine()
    engine.failing = {f"{failing}-k8": "out of memory"}
    for job in search.ask():
        search = search.tell(engine.run(search.problem, job))
    assert [(job.candidate, job.purpose) for job in search.ask()] == [(f"{failing}-k4", Purpose.LONG)]


@pytest.mark.parametrize("drafter", [DRAFT, HEAD])
def test_a_drafter_that_fails_twice_is_left_alone_and_the_baseline_is_chosen(drafter: Drafter) -> None:
    engine = FormulaEngine()
    engine.failing = {f"own-k{k}": "no such file" for k in (1, 2, 3, 4, 6, 8)}
    search = finish(start(problem_of({"own": drafter})), engine)
    assert len(search.results) == 3
    conclusion = conclude(search)
    assert conclusion is not None
    assert {choice.candidate for choice in conclusion.choices} == {"baseline"}


def test_a_failed_baseline_ends_the_search_before_anything_else_is_launched() -> None:
    engine = FormulaEngine()
    engine.failing = {"baseline": "port in use"}
    search = start(problem_of())
    search = search.tell(engine.run(search.problem, search.ask()[0]))
    assert search.finished
    assert search.ask() == ()
    assert "port in use" in search.ending
    assert conclude(search) is None


@pytest.mark.parametrize("budget_s", [150.0, 400.0, 900.0])
def test_the_budget_less_its_reserve_is_never_exceeded(budget_s: float) -> None:
    settings = Settings(budget_s=budget_s, reserve_s=60.0, launch_s_guess=30.0, cell_s_guess=20.0)
    search = finish(start(problem_of(settings=settings)), FormulaEngine())
    # By how much longer than any before it a cell takes is seen only afterwards.
    assert search.spent_s <= (budget_s - 60.0) + 10.0


@pytest.mark.slow
def test_an_eliminated_arm_is_never_asked_for_again() -> None:
    search, engine = start(problem_of()), FormulaEngine()
    while not search.finished:
        out = {each.candidate for each in search.eliminated if each.load is None}
        assert not out & {job.candidate for job in search.ask()}
        search = search.tell(engine.run(search.problem, search.ask()[0]))


def test_every_elimination_says_against_whom_and_where() -> None:
    def dear_lookup(candidate: Candidate, batch: int) -> float:
        return plain_step_s(candidate, batch) * (3.0 if candidate.drafter == "ngram" else 1.0)

    search = finish(start(problem_of({"draft": DRAFT, "ngram": LOOKUP})), FormulaEngine(step_s=dear_lookup))
    predicted = [each for each in search.eliminated if each.stage == "predicted"]
    assert {"ngram-k1", "ngram-k8"} <= {each.candidate for each in predicted}
    for each in predicted:
        assert " % slower than " in each.reason
        assert " at c=" in each.reason


@pytest.mark.slow
def test_the_traffic_decides_which_single_arm_is_best() -> None:
    def static(weights: tuple[float, ...]) -> int:
        search = finish(start(problem_of({"draft": DRAFT}, weights=weights)), FormulaEngine())
        conclusion = conclude(search)
        assert conclusion is not None
        return search.problem.candidate(conclusion.static).k

    assert static((1, 0, 0, 0)) > static((0, 0, 0, 1))


@pytest.mark.slow
def test_nothing_is_measured_beyond_calibration_at_a_load_without_traffic() -> None:
    search = finish(start(problem_of(weights=(1, 1, 1, 0))), FormulaEngine())
    probes = [result for result in search.results if result.job.purpose in {Purpose.PROBE, Purpose.RACE}]
    assert all(LOADS[3] not in result.job.loads for result in probes)


def test_a_head_gets_a_short_run_and_a_drafter_of_the_text_does_not(finished: Search) -> None:
    short = {result.job.candidate for result in finished.results if result.job.purpose is Purpose.SHORT}
    assert {name.split("-")[0] for name in short} == {"eagle"}


@pytest.mark.slow
def test_k_beyond_the_longest_run_is_measured_before_it_may_be_chosen() -> None:
    def free_drafts(candidate: Candidate, batch: int) -> float:
        return 0.01 + (0.0005 if candidate.k else 0.0)

    settings = Settings(k_long=4)
    search = finish(
        start(problem_of({"draft": DRAFT}, ks=(2, 4, 8), settings=settings)),
        FormulaEngine(step_s=free_drafts),
    )
    deeper = [result.job for result in search.results if result.job.candidate == "draft-k8"]
    assert deeper[0].purpose is Purpose.LONG
    conclusion = conclude(search)
    assert conclusion is not None
    assert conclusion.static == "draft-k8"


def test_arms_too_near_to_call_are_raced_in_mirrored_order_when_that_is_worth_it() -> None:
    settings = Settings(price=1e-9, regret_goal=0.0, probes=0, race_arms=2, race_blocks=1, grid_share=1.0)
    search, engine = start(problem_of({"draft": DRAFT}, settings=settings)), FormulaEngine(noise_sd=0.01)
    while not search.finished and search.phase is not SearchPhase.RACE:
        search = search.tell(engine.run(search.problem, search.ask()[0]))
    names = [job.candidate for job in search.ask()]
    assert len(names) == 4
    assert names == names[::-1]
    assert [job.turn for job in search.ask()] == [0, 0, 1, 1]
    assert all("too close" in job.reason for job in search.ask())
    assert not {job.id for job in search.ask()} & {result.job.id for result in search.results}
    assert {job.block for job in search.ask()} == {1}
    assert {result.job.block for result in search.results} == {0}


def test_an_open_loop_load_finds_its_batch_and_the_search_ends() -> None:
    class OpenLoop(FormulaEngine):
        def run(self, problem: Problem, job: object) -> JobResult:
            assert hasattr(job, "loads")
            closed = replace(job, loads=tuple(Concurrency(streams=4) for _ in job.loads))  # type: ignore[type-var]
            result = super().run(problem, closed)  # type: ignore[arg-type]
            cells = tuple(
                replace(cell, load=load, batch=3.5)
                for cell, load in zip(result.cells, job.loads, strict=True)
            )
            return replace(result, job=job, cells=cells)  # type: ignore[arg-type]

    search = finish(start(problem_of({"draft": DRAFT}, loads=(Rate(per_s=2.0),))), OpenLoop())
    posterior = search.posterior()
    assert posterior is not None
    assert posterior.batches.min() >= 1.0
    conclusion = conclude(search)
    assert conclusion is not None
    assert conclusion.schedule is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loads": ()}, "needs loads"),
        ({"loads": (LOADS[0], LOADS[0])}, "each once"),
        ({"weights": (1.0,)}, "as many weights"),
        ({"weights": (0.0, 0.0, 0.0, 0.0)}, "as many weights"),
        ({"weights": (1.0, -1.0, 1.0, 1.0)}, "as many weights"),
        ({"candidates": ()}, "baseline"),
        ({"candidates": problem_of().candidates + problem_of().candidates[:1]}, "same name"),
    ],
)
def test_problems_that_cannot_be_searched_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(problem_of({"eagle": HEAD}), **changes)  # type: ignore[arg-type]
