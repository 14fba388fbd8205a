"""The verbs, for Python and for the command line alike: decide, measure, compare."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from speclift.core.deadline import Deadline
from speclift.core.errors import StudyError
from speclift.core.goals import Goals
from speclift.core.records import Provenance
from speclift.core.results import Decision, Finding, Verdict
from speclift.pipeline.ask import Ask
from speclift.pipeline.gate_study import gate_reserve_s, keep_gate, quick_limit_s, require_mode
from speclift.pipeline.interrupts import run_until_signal
from speclift.pipeline.judge import Judgement, judge
from speclift.pipeline.prepare import Prepared, Say, build_engine, prepare, prepare_arms, provenance
from speclift.pipeline.run import Progress, StudyRun
from speclift.pipeline.schedule_verdict import SCHEDULE_NO_GAIN
from speclift.pipeline.study_paths import (
    free_path,
    keep_prompts_source,
    provide_texts,
    resumed_path,
    search_path,
)
from speclift.pipeline.time_limit import PREPARING, in_time
from speclift.pipeline.tuning import (
    Opened,
    TuningProgress,
    complete_confirmation,
    no_search,
    prospect,
    search_and_open,
    start_search,
    time_left_s,
)
from speclift.report.document import acceptance_document, measure_document, verdict_document
from speclift.report.page import page
from speclift.store.private import private_folder, write_private
from speclift.store.study import Study, is_study
from speclift.tune.problem import Job

EXIT_CODES = {
    Decision.SHIP: 0,
    Decision.SHIP_ON_CONDITIONS: 3,
    Decision.DO_NOT_SHIP: 4,
    Decision.INCONCLUSIVE: 5,
    Decision.OUTPUT_CHANGED: 6,
}


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
        keeps_text=ask.keeps_text,
    )
    keep_prompts_source(study, ask)
    for finding in prepared.findings:
        study.add_finding(finding)
    return study


class Quiet:
    """Progress for callers that only want the result."""

    def launching(self, arm: str, round_index: int) -> None: ...

    def turn_done(self, arm: str, *, done: int, total: int, left_s: float) -> None: ...

    def noticed(self, finding: Finding) -> None: ...

    def asked(self, job: Job, *, done: int, left_s: float | None) -> None: ...


def decide(ask: Ask | None = None, **settings: Any) -> Verdict:
    """Measure as asked and return the verdict: `speclift.decide(methods=("ngram",), ks=(8,))`.

    `settings` are the fields of Ask; the study it leaves behind holds the records.
    """
    return _decided(ask or Ask(**settings), always=False).verdict


def measure(ask: Ask | None = None, **settings: Any) -> dict[str, Any]:
    """Measure as asked, without a verdict: returns the document of `measure --json`."""
    ask = ask or Ask(**settings)
    study, deadline = open_study(ask, _unheard)
    with study:
        run_study(study, progress=Quiet(), deadline=deadline, workers=ask.workers)
        judgement = judge([study])
        return measure_document(judgement.cells, judgement.findings, study=relative(study.path))


def tune(ask: Ask | None = None, **settings: Any) -> dict[str, Any]:
    """Search and confirm: `speclift.tune(methods=("ngram",), budget_s=600)` returns the document of `tune --json`."""
    return judgement_document(_decided(ask or Ask(**settings), always=True))


def _decided(ask: Ask, *, always: bool) -> Judgement:
    require_mode(ask.verify)
    opened = open_decision(ask, progress=Quiet(), say=_unheard, always=always)
    with opened.study as study:
        run_and_verify(opened, ask, progress=Quiet(), say=_unheard)
        return judge([study])


def _unheard(_text: str) -> None: ...


def run_and_verify(opened: Opened, ask: Ask, *, progress: Progress, say: Say) -> None:
    """The confirmation, then the lossless gate."""
    deadline, started_s = opened.deadline, time.monotonic()
    own = deadline.keeping(gate_reserve_s(ask.verify, deadline))
    run_study(opened.study, progress=progress, deadline=own, workers=ask.workers)
    if not deadline.is_set and ask.verify == "quick":
        deadline = Deadline.after(quick_limit_s(time.monotonic() - started_s), clock=time.monotonic)
    keep_gate(opened.study, mode=ask.verify, say=say, deadline=deadline)


def run_study(study: Study, *, progress: Progress, deadline: Deadline, workers: int = 1) -> None:
    run = StudyRun(study, build_engine(study.engine), progress=progress, deadline=deadline, workers=workers)
    run_until_signal(run.run())


def compare(paths: Sequence[Path], *, goals: Goals | None = None) -> Judgement:
    """The verdict on what finished studies hold; several are pooled when their environments agree."""
    with ExitStack() as stack:
        return judge([stack.enter_context(Study.open(path)) for path in paths], goals=goals)


def judgement_document(judgement: Judgement) -> dict[str, Any]:
    winner = judgement.verdict.winner
    return verdict_document(
        judgement.verdict,
        cells=judgement.cells,
        comparisons=judgement.on_all,
        findings=judgement.findings,
        provenance=judgement.provenance,
        kv_tokens=judgement.kv_tokens,
        kv_peaks=judgement.kv_peaks,
        acceptance_by_temperature=[
            {
                "arm": bucket.arm,
                "above": bucket.low,
                "up_to": bucket.high,
                **(acceptance_document(bucket.acceptance) or {}),
            }
            for bucket in judgement.acceptance_by_temperature
        ],
        acceptance_histograms=[
            {
                "arm": held.arm,
                "by": held.by,
                "label": held.label,
                "requests": sum(held.counts),
                "counts": list(held.counts),
            }
            for held in judgement.acceptance_histograms
        ],
        crossovers=judgement.crossovers,
        goals=judgement.goals,
        configuration=judgement.engine.configurations(winner) if winner else None,
        winner_config=judgement.engine.config(winner) if winner else None,
        study=relative(judgement.study),
        failed_arms=judgement.failed_arms,
        lossless=judgement.lossless,
        tuning=_tuning_with_best(judgement),
    )


def _tuning_with_best(judgement: Judgement) -> dict[str, Any] | None:
    """With the command of the arm that was confirmed to be fastest, whether or not it clears the bar."""
    dropped = {finding.arm for finding in judgement.findings if finding.check == SCHEDULE_NO_GAIN}
    confirmed = [
        (each.overall.speedup, each.arm)
        for each in judgement.on_all
        if each.overall is not None and each.arm.name not in dropped
    ]
    if judgement.tuning is None:
        return None
    if not confirmed:
        return {**judgement.tuning, "best": None}
    speedup, arm = max(confirmed, key=lambda each: each[0].value)
    return {
        **judgement.tuning,
        "best": {
            "arm": arm.name,
            "speedup": {"value": speedup.value, "low": speedup.low, "high": speedup.high},
            "command": judgement.engine.configurations(arm)["command"],
            "config": judgement.engine.config(arm),
        },
    }


def write_report(document: dict[str, Any], path: Path) -> None:
    """One self-contained page; written whole or not at all."""
    try:
        private_folder(path.parent)
        write_private(path, page(document))
    except OSError as error:
        raise StudyError(f"cannot write the report {path}: {error.strerror or error}") from error


def relative(path: Path) -> str:
    return os.path.relpath(path)
