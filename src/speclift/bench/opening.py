"""From what was asked to a study that is open for writing: a new one, one to resume, or one after a search."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from speclift.bench.ask import Ask
from speclift.bench.prepare import Prepared, Say, prepare, prepare_arms, provenance
from speclift.bench.search_study import (
    Opened,
    TuningProgress,
    complete_confirmation,
    no_search,
    prospect,
    search_and_open,
    start_search,
    time_left_s,
)
from speclift.bench.study_paths import (
    free_path,
    keep_prompts_source,
    provide_texts,
    relative,
    resumed_path,
    search_path,
)
from speclift.bench.time_limit import PREPARING, in_time
from speclift.core.deadline import Deadline
from speclift.core.records import Provenance
from speclift.studies.study import Study, is_study


def begun(ask: Ask) -> Deadline:
    """The end of the time that a command has from now on."""
    return Deadline.after(ask.budget_s, clock=time.monotonic)


def open_study(ask: Ask, say: Say, deadline: Deadline | None = None) -> tuple[Study, Deadline]:
    """The study to run and the end of its time: a new one of the arms named, or the one to resume as it was planned."""
    deadline = deadline or begun(ask)
    if ask.resume:
        path = resumed_path(ask.study)
        with ExitStack() as undo:
            study = undo.enter_context(Study.open(path, writing=True))
            provide_texts(study, ask)
            undo.pop_all()
        say(f"resuming {path} as it was planned; other flags but --budget and --workers are not looked at")
        return study, deadline
    path = free_path(ask.study)
    prepared, known = in_time(lambda: _with_provenance(prepare(ask, say), ask), deadline, doing=PREPARING)
    study = _created(path, prepared, ask, known)
    return study, _for_quick_look(prepared, deadline)


def _with_provenance(prepared: Prepared, ask: Ask) -> tuple[Prepared, Provenance]:
    return prepared, provenance(prepared, ask)


def _for_quick_look(prepared: Prepared, deadline: Deadline) -> Deadline:
    """The quick look's own time begins when everything is there: nobody asked that a download count."""
    return deadline if deadline.is_set else Deadline.after(prepared.budget_s, clock=deadline.clock)


def open_decision(
    ask: Ask, *, progress: TuningProgress, say: Say, always: bool = False, deadline: Deadline | None = None
) -> Opened:
    """The study that decides: after a search, where there is anything to search. `always`: as far as there is."""
    deadline = deadline or begun(ask)
    if ask.resume:
        return _resumed(ask, deadline, progress=progress, say=say)
    path = free_path(ask.study)
    found = in_time(lambda: prospect(ask, say, always=always), deadline, doing=PREPARING)
    if found is None:
        return _as_named(replace(ask, study=path), deadline, say)
    prepared, known = in_time(
        lambda: _with_provenance(prepare_arms(found.ground, found.arms, searches=found.is_search), ask),
        deadline,
        doing=PREPARING,
    )
    deadline = _for_quick_look(prepared, deadline)
    if not found.is_search:
        return Opened(study=_created(path, prepared, ask, known), deadline=deadline)
    searching = start_search(path, found, ask, prepared, known)
    if searching is None:
        finding = no_search(found.ground.ask.budget_s)
        say(finding.message)
        opened = _as_named(replace(ask, study=path), deadline, say)
        opened.study.add_finding(finding)
        return opened
    say(f"study {relative(path)}")
    with searching:
        return search_and_open(path, searching, progress=progress, workers=ask.workers, deadline=deadline)


def _resumed(ask: Ask, deadline: Deadline, *, progress: TuningProgress, say: Say) -> Opened:
    path = resumed_path(ask.study)
    if is_study(path) or not is_study(search_path(path)):
        opened = _as_named(replace(ask, study=path), deadline, say)
        complete_confirmation(opened.study)
        return opened
    say(
        f"resuming the search of {path} as it was planned; other flags but --budget and --workers are not looked at"
    )
    with Study.open(search_path(path), writing=True) as searching:
        provide_texts(searching, ask)
        if not deadline.is_set:
            deadline = Deadline.after(time_left_s(searching), clock=deadline.clock)
        return search_and_open(path, searching, progress=progress, workers=ask.workers, deadline=deadline)


def _as_named(ask: Ask, deadline: Deadline, say: Say) -> Opened:
    study, deadline = open_study(ask, say, deadline)
    return Opened(study=study, deadline=deadline)


def planned(ask: Ask, say: Say, *, verb: str) -> Prepared:
    """What a verb would launch; of a search, every candidate."""
    found = prospect(ask, say, always=verb == "tune") if verb != "measure" else None
    if found is None:
        return prepare(ask, say)
    return prepare_arms(found.ground, found.arms, searches=found.is_search)


def _created(path: Path, prepared: Prepared, ask: Ask, known: Provenance) -> Study:
    study = Study.create(
        path,
        plan=prepared.plan,
        engine=prepared.engine_spec,
        goals=ask.goals,
        provenance=known,
        keeps_text=not ask.no_text,
    )
    keep_prompts_source(study, ask)
    for finding in prepared.findings:
        study.add_finding(finding)
    return study
