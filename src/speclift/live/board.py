"""What is known of every server at this moment, and kept of what was: for whoever asks while the watch goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TypeVar

from speclift.core.errors import OperatingError
from speclift.core.live import Event, KeptLook, Watched, kept_look
from speclift.core.units import Seconds
from speclift.live.history import History
from speclift.live.settled import SettledAnswer, TakenUp

Told = TypeVar("Told")


@dataclass(slots=True, kw_only=True)
class BoardEntry:
    """One server."""

    settled: SettledAnswer
    taken_up: TakenUp
    before: KeptLook | None
    last: Watched | None = None
    looks: int = 0
    changes: int = 0
    events: dict[Event, int] = field(default_factory=lambda: dict.fromkeys(Event, 0))


class Board:
    def __init__(self, history: History | None, *, recent_s: Seconds, say: Callable[[str], None]) -> None:
        """An answer of the history that is not older than `recent_s` goes on; `say` hears where nothing can be kept."""
        self._history, self._recent_s, self._say = history, recent_s, say
        self._entries: dict[str, BoardEntry] = {}
        self._trouble = ""

    def take(self, watched: Watched) -> tuple[Watched, bool]:
        """With since when it is so, as far back as is known, and whether that is news."""
        entry = self._entries.get(watched.url)
        if entry is None:
            entry = self._entries[watched.url] = self._begun(watched.url)
        watched = replace(watched, since_s=entry.taken_up.since_s(watched))
        is_news = entry.settled.changes(watched)
        entry.last, entry.looks, entry.changes = watched, entry.looks + 1, entry.changes + is_news
        for event in watched.events:
            entry.events[event] += 1
        look = kept_look(watched, entry.before)
        entry.before = look
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
        is_recent = newest is not None and time.time() - newest.at_s <= self._recent_s
        return BoardEntry(
            settled=SettledAnswer(
                None if settled is None else settled.payoff,
                is_unreachable=is_recent and newest is not None and newest.is_unreachable,
            ),
            taken_up=TakenUp(newest, recent_s=self._recent_s),
            before=newest if is_recent else None,
        )

    def _with_history(self, work: Callable[[History], Told], otherwise: Told) -> Told:
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
