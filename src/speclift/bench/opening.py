"""From what was asked to a bench: a new study, one to resume, or one to search in first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.prepare import Bench, Experiment, prepare, provenance
from speclift.bench.search_study import (
    complete_confirmation,
    course_of,
    no_search,
    prospect,
    start_search,
    time_left_s,
    time_to_search,
)
from speclift.bench.study_paths import (
    free_path,
    keep_prompts_source,
    provide_texts,
    resumed_path,
    search_path,
)
from speclift.bench.time_limit import PREPARING, in_time
from speclift.core.deadline import Deadline
from speclift.core.errors import OperatingError, UsageError
from speclift.core.records import Provenance
from speclift.studies.outputs import relative
from speclift.studies.study import Study, is_study


def prepare_bench(ask: Ask, observer: Observer, *, always: bool = False) -> Bench:
    """Of what decides: a search, where there is anything to search. `always`: as far as there is."""
    deadline = _begun(ask)
    if ask.resume:
        return _resumed(ask, deadline, observer)
    path = free_path(ask.study)
    found = in_time(
        lambda: _with_provenance(prospect(ask, observer, always=always), ask), deadline, doing=PREPARING
    )
    if found is None:
        return prepare_named(replace(ask, study=path), observer, deadline)
    experiment, known = found
    deadline = _for_quick_look(experiment, deadline)
    if not experiment.is_search:
        return Bench(ask=ask, study=_created(path, experiment, ask, known), deadline=deadline)
    time_there_is = time_to_search(path, experiment, ask)
    course = course_of(experiment, ask, time_there_is)
    if not course.searches:
        finding = no_search(experiment.budget_s, course.why)
        observer.say(finding.message)
        bench = prepare_named(replace(ask, study=path), observer, deadline)
        bench.study.add_finding(finding)
        return bench
    searching = start_search(path, experiment, ask, known, time=time_there_is)
    observer.say(f"study {relative(path)}{f': {course.why}' if course.why else ''}")
    return Bench(ask=ask, study=searching, deadline=deadline, searches=True)


def prepare_named(ask: Ask, observer: Observer, deadline: Deadline | None = None) -> Bench:
    """Of the arms that were named, or of the study to resume as it was planned."""
    deadline = deadline or _begun(ask)
    if ask.resume:
        path = resumed_path(ask.study)
        with _reopened(path, ask) as reopened:
            observer.say(f"resuming {path} with its own settings; only --budget and --workers can change")
        return Bench(ask=ask, study=reopened, deadline=deadline)
    path = free_path(ask.study)
    found = in_time(lambda: _with_provenance(prepare(ask, observer), ask), deadline, doing=PREPARING)
    assert found is not None
    experiment, known = found
    study = _created(path, experiment, ask, known)
    return Bench(ask=ask, study=study, deadline=_for_quick_look(experiment, deadline))


def planned(ask: Ask, observer: Observer, *, verb: str) -> Experiment:
    """What a verb would launch; of a search, every candidate."""
    return wherever_it_runs(ask, observer, partial(_planned, verb=verb))


def wherever_it_runs(
    ask: Ask, observer: Observer, prepare_it: Callable[[Ask, Observer], Experiment]
) -> Experiment:
    """What a line of the user's own would launch is known also where neither the engine nor its models are."""
    try:
        return prepare_it(ask, observer)
    except (OperatingError, UsageError) as error:
        if ask.server.line is None:
            raise
        prepared = prepare_it(replace(ask, is_elsewhere=True), Observer())
        observer.say(f"not on this machine: {error}")
        return prepared


def _planned(ask: Ask, observer: Observer, *, verb: str) -> Experiment:
    found = prospect(ask, observer, always=verb == "tune") if verb != "measure" else None
    return prepare(ask, observer) if found is None else found


def _begun(ask: Ask) -> Deadline:
    """The end of the time that a command has from now on."""
    return Deadline.after(ask.budget_s, clock=time.monotonic)


def _resumed(ask: Ask, deadline: Deadline, observer: Observer) -> Bench:
    path = resumed_path(ask.study)
    if is_study(path) or not is_study(search_path(path)):
        bench = prepare_named(replace(ask, study=path), observer, deadline)
        complete_confirmation(bench.study)
        return bench
    observer.say(
        f"resuming the search of {path} with its own settings; only --budget and --workers can change"
    )
    with _reopened(search_path(path), ask) as searching:
        if not deadline.is_set:
            deadline = Deadline.after(time_left_s(searching), clock=deadline.clock)
    return Bench(ask=ask, study=searching, deadline=deadline, searches=True)


@contextmanager
def _reopened(path: Path, ask: Ask) -> Iterator[Study]:
    """Stays open beyond the block, unless something goes wrong in it."""
    with ExitStack() as undo:
        study = undo.enter_context(Study.open(path, writing=True))
        provide_texts(study, ask)
        yield study
        undo.pop_all()


def _with_provenance(experiment: Experiment | None, ask: Ask) -> tuple[Experiment, Provenance] | None:
    return None if experiment is None else (experiment, provenance(experiment, ask))


def _for_quick_look(experiment: Experiment, deadline: Deadline) -> Deadline:
    """The quick look's own time begins when everything is there: nobody asked that a download count."""
    return deadline if deadline.is_set else Deadline.after(experiment.budget_s, clock=deadline.clock)


def _created(path: Path, experiment: Experiment, ask: Ask, known: Provenance) -> Study:
    study = Study.create(
        path,
        plan=experiment.plan,
        engine=experiment.engine_spec,
        goals=ask.goals,
        provenance=known,
        keeps_text=not ask.no_text,
    )
    keep_prompts_source(study, ask)
    for finding in experiment.findings:
        study.add_finding(finding)
    return study
