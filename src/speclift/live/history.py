"""What was seen of servers, on disk within a bound: for the charts, and for a watch that starts again.

SQLite with a write-ahead log: a process that is killed loses what it had not written for WRITE_EVERY_S, and nothing
else. One process writes a file at a time.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from speclift.core.errors import OperatingError, UsageError
from speclift.core.live import KeptLook, Payoff, instant
from speclift.core.units import Seconds

FORMAT = 1
# "speclift", as a number that says what the file is.
APPLICATION = 0x53504C57
# Every look for so long, then one look in five minutes.
FULL_S = 6 * 3600.0
KEPT_S = 30 * 24 * 3600.0
THINNED_S = 300.0
# Of all servers together, about 130 bytes each.
ROWS_MAX = 1_000_000
# Where there are more, so many stay: looking for the oldest takes a second.
ROWS_LEFT = 0.95
WRITE_EVERY_S = 5.0
TIDY_EVERY_S = 600.0
# Of one answer; no screen shows more.
POINTS_MAX = 2000
_FIGURES = (
    *("accepted_length", "low", "high", "break_even", "acceptance_rate", "ttft_p50_s", "ttft_p95_s"),
    *("tpot_p50_s", "tpot_p95_s", "tokens_s", "running", "waiting"),
)
_COLUMNS = ("at_s", "payoff", "since_s", "is_unreachable", "marks", *_FIGURES)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS servers (id INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS looks (
  server INTEGER NOT NULL REFERENCES servers, at_s REAL NOT NULL, payoff TEXT NOT NULL, since_s REAL NOT NULL,
  is_unreachable INTEGER NOT NULL, marks TEXT NOT NULL, {", ".join(f"{name} REAL" for name in _FIGURES)},
  PRIMARY KEY (server, at_s)) WITHOUT ROWID;
"""


