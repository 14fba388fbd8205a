"""What does the search say? The arm for each load, for all of them, a schedule, and how good its predictions were."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from speclift.core.document import Document
from speclift.core.results import Estimate
from speclift.core.traffic import Concurrency, Load
from speclift.search.counts import step_s
from speclift.search.posterior import Dropped, Posterior, point_of, posterior_of
from speclift.search.problem import Problem, Purpose
from speclift.search.schedule import Schedule, compress
from speclift.search.search import Search
from speclift.search.selection import doubts, expected_regret
from speclift.search.space import Candidate, Elimination

_QUANTILE_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedCell:
    """One cell of the table. `rate` is tokens per second of one stream; speedup is against the baseline there."""

    candidate: str
    load: Load
    rate: Estimate
    speedup: float
    is_measured: bool


class LoadChoice(Document, frozen=True, kw_only=True, rename={"candidate": "arm"}):
    """What to run at one load, and what that is expected to lose against the unknown best."""

    load: Load
    candidate: str
    runner_up: str | None
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError:
    """A cell as it was predicted just before it was measured: log(measured / predicted) rate, and the sd given."""

    candidate: str
    load: Load
    log_ratio: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    choices: tuple[LoadChoice, ...]
    # The one arm that is best over the traffic, the next best one, and the baseline: what to confirm.
    static: str
    runner_up: str | None
    baseline: str
    # Of the best drafter; None where one k is as good, or no load is a number of streams.
    schedule: Schedule | None
    # log of what the schedule gains over the static arm, over the traffic.
    schedule_gain: float
    expected_regret: float
    cells: tuple[TunedCell, ...]
    errors: tuple[PredictionError, ...]
    eliminated: tuple[Elimination, ...]
    spent_s: float
    ending: str


def conclude(search: Search) -> Conclusion | None:
    """None where no baseline ran. Works at any time; before the end it is what the budget so far bought."""
    posterior = search.posterior()
    if posterior is None:
        return None
    problem = search.problem
    found = doubts(problem, posterior, search.dropped)
    ranking = _over_the_traffic(problem, posterior, search.dropped)
    static = posterior.candidates[ranking[0]]
    drafting = next((posterior.candidates[row] for row in ranking if posterior.candidates[row].drafter), None)
    schedule, gain = _schedule(problem, posterior, drafting, static) if drafting is not None else (None, 0.0)
    return Conclusion(
        choices=tuple(
            LoadChoice(
                load=doubt.load,
                candidate=posterior.candidates[doubt.incumbent].name,
                runner_up=_runner_up(posterior, column, doubt.incumbent, search.dropped),
                regret=doubt.regret,
            )
            for column, doubt in enumerate(found)
        ),
        static=static.name,
        runner_up=posterior.candidates[ranking[1]].name if len(ranking) > 1 else None,
        baseline=next(each.name for each in posterior.candidates if each.is_baseline),
        schedule=schedule,
        schedule_gain=gain,
        expected_regret=expected_regret(problem, found),
        cells=_cells(posterior),
        errors=prediction_errors(search),
        eliminated=search.eliminated,
        spent_s=search.spent_s,
        ending=search.ending,
    )


def prediction_errors(search: Search) -> tuple[PredictionError, ...]:
    """Of every cell whose arm could be predicted before it ran there, from what was known then."""
    errors = []
    for place, result in enumerate(search.results):
        if result.job.purpose not in {Purpose.PROBE, Purpose.RACE}:
            continue
        before = posterior_of(search.problem, search.results[:place])
        if before is None or result.job.candidate not in {each.name for each in before.candidates}:
            continue
        row = before.row(result.job.candidate)
        for cell in result.cells:
            column, seconds = before.loads.index(cell.load), step_s(cell.requests)
            if before.is_measured[row, column] or seconds is None:
                continue
            tokens = sum(request.tokens for request in cell.requests)
            measured = math.log(tokens / sum(request.steps for request in cell.requests) / seconds)
            errors.append(
                PredictionError(
                    candidate=result.job.candidate,
                    load=cell.load,
                    log_ratio=measured - float(before.mean[row, column]),
                    sd=before.sd(row, column),
                )
            )
    return tuple(errors)


def _over_the_traffic(problem: Problem, posterior: Posterior, dropped: Dropped) -> list[int]:
    """Rows not dropped everywhere, best first; of equals the smaller k. The baseline is always among them."""
    shares = np.array([problem.share(load) for load in posterior.loads])
    scores = posterior.mean @ shares
    rows = [
        row
        for row, each in enumerate(posterior.candidates)
        if each.is_baseline or not (posterior.is_censored[row] or (each.name, None) in dropped)
    ]
    return sorted(rows, key=lambda row: (-scores[row], posterior.candidates[row].k))


def _runner_up(posterior: Posterior, column: int, incumbent: int, dropped: Dropped) -> str | None:
    rows = range(len(posterior.candidates))
    others = [row for row in rows if row != incumbent and posterior.may_win(row, column, dropped)]
    best = max(others, key=lambda row: float(posterior.mean[row, column]), default=None)
    return None if best is None else posterior.candidates[best].name


def _cells(posterior: Posterior) -> tuple[TunedCell, ...]:
    plain = {
        each.target: row for row, each in reversed(list(enumerate(posterior.candidates))) if each.is_baseline
    }
    reference = min(plain.values())
    cells = []
    for row, candidate in enumerate(posterior.candidates):
        for column, load in enumerate(posterior.loads):
            middle, half = float(posterior.mean[row, column]), _QUANTILE_95 * posterior.sd(row, column)
            is_measured = bool(posterior.is_measured[row, column])
            rate = Estimate(
                value=math.exp(middle),
                low=math.exp(middle - half),
                high=math.exp(middle + half),
                n=int(is_measured),
                method="measured and predicted" if is_measured else "predicted",
            )
            speedup = math.exp(middle - float(posterior.mean[reference, column]))
            cells.append(
                TunedCell(
                    candidate=candidate.name, load=load, rate=rate, speedup=speedup, is_measured=is_measured
                )
            )
    return tuple(cells)


def _schedule(
    problem: Problem, posterior: Posterior, drafting: Candidate, static: Candidate
) -> tuple[Schedule | None, float]:
    """k by batch size for the drafter of `drafting`, and its gain over the best static arm, speculating or not.

    k = 0 pays the tax of a speculating server.
    Over the loads asked for and nothing between: what lies between was not measured, and a switch is placed midway.
    """
    streams = sorted(load.streams for load in problem.loads if isinstance(load, Concurrency))
    rows = [
        row
        for row, each in enumerate(posterior.candidates)
        if (each.drafter, each.target, each.token_budget)
        == (drafting.drafter, drafting.target, drafting.token_budget)
        and not posterior.is_censored[row]
    ]
    if len(streams) < 2:
        return None, 0.0
    columns = [posterior.loads.index(Concurrency(streams=batch)) for batch in streams]
    points = [point_of(problem, posterior.curves, drafting, float(batch), k=0) for batch in streams]
    log_rates = np.column_stack(
        [-posterior.fit.predict(points).log_s, posterior.mean[np.ix_(rows, columns)].T]
    )
    ks = [0, *(posterior.candidates[row].k for row in rows)]
    weights = [problem.share(Concurrency(streams=batch)) for batch in streams]
    if not math.fsum(weights) > 0:
        return None, 0.0
    schedule = compress(streams, ks, np.exp(log_rates - log_rates.max()).tolist(), weights=weights)
    if schedule.is_static:
        return None, 0.0
    chosen = [ks.index(schedule.k_at(batch)) for batch in streams]
    gains = log_rates[np.arange(len(streams)), chosen] - posterior.mean[posterior.row(static.name), columns]
    return schedule, float(np.average(gains, weights=weights))
