"""The verbs, for Python and for the command line alike: decide, measure, compare."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from speclift.core.errors import StudyError, UsageError
from speclift.core.goals import Goals
from speclift.core.results import Decision, Finding, Verdict
from speclift.pipeline.ask import Ask
from speclift.pipeline.gate_study import keep_gate, require_mode
from speclift.pipeline.judge import Judgement, judge
from speclift.pipeline.prepare import Say, build_engine, prepare, provenance
from speclift.pipeline.run import Progress, StudyRun, run_until_signal
from speclift.report.document import acceptance_document, verdict_document
from speclift.report.page import page
from speclift.store.study import Study, is_study

STUDIES = Path("studies")

EXIT_CODES = {
    Decision.SHIP: 0,
    Decision.SHIP_ON_CONDITIONS: 3,
    Decision.DO_NOT_SHIP: 4,
    Decision.INCONCLUSIVE: 5,
    Decision.OUTPUT_CHANGED: 6,
}


def open_study(ask: Ask, say: Say) -> tuple[Study, float | None]:
    """The study to run and its time budget: a new one as asked, or the one to resume as it was planned."""
    if ask.resume:
        path = ask.study or _latest_study()
        study = Study.open(path, writing=True)
        say(f"resuming {path} as it was planned; other flags but --budget and --workers are not looked at")
        return study, ask.budget_s
    path = ask.study or _new_study_path()
    if is_study(path):
        raise UsageError(f"{path} already holds a study", hint="add --resume, or name another --study")
    prepared = prepare(ask, say)
    study = Study.create(
        path,
        plan=prepared.plan,
        engine=prepared.engine_spec,
        goals=ask.goals,
        provenance=provenance(prepared, ask),
    )
    for finding in prepared.findings:
        study.add_finding(finding)
    return study, prepared.budget_s


class Quiet:
    """Progress for callers that only want the result."""

    def launching(self, arm: str, round_index: int) -> None: ...

    def turn_done(self, arm: str, *, done: int, total: int, left_s: float) -> None: ...

    def noticed(self, finding: Finding) -> None: ...


def decide(ask: Ask | None = None, **settings: Any) -> Verdict:
    """Measure as asked and return the verdict: `speclift.decide(methods=("ngram",), ks=(8,))`.

    `settings` are the fields of Ask; the study it leaves behind holds the records.
    """
    asked = ask or Ask(**settings)
    require_mode(asked.verify)
    study, budget_s = open_study(asked, lambda _text: None)
    with study:
        started_s = time.monotonic()
        run_study(study, progress=Quiet(), budget_s=budget_s, workers=asked.workers)
        keep_gate(study, mode=asked.verify, say=lambda _text: None, study_s=time.monotonic() - started_s)
        return judge([study]).verdict


def run_study(study: Study, *, progress: Progress, budget_s: float | None, workers: int = 1) -> None:
    run = StudyRun(study, build_engine(study.engine), progress=progress, budget_s=budget_s, workers=workers)
    try:
        asyncio.run(run_until_signal(run))
    except asyncio.CancelledError as error:
        # SIGTERM cancels the run; for whoever called it is the same as Ctrl-C.
        raise KeyboardInterrupt from error


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
    )


def write_report(document: dict[str, Any], path: Path) -> None:
    """One self-contained page; written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    try:
        unfinished.write_text(page(document), encoding="utf-8", errors="backslashreplace")
        unfinished.replace(path)
    except OSError as error:
        raise StudyError(f"cannot write the report {path}: {error.strerror or error}") from error


def relative(path: Path) -> str:
    return os.path.relpath(path)


def _new_study_path() -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    path = STUDIES / stamp
    for suffix in range(2, 100):
        if not path.exists():
            break
        path = STUDIES / f"{stamp}-{suffix}"
    return path


def _latest_study() -> Path:
    found = sorted(path for path in STUDIES.glob("*") if is_study(path)) if STUDIES.is_dir() else []
    if not found:
        raise StudyError("there is no study to resume", hint="name it with --study DIR")
    return found[-1]