class History:
    def __init__(self, path: Path) -> None:
        """Of a file that is there, empty or one of these. UsageError where it is something else, OperatingError where
        another process writes it."""
        self.path = path
        with ExitStack() as undo:
            self._lock = _locked(path.with_name(path.name + ".lock"), path)
            undo.callback(os.close, self._lock)
            self._database = _opened(path)
            undo.pop_all()
        self._ids: dict[str, int] = {}
        self._pending: list[tuple[object, ...]] = []
        self._written_s = self._tidied_s = time.monotonic()
        self._thinned_to_s = 0.0

    def add(self, url: str, look: KeptLook) -> None:
        """Kept with those after it; OperatingError where they cannot be written."""
        figures = (_finite(getattr(look, name)) for name in _FIGURES)
        head = (look.at_s, look.verdict.value, look.since_s, look.unreachable, "\n".join(look.marks))
        self._pending.append((url, *head, *figures))
        if time.monotonic() - self._written_s >= WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        pending, self._pending = self._pending, []
        self._written_s = time.monotonic()
        places = ", ".join("?" * (len(_COLUMNS) + 1))
        with ExitStack() as undo:
            # Servers that were to be written with them.
            undo.callback(self._ids.clear)
            with _said(self.path), self._database:
                self._database.executemany(
                    f"INSERT OR REPLACE INTO looks (server, {', '.join(_COLUMNS)}) VALUES ({places})",
                    [(self._id_of(str(url)), *rest) for url, *rest in pending],
                )
            undo.pop_all()
        if self._written_s - self._tidied_s >= TIDY_EVERY_S:
            self.tidy(now_s=time.time())

    def looks(self, url: str, *, from_s: Seconds, to_s: Seconds, points: int = POINTS_MAX) -> list[KeptLook]:
        """Of one server, the oldest first, not more than `points` of them: of those that stand together the last, and
        every one with marks as far as there is room."""
        self.write()
        names = ", ".join(_COLUMNS)
        among = "FROM looks JOIN servers ON id = server WHERE url = ? AND at_s BETWEEN ? AND ?"
        with _said(self.path):
            (count,) = self._database.execute(f"SELECT COUNT(*) {among}", (url, from_s, to_s)).fetchone()
            # Half of the room is for those with marks, which stand beside the others.
            step_s = (to_s - from_s) / max(1, points // 2) if count > points else 1e-6
            rows = self._database.execute(
                f"""SELECT {names}, MAX(at_s) {among} GROUP BY CAST((at_s - ?) / ? AS INTEGER), marks != ''
                ORDER BY at_s DESC LIMIT ?""",
                (url, from_s, to_s, from_s, step_s, points),
            ).fetchall()
        return [_look(row[:-1]) for row in reversed(rows)]

    def last(self, url: str) -> KeptLook | None:
        with _said(self.path):
            row = self._database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM looks JOIN servers ON id = server WHERE url = ? "
                "ORDER BY at_s DESC LIMIT 1",
                (url,),
            ).fetchone()
        return None if row is None else _look(row)

    def last_settled(self, url: str) -> KeptLook | None:
        """The last look that said whether it pays."""
        with _said(self.path):
            row = self._database.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM looks JOIN servers ON id = server WHERE url = ? "
                "AND payoff IN (?, ?) ORDER BY at_s DESC LIMIT 1",
                (url, Payoff.PAYS.value, Payoff.DOES_NOT_PAY.value),
            ).fetchone()
        return None if row is None else _look(row)

    def tidy(self, *, now_s: Seconds) -> None:
        """Old looks become fewer, very old ones go, and so do the oldest of too many."""
        self._tidied_s = time.monotonic()
        full_s = now_s - FULL_S
        with _said(self.path), self._database:
            for (server,) in self._database.execute("SELECT id FROM servers").fetchall():
                self._database.execute(
                    "DELETE FROM looks WHERE server = ? AND at_s < ?", (server, now_s - KEPT_S)
                )
                self._database.execute(
                    """DELETE FROM looks WHERE server = :server AND at_s BETWEEN :done AND :full AND marks = ''
                    AND EXISTS (SELECT 1 FROM looks AS other WHERE other.server = :server AND other.marks = ''
                    AND other.at_s < looks.at_s AND other.at_s >= CAST(looks.at_s / :thin AS INTEGER) * :thin)""",
                    {"server": server, "done": self._thinned_to_s, "full": full_s, "thin": THINNED_S},
                )
            (count,) = self._database.execute("SELECT COUNT(*) FROM looks").fetchone()
            if count > ROWS_MAX:
                self._database.execute(
                    "DELETE FROM looks WHERE at_s <= (SELECT at_s FROM looks ORDER BY at_s LIMIT 1 OFFSET ?)",
                    (count - int(ROWS_MAX * ROWS_LEFT),),
                )
        # What comes next begins with the five minutes that were not over.
        self._thinned_to_s = full_s - THINNED_S

    def close(self) -> None:
        try:
            self.write()
        finally:
            self._database.close()
            os.close(self._lock)

    def _id_of(self, url: str) -> int:
        if url not in self._ids:
            self._database.execute("INSERT OR IGNORE INTO servers (url) VALUES (?)", (url,))
            (found,) = self._database.execute("SELECT id FROM servers WHERE url = ?", (url,)).fetchone()
            self._ids[url] = int(found)
        return self._ids[url]


def _locked(lock: Path, path: Path) -> int:
    """Held until the process ends, however it ends. In a file beside the history: SQLite has locks of its own there."""
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise OperatingError(
            f"another speclift watch writes {path}",
            hint="stop it, or give this one a file of its own: --history FILE",
        ) from None
    return descriptor


def _opened(path: Path) -> sqlite3.Connection:
    with ExitStack() as undo, _said(path):
        database = sqlite3.connect(path)
        undo.callback(database.close)
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if tables and (application, version) != (APPLICATION, FORMAT):
            raise UsageError(
                f"{path} is no history of this version of speclift watch",
                hint="give another file: --history FILE",
            )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
        undo.pop_all()
        return database


@contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise OperatingError(
            f"the history {path} cannot be used: {error}",
            hint="is the disk full? Move a damaged file away, or give another: --history FILE",
        ) from error


def _look(row: Sequence[object]) -> KeptLook:
    named = dict(zip(_COLUMNS, row, strict=True))
    figures = {name: value for name in _FIGURES if isinstance(value := named[name], float)}
    return KeptLook(
        at=instant(float(str(named["at_s"]))),
        verdict=Payoff(str(named["payoff"])),
        since=instant(float(str(named["since_s"]))),
        unreachable=bool(named["is_unreachable"]),
        marks=tuple(filter(None, str(named["marks"]).split("\n"))),
        **figures,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
