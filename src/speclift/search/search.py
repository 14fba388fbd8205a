"""What to measure next? `ask` names launches, `tell` takes what came of them; between the two nothing is hidden.

Baseline and one long run per drafter (of a combination where its parts' own runs speak for it), then one short run of
those still near, then single launches that promise more than they cost, then a mirrored race where arms are still too
near to call. A search is a value: telling gives a new one, and its dictionary resumes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any, TypeAlias

from speclift.core.document import Json, plain_object, read
from speclift.core.drafting import Drafting, drafting_of, kept_k, varied_parts
from speclift.core.errors import StudyError, UsageError
from speclift.core.speculation import Combined, method_name
from speclift.core.traffic import Load
from speclift.core.units import Seconds
from speclift.search.posterior import Dropped, Posterior, posterior_of
from speclift.search.problem import JobResult, Problem, Purpose, SearchJob, Settings
from speclift.search.selection import (
    Doubt,
    beaten,
    best_probe,
    cell_s,
    contested,
    doubts,
    expected_regret,
    far_from_best,
    grid_s,
    job_s,
    launch_s,
    left_s,
    mirrored,
    race_entries,
)
from speclift.search.space import Candidate, Elimination, sees_text_alone


def is_told(problem: Problem, drafter: str) -> bool:
    """Whether all its parts are tried alone as well: then their runs say whether it is worth one of its own."""
    combined = _first(problem, drafter).arm.speculation
    if not isinstance(combined, Combined) or not kept_k(combined):
        return False
    alone = {each.arm.method for each in problem.candidates if each.drafter is not None}
    return all(method_name(part) in alone for part in combined.parts)


def combinations(problem: Problem, posterior: Posterior) -> tuple[list[str], list[Elimination]]:
    """Drafters to run, one for each combination of methods, and why the others are left out."""
    families: dict[str, list[str]] = {}
    for drafter in dict.fromkeys(each.drafter for each in problem.candidates if each.drafter is not None):
        if is_told(problem, drafter):
            families.setdefault(_first(problem, drafter).arm.method, []).append(drafter)
    chosen, left_out = [], []
    for drafters in families.values():
        best, reasons = _chosen(problem, posterior, drafters)
        chosen += [best] if best is not None else []
        left_out += [
            Elimination(candidate=each.name, stage="predicted", reason=reasons[each.drafter])
            for each in problem.candidates
            if each.drafter in reasons
        ]
    return chosen, left_out


def _chosen(
    problem: Problem, posterior: Posterior, drafters: Sequence[str]
) -> tuple[str | None, dict[str | None, str]]:
    """Of combinations that differ in the k of their look-up alone."""
    combined = _first(problem, drafters[0]).arm.speculation
    assert isinstance(combined, Combined)
    varied = varied_parts(combined)
    models = [row for part in varied for row in _rows(posterior, method_name(part))]
    if not any(_may_pay(problem, posterior, row) for row in models):
        model = "+".join(method_name(part) for part in varied)
        reason = (
            f"{model} alone is no faster than the baseline, and would draft where the look-up finds nothing"
        )
        return None, dict.fromkeys(drafters, reason)
    look_ups = [
        row for part in combined.parts if part not in varied for row in _rows(posterior, method_name(part))
    ]
    shares = [problem.share(load) for load in posterior.loads]
    best = max(look_ups, key=lambda row: float(posterior.mean[row] @ shares), default=None)
    # Where the look-up failed alone, the longest: what it drafts costs next to nothing.
    own = {drafter: kept_k(_first(problem, drafter).arm.speculation) for drafter in drafters}
    k = max(own.values()) if best is None else posterior.candidates[best].k
    nearest = min(drafters, key=lambda drafter: abs(own[drafter] - k))
    reason = f"its look-up alone is best at k={k}"
    return nearest, {drafter: reason for drafter in drafters if drafter != nearest}


def _may_pay(problem: Problem, posterior: Posterior, row: int) -> bool:
    """Somewhere, even if it is only by luck: what a model loses alone it loses behind a look-up too."""
    plain = next(place for place, each in enumerate(posterior.candidates) if each.is_baseline)
    luck = problem.settings.near_sd
    return any(
        posterior.optimistic[row, column] + luck * posterior.sd(row, column) > posterior.mean[plain, column]
        for column in range(len(posterior.loads))
    )


def _rows(posterior: Posterior, method: str) -> list[int]:
    return [row for row, each in enumerate(posterior.candidates) if each.arm.method == method]


def _first(problem: Problem, drafter: str) -> Candidate:
    return next(each for each in problem.candidates if each.drafter == drafter)


# A job that has no number yet: what is launched, at which loads, what for, and why in words.
_Wanted: TypeAlias = tuple[Candidate, tuple[Load, ...], Purpose, str]

# Jobs that just fitted when they were planned still do when the same times are added up again.
_ROUNDING_S = 1e-6


class SearchPhase(StrEnum):
    """In order. A phase ends when all it asked for was told."""

    LONG = "long runs"
    DEEPER = "deeper runs"
    SHORT = "short runs"
    PROBE = "probes"
    RACE = "race"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    problem: Problem
    pending: tuple[SearchJob, ...]
    phase: SearchPhase = SearchPhase.LONG
    results: tuple[JobResult, ...] = ()
    eliminated: tuple[Elimination, ...] = ()
    blocks: int = 0
    # Why it ended; empty while it goes on.
    ending: str = ""

    @property
    def finished(self) -> bool:
        return self.phase is SearchPhase.DONE

    @property
    def spent_s(self) -> Seconds:
        return math.fsum(result.engine_s for result in self.results)

    @property
    def rest_s(self) -> Seconds:
        """What is left of the budget, the reserve kept."""
        return self.problem.settings.budget_s - self.problem.settings.reserve_s - self.spent_s

    @property
    def dropped(self) -> Dropped:
        return frozenset((each.candidate, each.load) for each in self.eliminated)

    def ask(self) -> tuple[SearchJob, ...]:
        """Launches in the order to run them, as many as the budget allows by the times seen so far."""
        times = accumulate(job_s(self.problem, self.results, job.loads) for job in self.pending)
        return tuple(
            job
            for job, time_s in zip(self.pending, times, strict=True)
            if time_s <= self.rest_s + _ROUNDING_S
        )

    def tell(self, result: JobResult) -> Search:
        """The search that knows this too. A job that was not asked for raises UsageError; its answer is not lost."""
        if result.job not in self.pending:
            raise UsageError(
                f"job {result.job.id} ({result.job.candidate}) was not asked for or is already told"
            )
        told = replace(
            self,
            pending=tuple(job for job in self.pending if job != result.job),
            results=(*self.results, result),
        )
        if result.failure or not result.cells:
            told = _without_failed(told, result)
        if told.pending and not told.ask():
            return replace(
                told, pending=(), phase=SearchPhase.DONE, ending="the budget allows no further launch"
            )
        return told if told.pending or told.finished else _next_phase(told)

    def posterior(self) -> Posterior | None:
        return posterior_of(self.problem, self.results)


def start(problem: Problem, *, eliminated: Sequence[Elimination] = ()) -> Search:
    """The first jobs: every target's baseline, every drafter's long run. `eliminated` is what the space refused."""
    search = Search(problem=problem, pending=(), eliminated=tuple(eliminated))
    loads = calibration_loads(problem)
    wanted = [
        (candidate, loads, Purpose.BASELINE, "baseline for every comparison")
        for candidate in _first_per_target(problem)
    ]
    wanted += [_long_run(problem, drafter) for drafter in _drafters(problem) if not is_told(problem, drafter)]
    return _with_jobs(search, wanted) or replace(
        search, phase=SearchPhase.DONE, ending="the budget allows no launch"
    )


def _long_run(problem: Problem, drafter: str) -> _Wanted:
    candidate = _at_k(problem, drafter, _k_long(problem, drafter))
    reason = f"acceptance of {drafter} at every k up to {candidate.k}, and its longest step"
    return candidate, calibration_loads(problem), Purpose.LONG, reason


def calibration_loads(problem: Problem) -> tuple[Load, ...]:
    """The middle ones of equal parts of the loads asked for: the ends are dear, and are not far from the next."""
    parts = min(problem.settings.calibration_loads, len(problem.loads))
    size = len(problem.loads) / parts
    return tuple(problem.loads[math.floor((part + 0.5) * size)] for part in range(parts))


def _next_phase(search: Search) -> Search:
    posterior = search.posterior()
    if posterior is None:
        return replace(
            search, phase=SearchPhase.DONE, ending="no baseline ran, so there is nothing to compare with"
        )
    if search.phase is SearchPhase.RACE:
        search = _eliminate(search, beaten(posterior, search.results))
    if search.phase in {SearchPhase.LONG, SearchPhase.DEEPER, SearchPhase.SHORT}:
        search = _eliminate(search, far_from_best(search.problem, posterior))
    if search.phase is SearchPhase.LONG:
        chosen, left_out = combinations(search.problem, posterior)
        search = _eliminate(search, left_out)
        wanted = [*_deeper(search, posterior), *(_long_run(search.problem, drafter) for drafter in chosen)]
        deeper = _with_jobs(replace(search, phase=SearchPhase.DEEPER), wanted)
        if deeper is not None:
            return deeper
    if search.phase in {SearchPhase.LONG, SearchPhase.DEEPER}:
        search = replace(search, phase=SearchPhase.SHORT)
        shorter = _with_jobs(search, _short(search, posterior))
        if shorter is not None:
            return shorter
    if search.phase in {SearchPhase.SHORT, SearchPhase.PROBE}:
        search = replace(search, phase=SearchPhase.PROBE)
        probed = _probe(search, posterior)
        if probed is not None:
            return probed
    return _race(replace(search, phase=SearchPhase.RACE), posterior)


def _probe(search: Search, posterior: Posterior) -> Search | None:
    """The launch that promises most, and where several run at a time those that promise most beside it."""
    problem, settings = search.problem, search.problem.settings
    left = settings.probes - sum(result.job.purpose is Purpose.PROBE for result in search.results)
    rest_s = whole_s = left_s(problem, search.results, posterior)
    starting_s = launch_s(problem, search.results)
    asking_s = {load: cell_s(problem, search.results, load) for load in problem.loads}
    wanted: dict[int, _Wanted] = {}
    while len(wanted) < min(left, settings.at_once):
        chosen = best_probe(
            problem,
            posterior,
            search.dropped,
            launch_s=starting_s,
            cell_s=asking_s,
            price=settings.price / grid_s(problem, search.results, posterior),
            left_s=rest_s,
            without=wanted,
        )
        if chosen is None:
            break
        reason = f"may be {100 * chosen.gain:.2f} % faster at {_labels(chosen.loads)}"
        wanted[chosen.row] = (posterior.candidates[chosen.row], chosen.loads, Purpose.PROBE, reason)
        rest_s -= starting_s + math.fsum(asking_s[load] for load in chosen.loads)
    return _with_jobs(search, wanted.values(), within_s=whole_s) if wanted else None


def _deeper(search: Search, posterior: Posterior) -> Iterable[_Wanted]:
    """Drafters whose k beyond the long run might be best somewhere, once each."""
    out = {elimination.candidate for elimination in search.eliminated if elimination.load is None}
    for drafter in _drafters(search.problem):
        rows = [
            row
            for row, candidate in enumerate(posterior.candidates)
            if candidate.drafter == drafter and posterior.is_censored[row] and candidate.name not in out
        ]
        hopes = [
            (posterior.optimistic[row, column] - posterior.mean[posterior.best(column), column], row)
            for row in rows
            for column in range(len(posterior.loads))
        ]
        if hopes and max(hopes)[0] > 0:
            deepest = max((posterior.candidates[row] for row in rows), key=lambda candidate: candidate.k)
            reason = f"{drafter} may be faster at a larger k"
            yield deepest, calibration_loads(search.problem), Purpose.LONG, reason


def _short(search: Search, posterior: Posterior) -> Iterable[_Wanted]:
    problem = search.problem
    for drafter in _drafters(problem):
        ran = {
            problem.candidate(result.job.candidate).k
            for result in search.results
            if result.cells and problem.candidate(result.job.candidate).drafter == drafter
        }
        low, high = problem.settings.k_short
        candidate = _at_k(problem, drafter, min(max(_best_k(problem, posterior, drafter), low), high))
        if sees_text_alone(candidate.arm.speculation):
            continue
        if not ran or candidate.k in ran or not _alive(search, drafter):
            continue
        reason = f"step time and acceptance of {drafter} at k={candidate.k}"
        yield candidate, calibration_loads(problem), Purpose.SHORT, reason


def _race(search: Search, posterior: Posterior) -> Search:
    problem = search.problem
    found = doubts(problem, posterior, search.dropped)
    regret = expected_regret(problem, found)
    if regret < problem.settings.regret_goal:
        return replace(
            search, phase=SearchPhase.DONE, ending=f"more search would gain about {100 * regret:.2f} %"
        )
    if search.blocks >= problem.settings.race_blocks:
        ending = (
            f"compared directly in {search.blocks} blocks"
            if search.blocks
            else "no further launch is worth its time"
        )
        return replace(search, phase=SearchPhase.DONE, ending=ending)
    entries = race_entries(problem, posterior, found)
    if entries and _race_promise(search, posterior, found, entries) <= 0:
        ending = f"a direct comparison costs more time than the {100 * regret:.2f} % it could gain"
        return replace(search, phase=SearchPhase.DONE, ending=ending)
    while len(entries) > 1:
        order = mirrored(list(entries))
        wanted = [
            (problem.candidate(name), entries[name], Purpose.RACE, _race_reason(name, entries))
            for name in order
        ]
        raced = _with_jobs(search, wanted, within_s=left_s(problem, search.results, posterior))
        if raced is not None:
            return replace(raced, blocks=search.blocks + 1)
        smaller = contested(dict(list(entries.items())[:-1]))
        if len(smaller) < 2:
            break
        entries = smaller
    ending = "no time left for a direct comparison" if entries else "no two arms are close to each other"
    return replace(search, phase=SearchPhase.DONE, ending=ending)


def _race_promise(
    search: Search, posterior: Posterior, found: Sequence[Doubt], entries: dict[str, tuple[Load, ...]]
) -> float:
    """What a block may gain at most over the traffic, less its price."""
    raced = {load for loads in entries.values() for load in loads}
    gain = math.fsum(
        search.problem.share(doubt.load) * doubt.regret for doubt in found if doubt.load in raced
    )
    # Every arm runs twice in a block.
    seconds = 2 * math.fsum(job_s(search.problem, search.results, loads) for loads in entries.values())
    return gain - search.problem.settings.price * seconds / grid_s(search.problem, search.results, posterior)


def _best_k(problem: Problem, posterior: Posterior, drafter: str) -> int:
    """Of one drafter, over the traffic."""
    rows = [row for row, candidate in enumerate(posterior.candidates) if candidate.drafter == drafter]
    shares = [problem.share(load) for load in posterior.loads]
    return (
        posterior.candidates[max(rows, key=lambda row: float(posterior.mean[row] @ shares))].k if rows else 1
    )


def _race_reason(name: str, entries: dict[str, tuple[Load, ...]]) -> str:
    rivals = [other for other in entries if other != name and set(entries[other]) & set(entries[name])]
    return (
        f"predictions are too close: direct comparison with {', '.join(rivals)} at {_labels(entries[name])}"
    )


def _labels(loads: Sequence[Load]) -> str:
    return ", ".join(load.label for load in loads)


def _eliminate(search: Search, eliminated: Sequence[Elimination]) -> Search:
    known = {(each.candidate, each.load) for each in search.eliminated}
    fresh = [each for each in eliminated if (each.candidate, each.load) not in known]
    return replace(search, eliminated=(*search.eliminated, *fresh))


def _without_failed(search: Search, result: JobResult) -> Search:
    """A candidate that failed is out; a drafter's long run is tried once more at a smaller k."""
    problem, job = search.problem, result.job
    reason = result.failure or "ran without any result"
    failed = Elimination(candidate=job.candidate, stage="failed", reason=reason)
    search = _eliminate(search, [failed])
    search = replace(
        search, pending=tuple(each for each in search.pending if each.candidate != job.candidate)
    )
    candidate = problem.candidate(job.candidate)
    if candidate.is_baseline and not _may_have_baseline(search):
        ending = f"no baseline ran, so there is nothing to compare with: {reason}"
        return replace(search, pending=(), phase=SearchPhase.DONE, ending=ending)
    fallback = _fallback(search, candidate) if job.purpose is Purpose.LONG else None
    if fallback is None:
        return search
    retry = (fallback, job.loads, Purpose.LONG, f"{candidate.name} failed: {reason}"[:200])
    return _with_jobs(search, [retry], keep=True) or search


