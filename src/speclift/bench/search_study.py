"""tune: search on some prompts, confirm on others. `decide` is the same where there is anything to search."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from msgspec import structs

from speclift.bench.ask import Ask
from speclift.bench.draft_files import draft_files
from speclift.bench.gate_study import GATE_SHARES, before_gate
from speclift.bench.interrupts import run_until_signal
from speclift.bench.limits import require_sane
from speclift.bench.live import Servers
from speclift.bench.observer import Observer
from speclift.bench.prepare import (
    CONFIRMED_MAX,
    SIDE_BY_SIDE_MAX,
    Bench,
    Experiment,
    as_quick_look,
    crowding,
    draft_paths,
    is_worth_searching,
    placed,
    prepare_arms,
    read_inputs,
    with_control,
)
from speclift.bench.run import request_limit_s
from speclift.bench.search_plan import (
    Course,
    SearchPlan,
    SearchTime,
    keep_plan,
    kept_plan,
    no_hold_out,
    plan_search,
    ways_of_drafting,
)
from speclift.bench.search_run import ArmRunner, LocalRunner, finished_jobs, replayed, run_search, spent_s
from speclift.bench.search_space import (
    Wanted,
    named_methods,
    refused_by,
    silent_on,
    space_of,
    too_large,
    usual,
    wanted,
    with_yours,
)
from speclift.bench.study_paths import keep_prompts_source, launch_seen_s, prompts_of, search_path
from speclift.bench.time_limit import BudgetSpent, ends_at
from speclift.core.arm import YOURS, Arm, baseline_arm
from speclift.core.document import plain_object
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError, UsageError
from speclift.core.quantities import duration
from speclift.core.records import Provenance
from speclift.core.results import Finding, inform
from speclift.core.traffic import Concurrency
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.engines.kind import engine_kind
from speclift.engines.protocol import Engine
from speclift.search.conclusion import Confirmation, choose, confirmed_loads
from speclift.search.problem import JobResult
from speclift.search.search import Search
from speclift.search.selection import grid_s
from speclift.search.space import Axes, Candidate
from speclift.search.tuning import (
    TUNING,
    PromptSplit,
    SearchedCell,
    SearchedJob,
    SearchedSchedule,
    SearchError,
    Tuning,
)
from speclift.studies.study import Study, is_study
from speclift.workload.experiment import StudyPlan
from speclift.workload.laps import interim_plan_for

# Enough sequences for any schedule's last range where the server sets no limit of its own.
SEQUENCES_MAX = 1024


class SearchStopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during a search: where it can be resumed, and what it knew."""

    def __init__(self, path: Path, so_far: Tuning | None) -> None:
        super().__init__(str(path))
        self.path, self.so_far = path, so_far


