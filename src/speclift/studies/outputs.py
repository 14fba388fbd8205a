"""Where results go, looked at before anything is measured: a report that cannot be written costs the measurement."""

from __future__ import annotations

import os
from pathlib import Path

from speclift.core.errors import StudyError, UsageError
from speclift.studies.database import LOCK
from speclift.studies.private import private_folder, write_private
from speclift.studies.verdict_file import DATABASE, VERDICT_FILE

# How every SQLite database begins (sqlite.org/fileformat.html).
SQLITE = b"SQLite format 3\0"
# A report is some hundred kilobytes.
ROOM_BYTES = 256 * 1024
USUAL_NAMES = {"--out": "report.html", "--markdown": "summary.md", "--junit": "gate.xml"}


def write_result(path: Path, text: str) -> None:
    """Whole or not at all, for the user alone; UsageError in place of a database."""
    require_no_database(path)
    try:
        private_folder(path.parent)
        write_private(path, text)
    except OSError as error:
        raise StudyError(f"cannot write the report {path}: {error.strerror or error}") from error


def require_no_database(path: Path, *, flag: str = "--out") -> None:
    """UsageError for a study's own files and for any other SQLite database: replaced, what was measured is lost."""
    real = path.resolve()
    is_database = real.name.startswith(DATABASE) or (
        real.name in (LOCK, VERDICT_FILE) and (real.parent / DATABASE).exists()
    )
    if not is_database and real.is_file():
        with real.open("rb") as file:
            is_database = file.read(len(SQLITE)) == SQLITE
    if is_database:
        raise UsageError(
            f"{flag} would replace {path}: a study keeps what it measured there", hint=f"another {flag}"
        )


def require_report_place(path: Path, *, prompts: Path | None = None, flag: str = "--out") -> None:
    """UsageError for what is no place for a file, StudyError for one that cannot be written now."""
    name = USUAL_NAMES[flag]
    require_no_database(path, flag=flag)
    if path.is_dir():
        raise UsageError(f"{flag} must be a file, but {path} is a directory", hint=f"{path / name}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{flag} must be a file, but {path} is a device or a pipe", hint=f"such as {name}")
    if prompts is not None and path.exists() and prompts.exists() and path.samefile(prompts):
        raise UsageError(f"--out and --prompts are the same file: {path}", hint="use another --out")
    trial = path.with_name(f".{path.name}.trial-{os.getpid()}")
    try:
        private_folder(path.parent)
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(13, os.strerror(13))
        write_private(trial, " " * ROOM_BYTES)
        trial.unlink()
    except OSError as error:
        raise StudyError(
            f"the report cannot be written to {path}: {error.strerror or error}",
            hint=f"nothing was measured yet; use another {flag}, or check disk space and permissions",
        ) from error


def require_study_place(path: Path) -> None:
    """Looked at before models are fetched and servers asked; the study itself is made later."""
    standing = next(each for each in (path, *path.parents) if each.exists())
    if path.exists() and not path.is_dir():
        raise UsageError(f"--study must be a directory, but {path} is a file", hint="use another --study")
    if not standing.is_dir():
        raise StudyError(f"the study cannot be created at {path}: {standing} is a file")
    if not os.access(standing, os.W_OK | os.X_OK):
        raise StudyError(
            f"the study cannot be created at {path}: {standing} is not writable",
            hint="use another --study, or change its permissions",
        )


def relative(path: Path) -> str:
    """As one would type it here."""
    return os.path.relpath(path)