def _fallback(search: Search, failed: Candidate) -> Candidate | None:
    """The same drafter at about half the k that failed; None where it has none, or had its second try."""
    problem = search.problem
    tries = sum(
        result.job.purpose is Purpose.LONG
        and problem.candidate(result.job.candidate).drafter == failed.drafter
        for result in search.results
    )
    smaller = [
        candidate
        for candidate in problem.candidates
        if (candidate.drafter, candidate.target, candidate.token_budget)
        == (failed.drafter, failed.target, failed.token_budget)
        and candidate.k < failed.k
    ]
    if tries > 1:
        return None
    return min(smaller, key=lambda candidate: abs(candidate.k - failed.k / 2), default=None)


def _may_have_baseline(search: Search) -> bool:
    ran = [result.job.candidate for result in search.results if result.cells]
    names = [*ran, *(job.candidate for job in search.pending)]
    return any(search.problem.candidate(name).is_baseline for name in names)


def _with_jobs(
    search: Search,
    wanted: Iterable[_Wanted],
    *,
    within_s: Seconds | None = None,
    keep: bool = False,
) -> Search | None:
    """With the jobs that the budget still allows; None where that leaves nothing to do.

    `within_s` is for all of them or none.
    """
    rest_s = search.rest_s if within_s is None else within_s
    jobs = list(search.pending) if keep else []
    first = 1 + max([job.id for job in jobs] + [result.job.id for result in search.results], default=0)
    asked = list(wanted)
    for number, (candidate, loads, purpose, reason) in enumerate(asked):
        rest_s -= job_s(search.problem, search.results, loads)
        if rest_s < -_ROUNDING_S:
            if within_s is not None:
                return None
            break
        turn = int(purpose is Purpose.RACE and number >= len(asked) // 2)
        block = search.blocks + 1 if purpose is Purpose.RACE else 0
        jobs.append(
            SearchJob(
                id=first + number,
                candidate=candidate.name,
                loads=loads,
                purpose=purpose,
                reason=reason,
                block=block,
                turn=turn,
            )
        )
    return replace(search, pending=tuple(jobs)) if jobs else None


def _alive(search: Search, drafter: str) -> bool:
    out = {elimination.candidate for elimination in search.eliminated if elimination.load is None}
    return any(each.drafter == drafter and each.name not in out for each in search.problem.candidates)


def _drafters(problem: Problem) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.drafter for each in problem.candidates if each.drafter is not None))


