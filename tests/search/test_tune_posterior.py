"""What is known of every candidate, on an engine made of a formula: who is in it, how fast, and how surely."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from msgspec import structs
from tune_samples import DRAFT, HEAD, FormulaEngine, plain_step_s, problem_of

from speclift.core.arm import Arm, baseline_arm
from speclift.core.traffic import Concurrency, Rate
from speclift.search.counts import RequestCounts
from speclift.search.posterior import BORROWED_SD, Posterior, point_of, posterior_of
from speclift.search.problem import CellResult, JobResult, Problem, Purpose, SearchJob
from speclift.search.space import Candidate, with_k

ALONE, SIXTEEN = Concurrency(streams=1), Concurrency(streams=16)
BOTH = (ALONE, SIXTEEN)
PROBLEM = problem_of({"draft": DRAFT, "eagle": HEAD}, ks=(2, 4, 8), loads=BOTH)


def run(problem: Problem, number: int, name: str, *, failure: str = "", launch_s: float = 30.0) -> JobResult:
    job = SearchJob(id=number, candidate=name, loads=problem.loads, purpose=Purpose.LONG, reason="")
    engine = FormulaEngine(noise_sd=0.0, launch_s=launch_s)
    return replace(engine.run(problem, job), failure=failure)


def known(problem: Problem, *results: JobResult) -> Posterior:
    posterior = posterior_of(problem, results)
    assert posterior is not None
    return posterior


def names(posterior: Posterior) -> list[str]:
    return [candidate.name for candidate in posterior.candidates]


class TestWhoIsInIt:
    def test_not_a_candidate_that_failed_but_a_baseline_that_failed_once(self) -> None:
        results = [
            run(PROBLEM, 1, "baseline"),
            run(PROBLEM, 2, "draft-k8"),
            run(PROBLEM, 3, "draft-k4", failure="out of memory"),
            run(PROBLEM, 4, "baseline", failure="port in use"),
        ]
        assert names(known(PROBLEM, *results)) == ["baseline", "draft-k2", "draft-k8"]

    def test_not_a_target_that_never_ran(self) -> None:
        other = Candidate(
            arm=Arm(name="baseline-fp8", speculation=baseline_arm().speculation), quantisation="fp8"
        )
        problem = replace(PROBLEM, candidates=(*PROBLEM.candidates, other))
        assert "baseline-fp8" not in names(known(problem, run(problem, 1, "baseline")))
        both = known(problem, run(problem, 1, "baseline"), run(problem, 2, "baseline-fp8"))
        assert names(both) == ["baseline", "baseline-fp8"]


class TestHowFast:
    def test_a_score_is_accepted_length_over_step_time(self) -> None:
        posterior = known(PROBLEM, run(PROBLEM, 1, "baseline"), run(PROBLEM, 2, "draft-k8"))
        engine = FormulaEngine(noise_sd=0.0)
        for name in ("baseline", "draft-k8"):
            truth = [math.log(engine.true_rate(PROBLEM.candidate(name), load)) for load in BOTH]
            assert posterior.mean[posterior.row(name)] == pytest.approx(truth, abs=0.01)
        assert posterior.is_measured.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]

    def test_only_what_lies_beyond_every_run_may_be_better_than_expected(self) -> None:
        posterior = known(PROBLEM, run(PROBLEM, 1, "baseline"), run(PROBLEM, 2, "draft-k4"))
        hopes = (posterior.optimistic - posterior.mean).max(axis=1)
        assert posterior.is_censored.tolist() == [0.0, 0.0, 0.0, 1.0]
        assert hopes[:3] == pytest.approx(0.0, abs=1e-12)
        assert hopes[3] > 0.01

    def test_timing_a_cell_cannot_remove_what_is_unknown_of_acceptance(self) -> None:
        posterior = known(PROBLEM, run(PROBLEM, 1, "baseline"), run(PROBLEM, 2, "draft-k8"))
        rest = posterior.covariance - posterior.time_covariance
        assert rest[:, 0, 0] == pytest.approx(0.0)
        assert (rest[:, 3, 3] > 1e-6).all()
        assert posterior.sd(3, 0) == pytest.approx(math.sqrt(posterior.covariance[0, 3, 3]))


class TestWhoMayWin:
    posterior = known(PROBLEM, run(PROBLEM, 1, "baseline"), run(PROBLEM, 2, "draft-k4"))

    def test_neither_the_dropped_nor_what_lies_beyond_every_run(self) -> None:
        dropped = frozenset({("draft-k2", None), ("draft-k4", "c=16")})
        may_win = [
            [self.posterior.may_win(row, column, dropped) for column in range(2)]
            for row in range(len(self.posterior.candidates))
        ]
        assert may_win == [[True, True], [False, False], [True, False], [False, False]]

    def test_where_all_are_out_the_baseline_stands(self) -> None:
        backwards = replace(
            self.posterior,
            candidates=self.posterior.candidates[::-1],
            is_censored=self.posterior.is_censored[::-1],
        )
        dropped = frozenset((name, None) for name in names(self.posterior))
        assert backwards.best(0, dropped) == 3


class TestAnotherTarget:
    """The drafter ran with the target as it is, and not with its other quantisation."""

    def posterior(self) -> Posterior:
        plain = baseline_arm().speculation
        others = [
            Candidate(arm=Arm(name="baseline-fp8", speculation=plain), quantisation="fp8"),
            *(
                Candidate(
                    arm=Arm(name=f"draft-k{k}-fp8", speculation=with_k(DRAFT, k)),
                    drafter="draft",
                    quantisation="fp8",
                )
                for k in (4, 8)
            ),
        ]
        problem = problem_of({"draft": DRAFT}, ks=(4, 8), loads=BOTH)
        problem = replace(problem, candidates=(*problem.candidates, *others))
        ran = ("baseline", "draft-k8", "baseline-fp8")
        return known(problem, *(run(problem, number, name) for number, name in enumerate(ran, start=1)))

    def test_acceptance_is_borrowed_and_less_sure_by_what_borrowing_costs(self) -> None:
        posterior = self.posterior()
        assert names(posterior) == [
            *("baseline", "draft-k4", "draft-k8", "baseline-fp8", "draft-k4-fp8", "draft-k8-fp8")
        ]
        lengths = (posterior.covariance - posterior.time_covariance)[0]
        assert lengths[5, 5] - lengths[2, 2] == pytest.approx(BORROWED_SD**2)
        assert lengths[4, 5] - lengths[1, 2] == pytest.approx(BORROWED_SD**2)
        assert lengths[2, 5] == pytest.approx(lengths[2, 2])
        assert lengths[3] == pytest.approx(0.0)


class TestPlaces:
    def test_cells_are_timed_in_their_middle_one_after_the_other(self) -> None:
        first, second = run(PROBLEM, 7, "baseline", launch_s=10.0), run(PROBLEM, 9, "draft-k8", launch_s=20.0)
        walls = [cell.wall_s for result in (first, second) for cell in result.cells]
        cells = known(PROBLEM, first, second).fit.cells
        assert [cell.at_s for cell in cells] == pytest.approx(
            [
                10.0 + walls[0] / 2,
                10.0 + walls[0] + walls[1] / 2,
                30.0 + walls[0] + walls[1] + walls[2] / 2,
                30.0 + walls[0] + walls[1] + walls[2] + walls[3] / 2,
            ]
        )
        assert [(cell.launch, cell.requests) for cell in cells] == [(7, 32), (7, 32), (9, 32), (9, 32)]
        assert [(cell.point.batch, cell.point.drafted) for cell in cells] == [
            (1, 0),
            (16, 0),
            (1, 8),
            (16, 8),
        ]
        assert cells[0].step_s == pytest.approx(plain_step_s(PROBLEM.candidate("baseline"), 1))

    def test_a_cell_without_times_is_none(self) -> None:
        result = run(PROBLEM, 1, "baseline")
        silent = replace(
            result.cells[1],
            requests=tuple(structs.replace(request, tpot_s=None) for request in result.cells[1].requests),
        )
        posterior = known(PROBLEM, replace(result, cells=(result.cells[0], silent)))
        assert len(posterior.fit.cells) == 1
        assert posterior.is_measured.tolist() == [[1.0, 0.0]]

    def test_a_step_brings_its_share_of_prompt_tokens(self) -> None:
        """16 streams that say 1 token each in a step, prompts half as long as answers: 7.5 of the 15 others."""
        problem = replace(PROBLEM, prompt_tokens=128.0, output_tokens=256.0)
        posterior = known(problem, run(problem, 1, "baseline"), run(problem, 2, "draft-k8"))
        plain = point_of(problem, posterior.curves, problem.candidate("baseline"), 16.0)
        assert (plain.prefill, plain.drafted, plain.k) == (7.5, 0.0, 0)
        drafting = problem.candidate("draft-k8")
        point = point_of(problem, posterior.curves, drafting, 16.0)
        length = posterior.curves["draft", ""].at(8).length.value
        assert point.prefill == pytest.approx(7.5 * length)
        assert point.k == 8
        idle = point_of(problem, posterior.curves, drafting, 16.0, k=0)
        assert (idle.prefill, idle.k, idle.drafted) == (7.5, 0, 0.0)
        alone = point_of(problem, posterior.curves, drafting, 1.0)
        assert alone.prefill == 0.0  # it does not decode while its own prompt is read

    @pytest.mark.parametrize(("sampled", "batch"), [(3.5, 3.5), (None, 4 * 256 * 0.02)])
    def test_an_open_loop_has_the_batch_that_was_sampled_or_follows_from_its_rate(
        self, sampled: float | None, batch: float
    ) -> None:
        rate = Rate(per_s=4.0)
        problem = replace(PROBLEM, loads=(rate,))
        requests = tuple(
            RequestCounts(request_id=f"p{n}", tokens=50, steps=50, without_draft=50, tpot_s=0.02)
            for n in range(12)
        )
        job = SearchJob(id=1, candidate="baseline", loads=(rate,), purpose=Purpose.BASELINE, reason="")
        cell = CellResult(load=rate, requests=requests, wall_s=10.0, batch=sampled)
        posterior = known(problem, JobResult(job=job, cells=(cell,)))
        assert posterior.fit.cells[0].point.batch == pytest.approx(batch)

    def test_an_open_loop_settles_where_its_own_pace_keeps_it(self) -> None:
        """Requests in flight = rate x answer x time per token, with the time that this many take."""
        problem = replace(PROBLEM, loads=(Rate(per_s=8.0),))
        requests = tuple(
            RequestCounts(request_id=f"p{n}", tokens=50, steps=50, without_draft=50, tpot_s=0.02)
            for n in range(12)
        )
        job = SearchJob(id=1, candidate="baseline", loads=problem.loads, purpose=Purpose.BASELINE, reason="")
        cell = CellResult(load=problem.loads[0], requests=requests, wall_s=10.0)
        posterior = known(problem, JobResult(job=job, cells=(cell,)))
        batch = float(posterior.batches[0, 0])
        (step_s,) = posterior.fit.form_s([point_of(problem, {}, problem.candidate("baseline"), batch)])
        assert batch == pytest.approx(8.0 * 256 * step_s, rel=0.02)
