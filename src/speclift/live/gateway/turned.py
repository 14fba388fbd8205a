"""Speculation that no longer pays by what the servers count themselves: off for a while, then tried again. Pure.

A pool that gets no requests tells nothing, so it cannot be waited for: after the time that a verdict looks back over it
is tried again, and twice as long after each time that it was in vain.
"""

from __future__ import annotations

from collections.abc import Sequence

from speclift.core.live import Payoff, Watched
from speclift.core.quantities import duration
from speclift.core.units import Seconds

HOLD_S: Seconds = 600.0
HOLD_MAX_S: Seconds = 8 * HOLD_S
# So long after it was tried again and still pays, the next turn is a first one.
FORGOTTEN_S: Seconds = 4 * HOLD_S


class TurnedAway:
    """What speaks against the speculative pool, by looks at its servers."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._looks: dict[str, Watched | None] = dict.fromkeys(urls)
        self._words = ""
        self._until_s: Seconds = 0.0
        self._hold_s: Seconds = HOLD_S

    def take(self, watched: Watched, *, now_s: Seconds) -> None:
        self._looks[watched.url] = watched
        if self._words or not self._all_say_no():
            return
        if now_s - self._until_s > FORGOTTEN_S:
            self._hold_s = HOLD_S
        self._words = f"{_words(watched)}; off for {duration(self._hold_s)}"
        self._until_s = now_s + self._hold_s
        self._hold_s = min(2 * self._hold_s, HOLD_MAX_S)

    def against(self, *, now_s: Seconds) -> str:
        """'' where nothing speaks against it."""
        if self._words and now_s >= self._until_s:
            self._words = ""
            self._looks = dict.fromkeys(self._looks)
        return self._words

    def _all_say_no(self) -> bool:
        """Of those that have traffic, all: one that still pays is reason enough to keep the pool."""
        payoffs = {look.verdict for look in self._looks.values() if look is not None and not look.unreachable}
        return Payoff.DOES_NOT_PAY in payoffs and payoffs <= {Payoff.DOES_NOT_PAY, Payoff.NO_TRAFFIC}


def _words(watched: Watched) -> str:
    length, point = watched.accepted_length, watched.break_even
    if length is None or point is None:
        return "its servers count too few accepted tokens"
    return (
        f"accepted length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}] "
        f"is under the break-even {point.accepted_length:.2f}"
    )
