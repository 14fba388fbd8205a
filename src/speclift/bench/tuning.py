"""What a search found, put together: what was measured and predicted, what was dropped and why, what it cost."""

from __future__ import annotations

import math

from speclift.bench.search_plan import SearchPlan
from speclift.search.choice import Confirmation
from speclift.search.effort import grid_s
from speclift.search.problem import JobResult
from speclift.search.search import Search
from speclift.search.tuning import (
    PromptSplit,
    SearchedCell,
    SearchedJob,
    SearchedSchedule,
    SearchError,
    Tuning,
)


def tuning_from(search: Search, plan: SearchPlan, choice: Confirmation, *, spent_s: float) -> Tuning:
    conclusion = choice.conclusion
    confirmed = tuple(arm.name for arm in choice.arms)
    return Tuning(
        winner=choice.winner.name,
        runner_up=choice.runner_up.name if choice.runner_up is not None else None,
        confirmed=confirmed,
        cells=_cells(search, choice),
        choices=conclusion.choices,
        # What a later measurement brought back was not dropped after all.
        eliminated=tuple(out for out in conclusion.eliminated if out.candidate not in confirmed),
        errors=tuple(
            SearchError(arm=error.candidate, load=error.load, ratio=math.exp(error.log_ratio), sd=error.sd)
            for error in conclusion.errors
        ),
        jobs=tuple(_job(result) for result in search.results),
        ending=conclusion.ending or "the search time is used up",
        expected_regret=conclusion.expected_regret,
        spent_s=spent_s,
        grid_s=_grid_s(search),
        prompts=PromptSplit(
            tuning=len(plan.tuning), held_out=len(plan.held_out), is_held_out=plan.is_held_out
        ),
        schedule=_schedule(choice),
    )


def _cells(search: Search, choice: Confirmation) -> tuple[SearchedCell, ...]:
    by_name = {candidate.name: candidate for candidate in search.problem.candidates}
    posterior = choice.posterior
    in_flight = {
        (candidate.name, load): float(posterior.batches[row, column])
        for row, candidate in enumerate(posterior.candidates)
        for column, load in enumerate(posterior.loads)
    }
    cells = []
    for cell in choice.conclusion.cells:
        candidate = by_name[cell.candidate]
        cells.append(
            SearchedCell(
                arm=candidate.name,
                method=candidate.arm.method,
                drafter=candidate.drafter,
                k=candidate.k,
                quantisation=candidate.quantisation,
                token_budget=candidate.token_budget,
                load=cell.load,
                rate_tok_s=cell.rate.value,
                low=cell.rate.low,
                high=cell.rate.high,
                speedup=cell.speedup,
                in_flight=in_flight[cell.candidate, cell.load],
                is_measured=cell.is_measured,
            )
        )
    return tuple(cells)


def _schedule(choice: Confirmation) -> SearchedSchedule | None:
    if choice.schedule is None:
        return None
    return SearchedSchedule(
        arm=choice.scheduled.name if choice.scheduled is not None else None,
        static=choice.winner.name,
        over=choice.conclusion.static,
        segments=choice.schedule.segments,
        predicted_gain=math.exp(choice.conclusion.schedule_gain),
    )


def _grid_s(search: Search) -> float | None:
    """Engine time of every candidate at every load, each three times; None where nothing ran."""
    if not any(result.cells for result in search.results):
        return None
    return grid_s(search.problem, search.results, search.posterior())


def _job(result: JobResult) -> SearchedJob:
    job = result.job
    return SearchedJob(
        id=job.id,
        arm=job.candidate,
        loads=job.loads,
        purpose=job.purpose,
        reason=job.reason,
        launch_s=result.launch_s,
        engine_s=result.engine_s,
        failure=result.failure,
    )
