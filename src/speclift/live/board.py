"""Every server as it is now, which answers are news, and what was seen of each, on disk within a bound: for the charts,
and for a watch that starts again.

SQLite with a write-ahead log: a process that is killed loses what it had not written for WRITE_EVERY_S, and nothing
else. One process writes a file at a time.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from speclift.core.errors import OperatingError, UsageError
from speclift.core.live import Event, KeptLook, Payoff, Watched, instant, kept_look
from speclift.core.units import Seconds
from speclift.live.server_watch import is_read, with_answer

T = TypeVar("T")

# A look that failed is a hiccup, three in a row are an outage.
UNREACHABLE_LOOKS = 3
SETTLED = (Payoff.PAYS, Payoff.DOES_NOT_PAY)
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


class BoardEntry:
    """One server: its last look, what was counted of it, which answer settled, and since when it holds."""

    def __init__(
        self, newest: KeptLook | None = None, settled: Payoff | None = None, *, recent_s: Seconds
    ) -> None:
        """`newest` and `settled` are what an earlier watch knew; what is older than `recent_s` says nothing of now."""
        is_recent = newest is not None and time.time() - newest.at_s <= recent_s
        self.last: Watched | None = None
        self.looks = 0
        self.changes = 0
        self.events = dict.fromkeys(Event, 0)
        self.before = newest if is_recent else None
        self._settled = settled
        self._is_away = self.before is not None and self.before.unreachable
        self._missed = UNREACHABLE_LOOKS if self._is_away else 0
        # The earlier watch's answer while it may still go on, and whether it does.
        self._resumed, self._recent_s, self._goes_on = newest, recent_s, False

    def take(self, watched: Watched) -> tuple[Watched, bool]:
        """The look with the time its answer began, as far back as is known; True if it is news."""
        since = self._since(watched)
        if since != watched.since:
            watched = with_answer(replace(watched, since=since), following=watched.answer.next)
        is_news = self._is_news(watched)
        self.last, self.looks, self.changes = watched, self.looks + 1, self.changes + is_news
        for event in watched.events:
            self.events[event] += 1
        self.before = kept_look(watched, self.before)
        return watched, is_news

    def _is_news(self, watched: Watched) -> bool:
        """True if this look settles another answer; unsure and no traffic settle none, a first one is news if bad."""
        if not is_read(watched):
            self._missed += 1
            is_news = self._missed == UNREACHABLE_LOOKS and not self._is_away
            self._is_away = self._is_away or is_news
            return is_news
        is_back, self._is_away, self._missed = self._is_away, False, 0
        if watched.verdict not in SETTLED or watched.verdict is self._settled:
            return is_back
        before, self._settled = self._settled, watched.verdict
        return is_back or before is not None or watched.verdict is Payoff.DOES_NOT_PAY

    def _since(self, watched: Watched) -> str:
        """When the answer began, by the earlier watch where it goes on."""
        newest = self._resumed
        if newest is None or not is_read(watched) or watched.at_s - newest.at_s > self._recent_s:
            self._resumed = None if is_read(watched) else newest
            return watched.since
        if watched.verdict is newest.verdict:
            # From here on it has to go on; the time of the last look moves with it.
            self._goes_on, self._recent_s = True, float("inf")
            return min(newest.since, watched.since)
        # The first looks after a start are unsure in any case.
        if self._goes_on or watched.verdict is not Payoff.UNSURE:
            self._resumed = None
        return watched.since


class Board:
    def __init__(self, history: History | None, *, recent_s: Seconds, say: Callable[[str], None]) -> None:
        """An answer of the history that is not older than `recent_s` goes on; `say` hears where nothing can be kept."""
        self._history, self._recent_s, self._say = history, recent_s, say
        self._entries: dict[str, BoardEntry] = {}
        self._trouble = ""

    def take(self, watched: Watched) -> tuple[Watched, bool]:
        """The look with the time its answer began, as far back as is known; True if it is news."""
        entry = self._entries.get(watched.url)
        if entry is None:
            entry = self._entries[watched.url] = self._begun(watched.url)
        watched, is_news = entry.take(watched)
        look = entry.before
        assert look is not None
        self._with_history(lambda history: history.add(watched.url, look), None)
        return watched, is_news

    def entries(self) -> list[BoardEntry]:
        return [entry for entry in self._entries.values() if entry.last is not None]

    def entry(self, url: str) -> BoardEntry | None:
        return self._entries.get(url)

    def keep_only(self, urls: Collection[str]) -> None:
        for url in self._entries.keys() - set(urls):
            del self._entries[url]

    def looks(self, url: str, *, from_s: Seconds, to_s: Seconds, points: int) -> list[KeptLook]:
        """Empty where nothing is kept, or cannot be read."""
        nothing: list[KeptLook] = []
        return self._with_history(
            lambda history: history.looks(url, from_s=from_s, to_s=to_s, points=points), nothing
        )

    def close(self) -> None:
        self._with_history(lambda history: history.close(), None)

    def _begun(self, url: str) -> BoardEntry:
        newest = self._with_history(lambda history: history.last(url), None)
        settled = self._with_history(lambda history: history.last_settled(url), None)
        return BoardEntry(newest, None if settled is None else settled.verdict, recent_s=self._recent_s)

    def _with_history(self, work: Callable[[History], T], otherwise: T) -> T:
        """`otherwise` where there is none. A disk that is full ends no watch; it is said once."""
        if self._history is None:
            return otherwise
        try:
            return work(self._history)
        except OperatingError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(f"{error}; the watch goes on without it")
            return otherwise


class History:
    def __init__(self, path: Path) -> None:
        """Opens an empty file or a history; UsageError if it is none, OperatingError if another process writes it."""
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
        """Looks at one server, the oldest first, at most `points`: of those that stand together the last, and every one
        with marks as far as there is room."""
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