def _first_per_target(problem: Problem) -> list[Candidate]:
    targets: dict[str, Candidate] = {}
    for candidate in problem.candidates:
        if candidate.is_baseline:
            targets.setdefault(candidate.target, candidate)
    return list(targets.values())


def _at_k(problem: Problem, drafter: str, k: int) -> Candidate:
    """The drafter's candidate nearest to k, on the first target and budget that it has."""
    own = [each for each in problem.candidates if each.drafter == drafter]
    first = own[0]
    like = [each for each in own if (each.target, each.token_budget) == (first.target, first.token_budget)]
    return min(like, key=lambda each: (abs(each.k - k), each.k))


def _k_long(problem: Problem, drafter: str) -> int:
    own = next(each for each in problem.candidates if each.drafter == drafter)
    looks_up = drafting_of(own.arm.speculation) is Drafting.LOOK_UP
    return problem.settings.k_long_lookup if looks_up else problem.settings.k_long


# 2: a candidate holds its arm as a value, and what was dropped is called by its arm.
SCHEMA = 2
# As JSON is read.
_State: TypeAlias = dict[str, Any]


def search_to_dict(search: Search) -> dict[str, Json]:
    """JSON-ready; `search_from_dict` reads it back equal."""
    return {"schema": SCHEMA, **plain_object(search)}


