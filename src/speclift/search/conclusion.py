"""What does the search say? The arm for each load, for all of them, a schedule, and what goes into the confirmation.

A schedule is for engines that switch k by batch size: as few segments as lose at most 1 %.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import structs

from speclift.core.arm import Arm, baseline_arm
from speclift.core.document import Document
from speclift.core.errors import EngineError, UsageError
from speclift.core.results import Estimate
from speclift.core.speculation import Combined, Drafter
from speclift.core.traffic import Concurrency, Load
from speclift.search.counts import step_s
from speclift.search.posterior import Dropped, Posterior, point_of, posterior_of
from speclift.search.problem import Problem, Purpose
from speclift.search.search import Search
from speclift.search.selection import doubts, expected_regret
from speclift.search.space import Candidate, Elimination, with_k

# Two arms within 1 % are not told apart by what is measured here; vLLM PR 49163 takes the same tie.
TOLERANCE = 0.01


class Segment(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """From `start` to `end` sequences, both included, draft `k` tokens; 0 drafts none."""

    start: int
    end: int
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    segments: tuple[Segment, ...]
    # Against the best k at each batch size: the mean and the worst.
    loss_mean: float
    loss_max: float

    @property
    def is_static(self) -> bool:
        return len({segment.k for segment in self.segments}) == 1

    def k_at(self, batch: int) -> int:
        """Beyond the last segment its k goes on."""
        if batch < 1:
            raise UsageError(f"a batch holds at least 1 sequence, saw {batch}")
        return next((each.k for each in self.segments if batch <= each.end), self.segments[-1].k)

    def as_triples(self) -> list[list[int]]:
        """As vLLM's num_speculative_tokens_per_batch_size takes it (0.32): [first, last, k], the first from 1."""
        return [[segment.start, segment.end, segment.k] for segment in self.segments]

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Batch sizes on both sides of every switch: where a schedule has to be measured."""
        return tuple(batch for segment in self.segments[:-1] for batch in (segment.end, segment.end + 1))


def compress(
    batches: Sequence[int],
    ks: Sequence[int],
    rates: Sequence[Sequence[float]],
    *,
    weights: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
) -> Schedule:
    """The fewest segments in which every batch size stays within `tolerance` of its best k.

    `rates[i][j]` is what batch size i yields at ks[j], in any unit. Among equally few segments the one with the
    smallest weighted loss, then with the smaller k; so one k for all where one is good enough.
    """
    _require_table(batches, ks, rates, tolerance)
    shares = _shares(len(batches), weights)
    losses = [[1.0 - rate / max(row) for rate in row] for row in rates]
    order = sorted(range(len(ks)), key=lambda column: ks[column])
    # best[i]: segments, loss, k and start of the cheapest way to cover the first i batch sizes.
    best: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    starts: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(batches) + 1):
        choice: tuple[int, float, tuple[int, ...]] | None = None
        origin = (0, 0)
        for column in order:
            cost = 0.0
            for start in range(end - 1, -1, -1):
                if losses[start][column] > tolerance:
                    break
                cost += shares[start] * losses[start][column]
                count, loss, path = best[start]
                reached = (count + 1, round(loss + cost, 12), (*path, ks[column]))
                if choice is None or reached < choice:
                    choice, origin = reached, (start, column)
        assert choice is not None  # the best k of a batch size loses nothing
        best.append(choice)
        starts.append(origin)
    return _traced(batches, ks, losses, shares, starts)


def _traced(
    batches: Sequence[int],
    ks: Sequence[int],
    losses: Sequence[Sequence[float]],
    shares: Sequence[float],
    starts: Sequence[tuple[int, int]],
) -> Schedule:
    cuts: list[tuple[int, int, int]] = []
    end = len(batches)
    while end > 0:
        start, column = starts[end]
        cuts.append((start, end, column))
        end = start
    segments: list[Segment] = []
    for start, end, column in reversed(cuts):
        first = 1 if start == 0 else segments[-1].end + 1
        # Between two batch sizes that were looked at, the switch lies at their geometric middle.
        last = batches[-1] if end == len(batches) else _between(batches[end - 1], batches[end])
        segments.append(Segment(start=first, end=last, k=ks[column]))
    picked = [losses[row][column] for start, end, column in reversed(cuts) for row in range(start, end)]
    mean = math.fsum(share * loss for share, loss in zip(shares, picked, strict=True))
    return Schedule(segments=tuple(segments), loss_mean=mean, loss_max=max(picked))


def _between(lower: int, upper: int) -> int:
    return min(max(lower, math.isqrt(lower * upper)), upper - 1)


def _shares(count: int, weights: Sequence[float] | None) -> list[float]:
    if weights is None:
        return [1.0 / count] * count
    total = math.fsum(weights)
    if len(weights) != count or total <= 0 or any(weight < 0 for weight in weights):
        raise UsageError(f"a schedule over {count} batch sizes needs as many weights, saw {list(weights)}")
    return [weight / total for weight in weights]


def _require_table(
    batches: Sequence[int], ks: Sequence[int], rates: Sequence[Sequence[float]], tolerance: float
) -> None:
    if not batches or not _rises((0, *batches)):
        raise UsageError(f"a schedule needs rising batch sizes from 1 on, saw {list(batches)}")
    if not ks or not _rises((-1, *sorted(ks))):
        raise UsageError(f"a schedule needs different k of 0 or more, saw {list(ks)}")
    if len(rates) != len(batches) or any(len(row) != len(ks) for row in rates):
        raise UsageError(f"a schedule needs one rate for each of {len(batches)} batch sizes x {len(ks)} k")
    if not all(_are_rates(row) for row in rates):
        raise UsageError("a rate is at least 0, and above 0 for some k of every batch size")
    if not 0 <= tolerance < 1:
        raise UsageError(f"the tolerance is a share in 0..1, saw {tolerance}")


def _rises(values: Sequence[int]) -> bool:
    return all(lower < upper for lower, upper in pairwise(values))


def _are_rates(row: Sequence[float]) -> bool:
    return all(0 <= rate < math.inf for rate in row) and max(row) > 0


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
    schedule, gain = (
        _schedule_of(problem, posterior, drafting, static) if drafting is not None else (None, 0.0)
    )
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


def _schedule_of(
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


# A schedule that promises less than this over the best static arm is within what a run differs by itself.
SCHEDULE_GAIN_MIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Arms to confirm, the winner of the search first. `schedule` is None where none is worth a launch."""

    winner: Candidate
    runner_up: Candidate | None
    schedule: Schedule | None
    # None where the engine cannot run the schedule; its segments are then conditions for whoever routes requests.
    scheduled: Arm | None
    conclusion: Conclusion
    posterior: Posterior
    # Confirmed whatever the search thinks of it: the user asked for it by name.
    asked_for: Candidate | None = None

    @property
    def arms(self) -> tuple[Arm, ...]:
        others = [self.runner_up.arm] if self.runner_up is not None else []
        if self.asked_for not in (None, self.winner):
            # It takes the runner-up's place: one arm more would leave every one of them less time.
            others = [self.asked_for.arm]
        if self.scheduled is not None:
            return (baseline_arm(), self.scheduled, self.winner.arm, *others)
        return (baseline_arm(), self.winner.arm, *others)


