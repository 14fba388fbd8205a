"""What is known of every candidate at every load, measured or not? Accepted length over step time, with covariance.

A score is log tokens per second of one stream. Acceptance and step time are estimated apart, so a cell's rate owes
nothing to which prompts it happened to send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from speclift.core.drafting import drafting_of, kept_k
from speclift.core.traffic import Concurrency, Load
from speclift.search.cost import CostFit, Floats, Point, Surface, TimedPoint, fit_cost
from speclift.search.counts import RequestCounts, keeping_longer_drafts, step_s
from speclift.search.predictor import AcceptanceCurve, AcceptanceRun, accepted_lengths
from speclift.search.problem import CellResult, JobResult, Problem, StepDrafts, nominal_batch, step_drafts
from speclift.search.space import Candidate, sees_text_alone

# Names of candidates with the label of the load they are out at; None is everywhere.
Dropped: TypeAlias = frozenset[tuple[str, str | None]]
# By drafter and target.
Curves: TypeAlias = dict[tuple[str, str], AcceptanceCurve]

# Acceptance of a drafter with another quantisation of its target, before that pair was run.
BORROWED_SD = 0.02
BATCH_MAX = 4096.0
_BATCH_TURNS = 12
_BATCH_DAMPING = 0.5
_DRAWS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Rows are candidates, columns loads. A candidate that failed, or whose drafter never ran, is not in it."""

    candidates: tuple[Candidate, ...]
    loads: tuple[Load, ...]
    # log tokens per second and stream.
    mean: Floats
    # One candidates x candidates matrix per load.
    covariance: Floats
    # The part of it that timing a cell can remove: step time, not acceptance.
    time_covariance: Floats
    is_measured: Floats
    # Candidates whose k lies beyond every run of their drafter; not to be chosen unseen.
    is_censored: Floats
    # Their score if acceptance goes on as well as it can; the mean for the others.
    optimistic: Floats
    fit: CostFit
    curves: Curves
    batches: Floats

    def row(self, name: str) -> int:
        return next(place for place, candidate in enumerate(self.candidates) if candidate.name == name)

    def may_win(self, row: int, column: int, dropped: Dropped = frozenset()) -> bool:
        """Neither beyond what ran nor dropped, there or everywhere."""
        name = self.candidates[row].name
        out = (name, None) in dropped or (name, self.loads[column].label) in dropped
        return not (out or self.is_censored[row])

    def best(self, column: int, dropped: Dropped = frozenset()) -> int:
        """The row to choose now at one load; of equals the smaller k. Where all are out, the baseline."""
        rows = [row for row in range(len(self.candidates)) if self.may_win(row, column, dropped)]
        plain = next(row for row, candidate in enumerate(self.candidates) if candidate.is_baseline)
        order = sorted(rows, key=lambda row: (-self.mean[row, column], self.candidates[row].k))
        return order[0] if order else plain

    def draws(self, column: int, seed: int) -> Floats:
        """Scores of all candidates at one load, drawn together."""
        random = np.random.default_rng((seed, column))
        values, vectors = np.linalg.eigh(self.covariance[column])
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        noise = random.standard_normal((_DRAWS, len(self.candidates)))
        drawn: Floats = self.mean[:, column] + noise @ root.T
        return drawn

    def requests(self, row: int) -> float:
        """That its acceptance is known from; a baseline needs none."""
        curve = _curve_of(self.curves, self.candidates[row])
        return math.inf if curve is None else curve.requests

    def sd(self, row: int, column: int) -> float:
        return math.sqrt(max(0.0, float(self.covariance[column, row, row])))


def posterior_of(problem: Problem, results: Sequence[JobResult]) -> Posterior | None:
    """None until a baseline ran: without one there is no unit of time."""
    ran = [result for result in results if result.cells]
    curves = _curves(problem, ran)
    timed = _timed_points(problem, results, curves)
    if not any(cell.point.drafter is None for cell in timed):
        return None
    known = _known(problem, results, curves, targets={cell.point.target for cell in timed})
    fit = fit_cost(_surface(problem, known), timed, tile_width=problem.cpu_tile or 1)
    batches = _batches(problem, known, fit, curves)
    predicted = fit.predict(_points(problem, curves, known, batches))
    shape = (len(known), len(problem.loads))
    lengths, length_covariance, optimistic = _lengths(known, curves)
    mean = lengths[:, None] - predicted.log_s.reshape(shape)
    times = predicted.covariance.reshape(*shape, *shape)
    time_covariance = np.array([times[:, column, :, column] for column in range(shape[1])])
    return Posterior(
        candidates=known,
        loads=problem.loads,
        mean=mean,
        covariance=time_covariance + length_covariance,
        time_covariance=time_covariance,
        is_measured=_measured(known, problem.loads, ran),
        is_censored=np.array([float(_is_censored(curves, candidate)) for candidate in known]),
        optimistic=mean + (optimistic - lengths)[:, None],
        fit=fit,
        curves=curves,
        batches=batches,
    )


