"""Which arms go into the confirmation? The best, the best of another method, and a schedule with its static rival."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from speclift.core.arm import Arm, baseline_arm
from speclift.core.errors import EngineError
from speclift.core.speculation import Combined, Drafter
from speclift.core.traffic import Concurrency, Load
from speclift.search.conclusion import Conclusion, conclude
from speclift.search.posterior import Posterior
from speclift.search.schedule import Schedule
from speclift.search.search import Search
from speclift.search.space import Candidate, with_k

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
    schedule, scheduled = _schedule(search, conclusion, winner, sequences_max=sequences_max, key=schedule_key)
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


def _schedule(
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