class _Unannounced(Observer):
    """A search says of each job what it launches and why; the launch itself need not be said again."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def noticed(self, finding: Finding) -> None:
        self._observer.noticed(finding)


def prospect(ask: Ask, observer: Observer, *, always: bool) -> Experiment | None:
    """What may be searched; None where what was named is measured as it stands.

    `always`: for tune, which searches whatever it can.
    """
    is_named = any((ask.methods, ask.ks, ask.drafts, ask.yours))
    kind = engine_kind(ask.engine)
    if not kind.launches or not (kind.searches_unasked or is_named or always):
        return None
    require_sane(ask)
    found = wanted(ask, model=ask.server.model, drafts=draft_paths(ask, observer))
    if sum(len(each.ks) for each in found) <= CONFIRMED_MAX and not (found and ask.has_variants):
        return None
    asked = as_quick_look(ask, observer, searches=True) if ask.is_quick_look else ask
    workload, spec = read_inputs(asked, observer)
    if not named_methods(ask):
        found = (*found, *usual(kind, kind.installed_drafters(spec)))
    axes = _axes_with_files(ask, found, observer)
    everything = with_yours(space_of(found, axes), ask.yours).candidates
    spec = _varied(spec, everything)
    engine = build_engine(spec)
    refused = refused_by(lambda each: engine.command(each.arm, port=0))
    predicates = [refused, silent_on(ask.engine), too_large(ask, spec.settings)]
    space = with_yours(space_of(found, axes, predicates), ask.yours)
    if all(each.is_baseline for each in space.candidates):
        for each in everything:  # what is wrong with the first, in the engine's own words
            engine.command(each.arm, port=0)
        raise UsageError(
            f"no arm can run here: {space.eliminated[0].reason}", hint="choose others with --method and --k"
        )
    arms = tuple(each.arm for each in space.candidates)
    experiment = prepare_arms(asked, workload, spec, arms, searches=is_worth_searching(space.candidates))
    return replace(experiment, space=space)


def _varied(spec: EngineSpec, candidates: Sequence[Candidate]) -> EngineSpec:
    """With the servers of the candidates that need one of their own."""
    own = []
    for each in candidates:
        changed = {"target_quant": each.quantisation, "token_budget": each.token_budget}
        given = {name: value for name, value in changed.items() if value is not None}
        if given:
            own.append((each.name, replace(spec.settings, **given)))  # type: ignore[arg-type]
    return replace(spec, by_arm=tuple(own))


def time_to_search(path: Path, experiment: Experiment, ask: Ask) -> SearchTime:
    spec = experiment.engine_spec
    return SearchTime(
        budget_s=experiment.budget_s,
        gate_share=GATE_SHARES[ask.verify],
        launch_s=launch_seen_s(path.parent, spec) or engine_kind(spec.kind).launch_guess_s,
        is_quick=ask.is_quick_look,
    )


def course_of(experiment: Experiment, ask: Ask, time: SearchTime) -> Course:
    is_named = bool(named_methods(ask) or ask.yours)
    arms = sum(not each.is_baseline for each in experiment.candidates)
    return time.course(drafters=ways_of_drafting(experiment.candidates), arms=arms, is_named=is_named)


def start_search(
    path: Path, experiment: Experiment, ask: Ask, known: Provenance, *, time: SearchTime
) -> Study:
    """The search's study, planned and empty."""
    assert experiment.space is not None
    plan = plan_search(
        experiment.space,
        experiment.workload,
        experiment.plan.loads,
        spec=experiment.engine_spec,
        seed=ask.seed,
        time=time,
        together=ask.side_by_side,
    )
    study = Study.create(
        search_path(path),
        # As many as were asked for are sent to confirm, however few prompts the search leaves for it.
        plan=experiment.plan
        if ask.requests is None
        else replace(experiment.plan, request_count=ask.requests),
        engine=experiment.engine_spec,
        goals=ask.goals,
        provenance=known,
        keeps_text=not ask.no_text,
    )
    keep_prompts_source(study, ask)
    for finding in experiment.findings:
        study.add_finding(finding)
    if not plan.is_held_out:
        study.add_finding(no_hold_out(len(plan.held_out)))
    keep_plan(study, plan)
    return study


