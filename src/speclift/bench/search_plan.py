"""What a search sets out to do, kept in its own study so that a killed one goes on: candidates, prompts, time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from speclift.core.document import Document, plain_object, read
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import StudyError
from speclift.core.quantities import duration
from speclift.core.results import Finding, warn
from speclift.core.traffic import Concurrency, Load, Request, Workload
from speclift.core.units import Seconds
from speclift.engines.kind import engine_kind
from speclift.search.problem import Problem, Settings
from speclift.search.search import Search, search_state, search_to_dict, start
from speclift.search.space import Candidate, Space
from speclift.studies.study import Study
from speclift.workload.prompts import split

# Of the time that the lossless gate leaves; the rest is the confirmation's.
SEARCH_SHARE = 0.4
QUICK_SEARCH_SHARE = 0.285
# What a search may take of it at the most where launches are slow, and what one costs with its cell, in launches.
SEARCH_SHARE_MAX = 0.57
LAUNCH_ROOM = 1.5
# Of the confirmation, at the least: the baseline and the winner.
CONFIRMED_LAUNCHES = 2
# Of a whole search: the baseline and one way of drafting, without which there is nothing to choose between, and those.
# Further ways of drafting join while time lasts.
SHORTEST_LAUNCHES = 2 + CONFIRMED_LAUNCHES
# What launches may take where they are what takes the time: a vLLM server starts in 90 s and more on a GPU and answers
# a cell of two dozen prompts in a few seconds.
LAUNCHING_SHARE_MAX = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTime:
    """What there is, and what a launch takes, by what is known before the first."""

    # Of search, confirmation and gate together; None is for as long as it takes.
    budget_s: Seconds | None
    # The gate's part of it.
    gate_share: float
    launch_s: Seconds
    is_quick: bool

    @property
    def working_s(self) -> Seconds | None:
        """For search and confirmation."""
        return None if self.budget_s is None else self.budget_s * (1.0 - self.gate_share)

    def search_s(self, *, drafters: int) -> Seconds | None:
        """The search's part; None where it has no limit."""
        if self.working_s is None:
            return None
        share = QUICK_SEARCH_SHARE if self.is_quick else SEARCH_SHARE
        most_s = max(self.working_s * share, self.working_s - CONFIRMED_LAUNCHES * self.launch_s)
        return min(max(self.working_s * share, self._calibrating_s(drafters)), most_s)

    def cells_s(self, *, drafters: int) -> Seconds | None:
        """What of that its cells may take: launches that they cannot do without come first."""
        search_s = self.search_s(drafters=drafters)
        if self.working_s is None or search_s is None:
            return None
        left_s = max(0.0, self.working_s - SHORTEST_LAUNCHES * self.launch_s)
        return min(search_s, max(left_s, (1.0 - LAUNCHING_SHARE_MAX) * self.working_s))

    def course(self, *, drafters: int, arms: int, is_named: bool) -> Course:
        """`arms`: how many would be measured without a search; not `is_named`: the few that the engine has by default,
        which the search goes beyond."""
        if self.working_s is None or self._calibrating_s(drafters) <= SEARCH_SHARE_MAX * self.working_s:
            return Course(searches=True)
        searching, shortest = 1 + drafters + CONFIRMED_LAUNCHES, SHORTEST_LAUNCHES
        fits = shortest * self.launch_s <= LAUNCHING_SHARE_MAX * self.working_s
        each = f"of about {duration(self.launch_s)}"
        if fits and (searching <= arms or not is_named):
            why = f"a search takes {shortest} to {searching} launches {each}"
            return Course(
                searches=True, why=f"{why}, measuring all {arms} arms {1 + arms}" if is_named else why
            )
        if fits:
            return Course(
                searches=False,
                why=f"all take {1 + arms} launches {each}, a search {searching}: it is not quicker",
            )
        return Course(
            searches=False,
            why=f"a search takes at least {shortest} launches {each}, and there are {duration(self.working_s)}",
        )

    def _calibrating_s(self, drafters: int) -> Seconds:
        """Baseline and one run of every way of drafting, one after the other."""
        return (1 + drafters) * self.launch_s * LAUNCH_ROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Whether to search; why, where launches are so slow that it is a question."""

    searches: bool
    why: str = ""


# Under these names the search's study keeps its plan, what its jobs cost, and how many requests its cells have.
PLAN, JOBS, SIZES = "search-plan", "search-jobs", "search-sizes"

# Prompts of a search; the quick look has seconds for a cell.
PROMPTS_MIN = 24
QUICK_PROMPTS = 12
# Of a cell, at the least. Where there are several loads their cells together tell of acceptance, and each has to tell
# the time of a step alone: at few streams a dozen prompts take as long as hundreds do at many.
CELL_PROMPTS_MIN = 12
CELL_PROMPTS_PER_STREAM = 2
# Fewer than these held out say nothing of the winner, so everything is then used for both.
HELD_OUT_MIN = 8
TUNING_MIN = 4
# Launches that a search should have time for at the least.
CELLS_WANTED = 6
RACE_BLOCKS = 1
# Rough, and only to place the cells of an unseen workload on the cost surface.
CHARACTERS_PER_TOKEN = 4.0


class SearchPlan(Document, frozen=True, kw_only=True):
    """What a search sets out to do: the ids of the prompts it tunes on, and of those it is confirmed on."""

    search: Search
    tuning: tuple[str, ...]
    held_out: tuple[str, ...]
    # Of search, confirmation and gate together, and the search's part; None is for as long as it takes.
    budget_s: Seconds | None
    search_s: Seconds | None
    # What cells may take of that.
    cells_s: Seconds | None
    is_quick: bool
    # As asked; None lets what fits decide.
    together: bool | None

    @property
    def cell_limit_s(self) -> Seconds | None:
        """So that baseline, long runs and a few more find their time."""
        loads = len(self.search.problem.loads)
        return None if self.cells_s is None else self.cells_s / (CELLS_WANTED * loads)

    @property
    def is_held_out(self) -> bool:
        return not set(self.tuning) & set(self.held_out)


def plan_search(
    space: Space,
    workload: Workload,
    loads: tuple[Load, ...],
    *,
    spec: EngineSpec,
    seed: int,
    time: SearchTime,
    together: bool | None,
) -> SearchPlan:
    kind, drafters = engine_kind(spec.kind), ways_of_drafting(space.candidates)
    wanted = QUICK_PROMPTS if time.is_quick else search_prompts(loads)
    tuning, held_out = divide(workload, wanted=wanted, seed=seed)
    output = math.fsum(request.max_tokens for request in tuning.requests) / len(tuning.requests)
    prompt = math.fsum(_characters(each) for each in tuning.requests) / len(tuning.requests)
    prompt /= CHARACTERS_PER_TOKEN
    problem = Problem(
        candidates=space.candidates,
        loads=loads,
        context=prompt + output / 2,
        prompt_tokens=prompt,
        output_tokens=output,
        cpu_tile=kind.cpu_tile(spec),
        # Time is watched over by whoever runs the jobs: a launch takes what it takes.
        settings=Settings(
            launch_s_guess=time.launch_s,
            # Real machines drift more than the synthetic ones on which probes alone did as well.
            race_blocks=RACE_BLOCKS,
        ),
    )
    return SearchPlan(
        search=start(problem, eliminated=space.eliminated),
        tuning=tuple(request.id for request in tuning.requests),
        held_out=tuple(request.id for request in held_out.requests),
        budget_s=time.budget_s,
        search_s=time.search_s(drafters=drafters),
        cells_s=time.cells_s(drafters=drafters),
        is_quick=time.is_quick,
        together=together,
    )


def ways_of_drafting(candidates: Sequence[Candidate]) -> int:
    return len({each.drafter for each in candidates} - {None})


def search_prompts(loads: Sequence[Load]) -> int:
    return max([PROMPTS_MIN, *(cell_prompts(load) for load in loads if isinstance(load, Concurrency))])


def cell_prompts(load: Concurrency) -> int:
    """Enough to time a step at this load."""
    return max(CELL_PROMPTS_MIN, CELL_PROMPTS_PER_STREAM * load.streams)


def divide(workload: Workload, *, wanted: int, seed: int) -> tuple[Workload, Workload]:
    """Prompts to search on, and others to confirm on; all for both where they are too few to divide."""
    total = len(workload.requests)
    tuning, held_out = split(workload, seed=seed, tune_share=min(0.5, wanted / total))
    if len(tuning.requests) < TUNING_MIN or len(held_out.requests) < HELD_OUT_MIN:
        return workload, workload
    return tuning, held_out


def no_hold_out(count: int) -> Finding:
    return warn(
        "no-hold-out",
        f"{count} prompts are too few for a hold-out set: the winner was chosen and confirmed on the same "
        "prompts, so its speedup may be too high",
        then=f"give at least {2 * HELD_OUT_MIN} prompts with --prompts",
    )


def keep_plan(study: Study, plan: SearchPlan) -> None:
    study.keep(PLAN, {**plain_object(plan), "search": search_to_dict(plan.search)})


def kept_plan(study: Study) -> SearchPlan:
    kept = study.kept(PLAN)
    if kept is None:
        raise StudyError(f"{study.path} is incomplete: it has no search plan", hint="start a new study")
    try:
        # Plans of before it was kept apart have no time for cells: all of the search's part.
        times = {"cells_s": kept.get("search_s")}
        return read(SearchPlan, {**times, **kept, "search": search_state(kept.get("search"))})
    except ValueError as error:
        raise StudyError(
            f"the search plan in {study.path} is damaged: {error}", hint="start a new study"
        ) from error


def _characters(request: Request) -> int:
    return len(request.prompt or "") + sum(len(message.content) for message in request.messages)
