"""Which answers are worth waking somebody for: those that settled otherwise than the one before. Pure."""

from __future__ import annotations

from speclift.core.live import KeptLook, Payoff, Watched
from speclift.core.units import Seconds

# A look that failed is a hiccup, three in a row are an outage.
UNREACHABLE_LOOKS = 3
SETTLED = (Payoff.PAYS, Payoff.DOES_NOT_PAY)


class SettledAnswer:
    """Of one server. Unsure and no traffic settle nothing: what was settled before still holds."""

    def __init__(self, payoff: Payoff | None = None, *, is_unreachable: bool = False) -> None:
        """As it was when an earlier watch ended, where there was one."""
        self._payoff = payoff
        self._is_unreachable = is_unreachable
        self._missed = UNREACHABLE_LOOKS if is_unreachable else 0

    def changes(self, watched: Watched) -> bool:
        """Whether this look settles another answer. The first is news only where it is bad."""
        if watched.unreachable:
            self._missed += 1
            is_news = self._missed == UNREACHABLE_LOOKS and not self._is_unreachable
            self._is_unreachable = self._is_unreachable or is_news
            return is_news
        is_back, self._is_unreachable, self._missed = self._is_unreachable, False, 0
        if watched.payoff not in SETTLED or watched.payoff is self._payoff:
            return is_back
        before, self._payoff = self._payoff, watched.payoff
        return is_back or before is not None or watched.payoff is Payoff.DOES_NOT_PAY


class TakenUp:
    """Since when the answer holds, where an earlier watch of the same server knew it already."""

    def __init__(self, kept: KeptLook | None, *, recent_s: Seconds) -> None:
        """`recent_s`: an older look says nothing about now."""
        self._kept, self._recent_s = kept, recent_s
        self._is_reached = False

    def since_s(self, watched: Watched) -> Seconds:
        kept = self._kept
        if kept is None or watched.unreachable or watched.at_s - kept.at_s > self._recent_s:
            self._kept = kept if watched.unreachable else None
            return watched.since_s
        if watched.payoff is kept.payoff:
            # From here on it has to go on; the time of the last look moves with it.
            self._is_reached, self._recent_s = True, float("inf")
            return min(kept.since_s, watched.since_s)
        # The first looks after a start are unsure in any case.
        if self._is_reached or watched.payoff is not Payoff.UNSURE:
            self._kept = None
        return watched.since_s