def no_search(budget_s: Seconds | None, why: str) -> Finding:
    return inform(
        "no-search",
        f"no search within {duration(budget_s or 0.0)}: {why}; every arm is measured instead",
        then="give a longer --budget to search, or choose what to measure with --method and --k",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerNeeds:
    """What whoever runs the jobs of a search is told. `is_paced`: every arm fits beside a baseline."""

    study: Study
    plan: SearchPlan
    observer: Observer
    limit_s: Seconds
    workers: int
    resumed_as: Path
    is_paced: bool


class SearchRunner(ArmRunner, Protocol):
    """Inside its block it has whatever it needs to run jobs."""

    @property
    def doing(self) -> str:
        """What is under way, for whoever has to say where the time ended."""
        ...

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class SearchPlace(Protocol):
    """Where the jobs of a search run, and how many of them at a time."""

    @property
    def at_once(self) -> int: ...

    def runner(self, needs: RunnerNeeds) -> SearchRunner: ...


class SearchHere:
    """This machine: one job at a time, for two would share it."""

    at_once = 1

    def runner(self, needs: RunnerNeeds) -> SearchRunner:
        engine = build_engine(needs.study.engine)
        servers = Servers(
            needs.study,
            engine,
            observer=_Unannounced(needs.observer),
            seed=needs.study.plan.seed,
            limit_s=needs.limit_s,
            workers=needs.workers,
            resumed_as=needs.resumed_as,
        )
        return LocalRunner(
            needs.study,
            servers,
            cell_limit_s=needs.plan.cell_limit_s,
            is_paced=needs.is_paced,
            at_once=_starting_at_once(engine, is_paced=needs.is_paced),
            fits=lambda arms: bool(needs.plan.together) or engine.fits_together(arms),
        )


SEARCH_HERE = SearchHere()


def search_best(bench: Bench, observer: Observer, place: SearchPlace = SEARCH_HERE) -> Bench:
    """Runs the search to its end, where there is one, and opens the study that confirms what it found."""
    if not bench.searches:
        return bench
    with bench.study as searching:
        path = searching.path.parent
        plan = _planned_for(place.at_once, searching)
        search = _searched(bench, plan, observer, place, resumed_as=path)
        return replace(bench, study=open_confirmation(path, searching, search, plan), searches=False)


def _planned_for(at_once: int, searching: Study) -> SearchPlan:
    """A search asks for as many jobs at a time as it began with: one that goes on, goes on as it would have."""
    plan = kept_plan(searching)
    problem = plan.search.problem
    if finished_jobs(searching) or problem.settings.at_once == at_once:
        return plan
    problem = replace(problem, settings=replace(problem.settings, at_once=at_once))
    plan = structs.replace(plan, search=replace(plan.search, problem=problem))
    keep_plan(searching, plan)
    return plan


def _searched(
    bench: Bench, plan: SearchPlan, observer: Observer, place: SearchPlace, *, resumed_as: Path
) -> Search:
    searching, deadline = bench.study, bench.deadline
    begun_s = time.monotonic()
    search = replayed(plan.search, searching)
    before_s = spent_s(searching)
    deadline_s = None if plan.search_s is None else begun_s + plan.search_s - before_s
    engine = build_engine(searching.engine)
    tuning = set(plan.tuning)
    requests = [request for request in searching.plan.requests if request.id in tuning]
    is_paced = bool(search.ask()) and _fits_beside_baseline(engine, searching.plan.arms, plan.together)
    runner = place.runner(
        RunnerNeeds(
            study=searching,
            plan=plan,
            observer=observer,
            limit_s=request_limit_s(deadline),
            workers=bench.ask.workers,
            resumed_as=resumed_as,
            is_paced=is_paced,
        )
    )

    async def work() -> Search:
        async with ends_at(deadline, lambda: runner.doing), runner:
            return await run_search(
                search,
                runner,
                requests,
                observer=observer,
                deadline_s=deadline_s,
                # What the gate needs is not the search's to spend, but without an arm there is nothing to check.
                ends=before_gate(bench),
                latest=deadline,
            )

    try:
        return run_until_signal(work())
    except BudgetSpent:
        # What its finished jobs say still stands; without any, choosing says so.
        return replayed(plan.search, searching)
    except KeyboardInterrupt as error:
        raise SearchStopped(resumed_as, _so_far(searching, plan)) from error


def time_left_s(searching: Study) -> Seconds | None:
    """Of the time that a search was planned with; None where it had no limit."""
    budget_s = kept_plan(searching).budget_s
    return None if budget_s is None else max(1.0, budget_s - spent_s(searching))


def _fits_beside_baseline(engine: Engine, arms: Sequence[Arm], together: bool | None) -> bool:
    """Whether any arm may run while a baseline is up; as asked with --side-by-side, else where memory allows it."""
    if together is not None:
        return together
    return all(engine.fits_together((baseline_arm(), arm)) for arm in arms)


def _starting_at_once(engine: Engine, *, is_paced: bool) -> int:
    """How many servers of a search may start together. Only beside a baseline that keeps the pace: where not every arm
    fits there, each has what it takes by itself, and no two do."""
    return max(1, min(engine.launches_at_once, SIDE_BY_SIDE_MAX) - 1) if is_paced else 1


def open_confirmation(path: Path, searching: Study, search: Search, plan: SearchPlan) -> Study:
    spec, asked = searching.engine, searching.plan
    choice = _chosen(spec, search, plan)
    loads = confirmed_loads(asked.loads, choice)
    slots = [load.streams for load in loads if isinstance(load, Concurrency)]
    spec = _for_confirmation(spec, choice, slots=max([spec.settings.slots, *slots]))
    spec, together = placed(spec, choice.arms, plan.together)
    spec, arms = with_control(spec, choice.arms)
    engine = build_engine(spec)
    held_out = set(plan.held_out)
    # What was to be confirmed in whole rounds, as on a fleet, still is.
    is_whole = asked.looks is not None and set(asked.looks.sizes) == {1.0}
    repeats = is_whole or (asked.request_count is not None and asked.request_count > len(held_out))
    confirming = StudyPlan(
        arms=arms,
        loads=loads,
        requests=tuple(request for request in asked.requests if request.id in held_out),
        temperatures=asked.temperatures,
        rounds=asked.rounds,
        together=together,
        seed=asked.seed,
        request_count=asked.request_count,
        looks=None
        if asked.looks is None
        else interim_plan_for(asked.rounds, together=together, repeats=repeats),
    )
    study = Study.create(
        path,
        plan=confirming,
        engine=spec,
        goals=searching.goals,
        provenance=replace(searching.provenance, commands=tuple(engine.command(arm, port=0) for arm in arms)),
        keeps_text=searching.keeps_text,
    )
    if (source := prompts_of(searching)) is not None:
        keep_prompts_source(study, Ask.of(prompts=source))
    tuning = tuning_from(search, plan, choice, spent_s=spent_s(searching))
    study.keep(TUNING, plain_object(tuning))
    for finding in (*searching.findings(), *crowding(confirming, spec)):
        study.add_finding(finding)
    return study


def complete_confirmation(study: Study) -> None:
    """For a study that was killed at its birth: created, and not yet told what the search found."""
    if study.kept(TUNING) is not None or not is_study(search_path(study.path)):
        return
    with Study.open(search_path(study.path)) as searching:
        plan = kept_plan(searching)
        search = replayed(plan.search, searching)
        study.keep(TUNING, plain_object(_tuning(searching, search, plan)))
        for finding in set(searching.findings()) - set(study.findings()):
            study.add_finding(finding)


def _chosen(spec: EngineSpec, search: Search, plan: SearchPlan) -> Confirmation:
    engine = build_engine(spec)
    return choose(
        search,
        can_run=lambda arm: _can_run(engine, arm),
        wants_same_method=not plan.is_quick,
        sequences_max=spec.settings.max_num_seqs or SEQUENCES_MAX,
        schedule_key=engine_kind(spec.kind).schedule_key,
        always=YOURS,
    )


def _tuning(searching: Study, search: Search, plan: SearchPlan) -> Tuning:
    return tuning_from(search, plan, _chosen(searching.engine, search, plan), spent_s=spent_s(searching))


def _so_far(searching: Study, plan: SearchPlan) -> Tuning | None:
    """What a search that was stopped would say; None where it has not compared anything yet."""
    try:
        return _tuning(searching, replayed(plan.search, searching), plan)
    except EngineError:
        return None


def _for_confirmation(spec: EngineSpec, choice: Confirmation, *, slots: int) -> EngineSpec:
    own = dict(spec.by_arm)
    if choice.scheduled is not None and choice.winner.name in own:
        own[choice.scheduled.name] = own[choice.winner.name]
    names = {arm.name for arm in choice.arms}
    return replace(
        spec,
        settings=replace(spec.settings, slots=slots),
        by_arm=tuple((name, replace(held, slots=slots)) for name, held in own.items() if name in names),
    )


def _can_run(engine: Engine, arm: Arm) -> bool:
    try:
        engine.command(arm, port=0)
    except UsageError:
        return False
    return True


def _axes_with_files(ask: Ask, found: Sequence[Wanted], observer: Observer) -> Axes:
    templates = [each.template for each in found]
    return replace(_axes(ask), draft_files=draft_files(templates, ask.draft_quants, ask, observer))


def _axes(ask: Ask) -> Axes:
    """What varies beside the drafter and k, which the space fills in. The first of each is the server's own."""
    return Axes(
        drafters=(),
        draft_quantisations=ask.draft_quants if any(ask.draft_quants) else (),
        draft_tensor_parallels=ask.draft_tps,
        quantisations=(None, *ask.target_quants[1:]),
        token_budgets=(None, *ask.token_budgets[1:]),
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