def _known(
    problem: Problem, results: Sequence[JobResult], curves: Curves, *, targets: set[str]
) -> tuple[Candidate, ...]:
    """Those whose target was timed and whose way of drafting ran, less what failed."""
    failed = {result.job.candidate for result in results if result.failure}
    return tuple(
        candidate
        for candidate in problem.candidates
        if (candidate.name not in failed or candidate.is_baseline)
        and candidate.target in targets
        and _is_drafting_known(curves, candidate)
    )


def _curves(problem: Problem, results: Sequence[JobResult]) -> Curves:
    """By drafter and target."""
    runs: dict[tuple[str, str], list[AcceptanceRun]] = {}
    alone: dict[str, bool] = {}
    for result in results:
        candidate = problem.candidate(result.job.candidate)
        if candidate.drafter is not None:
            alone[candidate.drafter] = sees_text_alone(candidate.arm.speculation)
            runs.setdefault((candidate.drafter, candidate.target), []).extend(
                AcceptanceRun(k=candidate.k, requests=_varied(candidate, cell.requests))
                for cell in result.cells
            )
    curves = {}
    for (drafter, target), found in runs.items():
        ks = sorted({each.k for each in problem.candidates if each.drafter == drafter})
        if any(request.steps for run in found for request in run.requests):
            curves[drafter, target] = accepted_lengths(found, ks, prefix_only=alone[drafter])
    return curves


def _varied(candidate: Candidate, requests: tuple[RequestCounts, ...]) -> tuple[RequestCounts, ...]:
    """Without what the candidate's k does not change: the drafts of a look-up that goes before its model."""
    if kept_k(candidate.arm.speculation) <= candidate.k:
        return requests
    return tuple(keeping_longer_drafts(request, candidate.k) for request in requests)


def _curve_of(curves: Curves, candidate: Candidate) -> AcceptanceCurve | None:
    """Its own, or that of the same drafter on another variant of the target."""
    if candidate.drafter is None:
        return None
    own = curves.get((candidate.drafter, candidate.target))
    return own or next(
        (curve for (drafter, _), curve in curves.items() if drafter == candidate.drafter), None
    )


def _is_drafting_known(curves: Curves, candidate: Candidate) -> bool:
    return candidate.drafter is None or _curve_of(curves, candidate) is not None


def _is_censored(curves: Curves, candidate: Candidate) -> bool:
    curve = _curve_of(curves, candidate)
    return curve is not None and curve.at(candidate.k).is_censored


def _lengths(known: Sequence[Candidate], curves: Curves) -> tuple[Floats, Floats, Floats]:
    """log accepted length of each candidate, their covariance, and the best they could be."""
    lengths, optimistic = np.zeros(len(known)), np.zeros(len(known))
    covariance = np.zeros((len(known), len(known)))
    for row, candidate in enumerate(known):
        curve = _curve_of(curves, candidate)
        if curve is None:
            continue
        at = curve.at(candidate.k)
        lengths[row] = math.log(at.length.value)
        optimistic[row] = math.log(at.length.high if at.is_censored else at.length.value)
        ks = [point.k for point in curve.points]
        borrowed = (candidate.drafter, candidate.target) not in curves
        for other, rival in enumerate(known):
            if _curve_of(curves, rival) is curve:
                covariance[row, other] = curve.log_covariance[ks.index(candidate.k), ks.index(rival.k)]
                if borrowed and rival.target == candidate.target:
                    covariance[row, other] += BORROWED_SD**2
    return lengths, covariance, optimistic


