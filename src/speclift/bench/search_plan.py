"""What a search sets out to do, kept in its own study so that a killed one goes on: candidates, prompts, time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from speclift.bench.search_time import SearchTime
from speclift.core.document import Document, plain_object, read
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import StudyError
from speclift.core.results import Finding, warn
from speclift.core.traffic import Concurrency, Load, Request, Workload
from speclift.core.units import Seconds
from speclift.engines.kind import engine_kind
from speclift.search.problem import Problem, Settings
from speclift.search.search import Search, start
from speclift.search.space import Space
from speclift.search.state import search_state, search_to_dict
from speclift.studies.study import Study
from speclift.workload.prompts import split

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
    kind, drafters = engine_kind(spec.kind), ways_of_drafting(space)
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


def ways_of_drafting(space: Space) -> int:
    return len({each.drafter for each in space.candidates} - {None})


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
