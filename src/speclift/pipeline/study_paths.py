"""Where studies lie: the next free one, the latest, and whether a name is taken."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from speclift.core.errors import StudyError, UsageError
from speclift.store.study import is_study

STUDIES = Path("studies")
# The study of a search lies inside the one that confirms its winner.
SEARCH = "search"


def search_path(study: Path) -> Path:
    return study / SEARCH


def free_path(asked: Path | None) -> Path:
    """For a new study; UsageError where the name that was asked for holds one."""
    path = asked or _dated_path()
    if _holds_study(path):
        raise UsageError(f"{path} already holds a study", hint="add --resume, or name another --study")
    return path


def resumed_path(asked: Path | None) -> Path:
    return asked or _latest_path()


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
        raise StudyError("there is no study to resume", hint="name it with --study DIR")
    return found[-1]
