"""Where studies lie: the next free one, the latest, and whether a name is taken."""

from __future__ import annotations

import contextlib
import statistics
from datetime import datetime
from pathlib import Path

from speclift.bench.ask import Ask
from speclift.bench.run import launches_took
from speclift.bench.soak_study import holds_soak
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import StudyError, UsageError
from speclift.core.units import Seconds
from speclift.studies.outputs import require_study_place
from speclift.studies.prompt_files import bundled_workload, read_workload
from speclift.studies.study import Study, is_study

STUDIES = Path("studies")
# The study of a search lies inside the one that confirms its winner.
SEARCH = "search"
# Under this name a study without text keeps where its prompts are.
PROMPTS = "prompts-file"
# Of those beside a new study that are asked what a launch takes.
LATEST_STUDIES = 5


def search_path(study: Path) -> Path:
    return study / SEARCH


def free_path(asked: Path | None) -> Path:
    """For a new study; UsageError where the name that was asked for holds one."""
    path = asked or _dated_path()
    if _holds_study(path):
        raise UsageError(f"{path} already holds a study", hint="add --resume, or use another --study")
    require_study_place(path)
    return path


def resumed_path(asked: Path | None) -> Path:
    return asked or _latest_path()


def free_soak_path(asked: Path | None) -> Path:
    """Beside or within a study: only another soak is in the way."""
    path = asked or _dated_path()
    if holds_soak(path):
        raise UsageError(f"{path} already holds a soak", hint="add --resume, or use another --study")
    require_study_place(path)
    return path


def resumed_soak_path(asked: Path | None) -> Path:
    found = sorted(path for path in STUDIES.glob("*") if holds_soak(path)) if STUDIES.is_dir() else []
    path = asked or (found[-1] if found else None)
    if path is None or not holds_soak(path):
        where = "there" if path is None else f"in {path} there"
        raise StudyError(f"{where} is no soak to resume", hint="give its folder with --study DIR")
    return path


def provide_texts(study: Study, ask: Ask) -> None:
    """A study that keeps no text goes on with the prompts it was begun with, which are read again."""
    if not study.keeps_text:
        source = ask.prompts or prompts_of(study)
        study.provide((read_workload(source) if source else bundled_workload()).requests)


def keep_prompts_source(study: Study, ask: Ask) -> None:
    if not study.keeps_text and ask.prompts is not None:
        study.keep(PROMPTS, {"file": str(ask.prompts.absolute())})


def prompts_of(study: Study) -> Path | None:
    kept = study.kept(PROMPTS)
    return None if kept is None else Path(str(kept["file"]))


def launch_seen_s(root: Path, spec: EngineSpec) -> Seconds | None:
    """What a launch of this engine with this model took in the latest study here that had one."""
    folders = sorted(
        (path for path in root.glob("*/") if is_study(path)),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for folder in folders[:LATEST_STUDIES]:
        with contextlib.suppress(StudyError), Study.open(folder) as study:
            is_alike = (study.engine.kind, study.engine.settings.model) == (spec.kind, spec.settings.model)
            if is_alike and (took := launches_took(study)):
                return statistics.median(took)
    return None


def _holds_study(path: Path) -> bool:
    return is_study(path) or is_study(search_path(path))


def _dated_path() -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    path = STUDIES / stamp
    for suffix in range(2, 100):
        if not path.exists():
            break
        path = STUDIES / f"{stamp}-{suffix}"
    return path


def _latest_path() -> Path:
    found = sorted(path for path in STUDIES.glob("*") if _holds_study(path)) if STUDIES.is_dir() else []
    if not found:
        raise StudyError("there is no study to resume", hint="give it with --study DIR")
    return found[-1]