def choose(
    search: Search,
    *,
    can_run: Callable[[Arm], bool],
    wants_same_method: bool,
    sequences_max: int,
    schedule_key: str | None,
    always: str | None = None,
) -> Confirmation:
    """`wants_same_method`: whether a runner-up of the winner's own method is worth its time. `schedule_key`: what the
    engine calls a schedule of k; None where it has none. `always`: the name of an arm that is confirmed in any
    case, unless it failed."""
    conclusion, posterior = conclude(search), search.posterior()
    if conclusion is None or posterior is None:
        if any(
            search.problem.candidate(each.job.candidate).is_baseline and each.cells for each in search.results
        ):
            raise EngineError(
                "fewer than half of the baseline's answers could be timed: the others came in one burst",
                hint="something buffers the stream; measure the server directly",
            )
        raise EngineError("the search has no baseline to compare with", hint="run it again with --resume")
    ranking = ranked(search, posterior)
    if not ranking:
        raise EngineError("the search measured no speculative arm", hint="give it more time: --budget")
    winner = ranking[0]
    other = _of_another_kind(winner, ranking)
    if other is None and wants_same_method:
        other = ranking[1] if len(ranking) > 1 else None
    schedule, scheduled = _scheduled_arm(
        search, conclusion, winner, sequences_max=sequences_max, key=schedule_key
    )
    if scheduled is not None and not can_run(scheduled):
        scheduled = None
    return Confirmation(
        winner=winner,
        runner_up=other,
        schedule=schedule,
        scheduled=scheduled,
        conclusion=conclusion,
        posterior=posterior,
        asked_for=_asked_for(search, always),
    )


