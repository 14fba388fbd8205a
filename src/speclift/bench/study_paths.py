"""Where studies lie: the next free one, the latest, and whether a name is taken."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from speclift.bench.ask import Ask
from speclift.core.errors import StudyError, UsageError
from speclift.studies.outputs import require_study_place
from speclift.studies.prompt_files import bundled_workload, read_workload
from speclift.studies.study import Study, is_study

STUDIES = Path("studies")
# The study of a search lies inside the one that confirms its winner.
SEARCH = "search"
# Under this name a study without text keeps where its prompts are.
PROMPTS = "prompts-file"


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