def search_from_dict(data: object) -> Search:
    """The search, also from schema 1; StudyError where it is of another form or damaged."""
    state = search_state(data)
    try:
        return read(Search, state)
    except ValueError as error:
        raise StudyError(f"the search is damaged: {error}", hint="start a new search") from error


def search_state(data: object) -> _State:
    """The fields of a Search as they are kept today; StudyError where one is missing."""
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or schema not in (1, SCHEMA):
        raise StudyError(
            f"a search of schema {SCHEMA} was expected, saw {schema!r}", hint="start a new search"
        )
    try:
        state = _from_schema_1(data) if schema == 1 else dict(data)
        problem = state["problem"]
        settings = problem["settings"]
        for kind, part in ((Search, state), (Problem, problem), (Settings, settings)):
            if missing := [each.name for each in fields(kind) if each.name not in part]:
                raise KeyError(missing[0])
        # JSON has no infinity.
        budget_s = math.inf if settings["budget_s"] is None else settings["budget_s"]
        return {**state, "problem": {**problem, "settings": {**settings, "budget_s": budget_s}}}
    except (KeyError, TypeError) as error:
        raise StudyError(f"the search is damaged: {error!r}", hint="start a new search") from error


def _from_schema_1(data: Mapping[str, object]) -> _State:
    """Searches of before a CPU's tile was known have none."""
    state: _State = dict(data)
    candidates = [
        {**candidate, "arm": {"name": candidate["name"], "speculation": candidate["speculation"]}}
        for candidate in state["problem"]["candidates"]
    ]
    return {
        **state,
        "problem": {"cpu_tile": None, **state["problem"], "candidates": candidates},
        "eliminated": [{**dropped, "arm": dropped["candidate"]} for dropped in state["eliminated"]],
    }
