"""What is known of every server at this moment, which answers are news, and what is kept for whoever asks later."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TypeVar

from msgspec.structs import replace

from speclift.core.errors import OperatingError
from speclift.core.live import Event, KeptLook, Payoff, Watched, kept_look
from speclift.core.units import Seconds
from speclift.live.history import History
from speclift.live.server_watch import is_read, with_answer

T = TypeVar("T")

# A look that failed is a hiccup, three in a row are an outage.
UNREACHABLE_LOOKS = 3
SETTLED = (Payoff.PAYS, Payoff.DOES_NOT_PAY)


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
        """With since when it is so, as far back as is known, and whether that is news."""
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
        """Whether this look settles another answer. Unsure and no traffic settle nothing; a first one is news where it
        is bad."""
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
        """With since when it is so, as far back as is known, and whether that is news."""
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