def _asked_for(search: Search, name: str | None) -> Candidate | None:
    """Also where the search never came to measure it."""
    failed = {each.candidate for each in search.eliminated if each.stage == "failed"}
    named = (candidate for candidate in search.problem.candidates if candidate.name == name)
    return next((candidate for candidate in named if candidate.name not in failed), None)


def _of_another_kind(winner: Candidate, ranking: Sequence[Candidate]) -> Candidate | None:
    """The best that shares no method with the winner, so that both stand side by side; else the best that differs."""

    def parts(candidate: Candidate) -> set[str]:
        return set(candidate.arm.method.split("+"))

    apart = (each for each in ranking if not parts(each) & parts(winner))
    return next(apart, next((each for each in ranking if parts(each) != parts(winner)), None))


def ranked(search: Search, posterior: Posterior) -> list[Candidate]:
    """Speculative candidates, best over the traffic first; of equals the smaller k. What failed is not among them."""
    problem = search.problem
    failed = {each.candidate for each in search.eliminated if each.stage == "failed"}
    scores = {
        row: sum(
            problem.share(load) * posterior.mean[row, column] for column, load in enumerate(posterior.loads)
        )
        for row, candidate in enumerate(posterior.candidates)
        if not candidate.is_baseline and not posterior.is_censored[row] and candidate.name not in failed
    }
    order = sorted(scores, key=lambda row: (-scores[row], posterior.candidates[row].k))
    return [posterior.candidates[row] for row in order]


def confirmed_loads(loads: tuple[Load, ...], choice: Confirmation) -> tuple[Load, ...]:
    """Those asked for, and both sides of every switch of the schedule."""
    if choice.schedule is None or choice.scheduled is None:
        return loads
    extra = {Concurrency(streams=batch) for batch in choice.schedule.thresholds}
    return tuple(sorted({*loads, *extra}, key=_streams))


def _streams(load: Load) -> float:
    return float(load.streams) if isinstance(load, Concurrency) else load.per_s


def _scheduled_arm(
    search: Search, conclusion: Conclusion, winner: Candidate, *, sequences_max: int, key: str | None
) -> tuple[Schedule | None, Arm | None]:
    schedule = conclusion.schedule
    if schedule is None or conclusion.schedule_gain < SCHEDULE_GAIN_MIN:
        return None, None
    if not all(isinstance(load, Concurrency) for load in search.problem.loads):
        return None, None
    drafter = winner.arm.speculation
    if isinstance(drafter, Combined):
        return schedule, None
    # The last range goes on to the largest batch the server forms.
    segments = schedule.segments
    last = structs.replace(segments[-1], end=max(segments[-1].end, sequences_max))
    schedule = replace(schedule, segments=(*segments[:-1], last))
    if key is None:
        return schedule, None
    k_max = max(segment.k for segment in schedule.segments)
    templated = with_k(drafter, k_max)  # type: ignore[arg-type]
    assert not isinstance(templated, Combined)
    extra = (*templated.extra, (key, json.dumps(schedule.as_triples())))
    scheduled: Drafter = structs.replace(templated, extra=extra)
    return schedule, Arm(name=f"{winner.drafter}-schedule", speculation=scheduled)