def _surface(problem: Problem, known: Sequence[Candidate]) -> Surface:
    drafters = {
        candidate.drafter: drafting_of(candidate.arm.speculation)
        for candidate in known
        if candidate.drafter is not None
    }
    return Surface(
        targets=tuple(dict.fromkeys(candidate.target for candidate in known)),
        drafters=tuple(drafters.items()),
        experts=problem.experts,
        is_on_cpu=problem.cpu_tile is not None,
    )


def point_of(
    problem: Problem,
    curves: Curves,
    candidate: Candidate,
    batch: float,
    *,
    k: int | None = None,
    counted: StepDrafts | None = None,
) -> Point:
    """`k` 0 is the candidate's server drafting nothing; `counted` what a cell drafted, else as predicted."""
    at = None if k == 0 or (curve := _curve_of(curves, candidate)) is None else curve.at(candidate.k)
    length = 1.0 if at is None else at.length.value
    predicted = (0.0, 0.0) if at is None else (at.drafted, at.drafting)
    drafted, drafting = predicted if counted is None else (counted.tokens, counted.share)
    return Point(
        target=candidate.target,
        drafter=candidate.drafter,
        k=candidate.k if k is None else k,
        batch=batch,
        context=problem.context,
        drafted=drafted,
        drafting=drafting,
        # Every output token of the other streams brings its share of their next prompt; one stream alone does not
        # decode while its own prompt is read.
        prefill=max(0.0, batch - 1.0) * length * problem.prompt_tokens / problem.output_tokens,
        token_budget=candidate.token_budget,
    )


def _points(problem: Problem, curves: Curves, known: Sequence[Candidate], batches: Floats) -> list[Point]:
    """Every candidate at every load, row by row."""
    return [
        point_of(problem, curves, candidate, batch)
        for candidate, row in zip(known, batches, strict=True)
        for batch in row
    ]


def _timed_points(problem: Problem, results: Sequence[JobResult], curves: Curves) -> list[TimedPoint]:
    timed = []
    now_s = 0.0
    for result in results:
        candidate = problem.candidate(result.job.candidate)
        now_s += result.launch_s
        for cell in result.cells:
            at_s, now_s = now_s + cell.wall_s / 2, now_s + cell.wall_s
            seconds = step_s(cell.requests)
            if seconds is None:
                continue
            counted = StepDrafts(tokens=0.0, share=0.0)
            if candidate.drafter is not None:
                counted = step_drafts(cell.requests, candidate.k)
            point = point_of(problem, curves, candidate, _batch(problem, cell, seconds), counted=counted)
            count = sum(request.is_timed for request in cell.requests)
            timed.append(
                TimedPoint(point=point, step_s=seconds, launch=result.job.id, at_s=at_s, requests=count)
            )
    return timed


def _batch(problem: Problem, cell: CellResult, seconds: float) -> float:
    if cell.batch is not None:
        return cell.batch
    length = sum(request.tokens for request in cell.requests) / sum(
        request.steps for request in cell.requests
    )
    return nominal_batch(cell.load, tpot_s=seconds / length, output_tokens=problem.output_tokens)


def _batches(problem: Problem, known: Sequence[Candidate], fit: CostFit, curves: Curves) -> Floats:
    """Requests in flight of each candidate at each load; an open-loop load finds its own level."""
    if all(isinstance(load, Concurrency) for load in problem.loads):
        streams = [float(load.streams) for load in problem.loads if isinstance(load, Concurrency)]
        return np.tile(np.array(streams), (len(known), 1))
    batches = np.ones((len(known), len(problem.loads)))
    for _ in range(_BATCH_TURNS):
        seconds = fit.form_s(_points(problem, curves, known, batches)).reshape(batches.shape)
        for row, candidate in enumerate(known):
            curve = _curve_of(curves, candidate)
            length = 1.0 if curve is None else curve.at(candidate.k).length.value
            for column, load in enumerate(problem.loads):
                wanted = nominal_batch(
                    load, tpot_s=seconds[row, column] / length, output_tokens=problem.output_tokens
                )
                damped = batches[row, column] ** _BATCH_DAMPING * wanted ** (1 - _BATCH_DAMPING)
                batches[row, column] = min(BATCH_MAX, damped)
    return batches


def _measured(known: Sequence[Candidate], loads: Sequence[Load], results: Sequence[JobResult]) -> Floats:
    seen = {
        (result.job.candidate, cell.load)
        for result in results
        for cell in result.cells
        if step_s(cell.requests) is not None
    }
    return np.array([[float((candidate.name, load) in seen) for load in loads] for candidate in known])
