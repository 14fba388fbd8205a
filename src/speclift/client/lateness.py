"""How late the sending process was to look at what had arrived, and what that does to its time stamps."""

from __future__ import annotations

import time
from array import array

from speclift.client.connection import Stamp, moment_of
from speclift.core.units import Seconds

AGES_MAX = 1 << 16
# Of this many wake-ups one is looked at: at low load the look costs a tenth of the wake-up.
WAKE_UPS_PER_LOOK = 8


class Lateness:
    """Of one turn. A stamp that is not the kernel's is the moment of reading: then all since `woke` counts."""

    __slots__ = ("_blurs", "_lags", "_wake_ups")

    def __init__(self) -> None:
        self._lags, self._blurs = Ages(), Ages()
        self._wake_ups = 0

    def note_read(self, stamp: Stamp, woke: Seconds) -> None:
        """Bytes of this stamp were the last of a wake-up's reads, which waited the longest."""
        if self._wake_ups % WAKE_UPS_PER_LOOK == 0:
            since = woke if isinstance(stamp, float) else moment_of(stamp)
            self._lags.add(time.perf_counter() - since)
        self._wake_ups += 1

    def note_first(self, stamp: Stamp, woke: Seconds, *, is_alone: bool) -> None:
        """A first token was read, by itself or with later ones: only the last packet of a read has its own stamp."""
        if isinstance(stamp, float):
            self._blurs.add(time.perf_counter() - woke)
        else:
            self._blurs.add(0.0 if is_alone else time.perf_counter() - moment_of(stamp))

    @property
    def lag_p99_s(self) -> Seconds:
        """P99 of how long bytes lay unread that should have woken us."""
        return self._lags.p99_s()

    @property
    def blur_p99_s(self) -> Seconds:
        """P99 of how late first tokens' stamps may be."""
        return self._blurs.p99_s()


class Ages:
    """An even sample of what was added, in bounded memory."""

    __slots__ = ("_seconds", "_skip", "_stride")

    def __init__(self) -> None:
        self._seconds = array("f")
        self._stride = 1
        self._skip = 0

    def add(self, age_s: Seconds) -> None:
        if self._skip:
            self._skip -= 1
            return
        self._skip = self._stride - 1
        self._seconds.append(age_s)
        if len(self._seconds) >= AGES_MAX:
            self._seconds = self._seconds[::2]
            self._stride *= 2

    def p99_s(self) -> Seconds:
        ordered = sorted(self._seconds)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0
