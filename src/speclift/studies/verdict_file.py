"""verdict.json: what a study was judged to say, beside the database it was judged from, for whoever needs no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from speclift.core.document import Document, plain_object, read_json
from speclift.core.errors import UsageError
from speclift.studies.private import read_named, write_private

VERDICT_FILE = "verdict.json"
# Of hundreds of cells some hundred kilobytes; what is longer is judged anew.
BYTES_MAX = 64 << 20
DATABASE = "study.sqlite"
T = TypeVar("T", bound=Document)


class DatabaseState(Document, frozen=True, kw_only=True):
    """The database as it was judged: when it was written, and how much it held."""

    written_ns: int
    size: int


class _Judged(Document, frozen=True, kw_only=True):
    database: DatabaseState


def read_verdict(study: Path, kind: type[T]) -> T | None:
    """None where the study was not judged yet, or was written to since; or where another version wrote the file."""
    try:
        text = read_named(study / VERDICT_FILE, what="the verdict", limit_bytes=BYTES_MAX, wait_s=0.0)
        return read_json(kind, text) if read_json(_Judged, text).database == _state(study) else None
    except (UsageError, OSError, ValueError):
        return None


def write_verdict(study: Path, judged: Document) -> bool:
    """Whole or not at all, for the user alone; False where the folder may only be read, which costs a judgement."""
    try:
        document = {**plain_object(judged), "database": plain_object(_state(study))}
        write_private(study / VERDICT_FILE, json.dumps(document, ensure_ascii=True) + "\n")
    except OSError:
        return False
    return True


def _state(study: Path) -> DatabaseState:
    """Of what is not yet in the database itself too: a study that is being measured."""
    files = [path.stat() for path in (study / DATABASE, study / f"{DATABASE}-wal") if path.exists()]
    return DatabaseState(
        written_ns=max(file.st_mtime_ns for file in files if file.st_size),
        size=sum(file.st_size for file in files),
    )
