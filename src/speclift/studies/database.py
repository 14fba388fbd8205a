"""The study's SQLite file: opened, locked, and its errors in words."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from speclift.core.errors import SpecliftError, StudyError
from speclift.studies import format as fmt
from speclift.studies.private import private_file
from speclift.studies.verdict_file import DATABASE

LOCK = "lock"
# What reading a value of an unexpected kind raises; ours too, where a value is out of its range.
MISREAD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, SpecliftError)


def is_study(path: Path) -> bool:
    """True where a study was completely created, in whatever format version."""
    database = path / DATABASE
    if not database.is_file():
        return False
    try:
        with closing(sqlite3.connect(database)) as connection:
            application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.DatabaseError as error:
        fault = "cannot be read" if isinstance(error, sqlite3.OperationalError) else "is damaged"
        raise StudyError(f"{database} {fault}: {error}", hint="restore it, or start a new study") from error
    return application == fmt.APPLICATION_ID


def require_empty(database: Path) -> None:
    """Another program's database is not ours to write to; one without tables is a study killed at birth."""
    if not database.exists():
        return
    with closing(sqlite3.connect(database)) as connection:
        tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables:
        raise StudyError(f"{database} is not a study's database", hint="use another --study")


def connect(database: Path) -> sqlite3.Connection:
    # Autocommit: every record is on disk when its call returns.
    private_file(database)
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    # Survives a killed process; a power cut may cost the last records.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def file_at(path: Path) -> tuple[int, int] | None:
    """Device and number of the file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def take_lock(path: Path) -> IO[str]:
    private_file(path / LOCK)
    lock = (path / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise StudyError(f"another speclift is writing to {path}", hint="wait for it, or stop it") from error
    return lock


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # a place measured twice is our mistake, not the disk's
    except (sqlite3.DatabaseError, OSError) as error:
        raise StudyError(
            f"cannot write to {path}: {error}",
            hint="measured data is kept; check disk space and permissions, then use --resume",
        ) from error


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """A page that SQLite refuses, and values in a good page that are not what was written."""
    try:
        yield
    except StudyError:
        raise
    except (sqlite3.DatabaseError, OSError, *MISREAD) as error:
        raise StudyError(
            f"cannot read the study at {path}: {error}",
            hint="if it is damaged, restore it from a copy or start a new study",
        ) from error
