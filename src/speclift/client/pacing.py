"""When what is sent: jobs with a moment and jobs that wait, how late we looked, and how many bytes may lie unread
before we are woken: no more than a stream's ending has, and more while the end is far.

The kernel stamps what arrives, and between the first token and the last nobody looks at the stamps; being woken
for each token would cost more than all the rest. An ending (finish reason, usage, [DONE]) comes at once, so that
a mark no higher than its length lets tokens gather and still tells of the end when it is there. Where answers are
about as long as each other, nothing of the kind is expected before most of the shortest has come.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque

from speclift.client.connection import Stamp, moment_of
from speclift.client.exchange import Errand
from speclift.core.units import Seconds


class Agenda:
    """Timed jobs come in the order they are due."""

    __slots__ = ("timed", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Errand] = deque()
        self.timed: deque[Errand] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.timed)

    def add(self, job: Errand) -> None:
        (self.waiting if job.due is None else self.timed).append(job)

    def clear(self) -> None:
        self.waiting.clear()
        self.timed.clear()

    @property
    def next_due(self) -> Seconds:
        """Never, where nothing has a moment of its own."""
        return (self.timed[0].due or 0.0) if self.timed else math.inf

    def take(self, now: Seconds, *, has_free_stream: bool) -> Errand | None:
        """What goes out now: first what is due."""
        if self.next_due <= now:
            return self.timed.popleft()
        return self.waiting.popleft() if self.waiting and has_free_stream else None


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


# Endings differ in a few digits; a shorter one than these is noticed when the sender next looks at silent streams.
ANSWERS_KEPT = 32
# An ending that takes longer has its finish reason read by itself: the time of the last token is that chunk's.
TOGETHER_S = 0.001
# Some tokens' worth: gathering more saves little.
ENDING_BYTES_MAX = 1024
GATHER_BYTES_MAX = 4096
# Of the shortest answer, as far as nobody looks for an end; only where it has more than this of the longest, and
# enough answers were seen to say so. One that ends sooner is noticed as late as a shorter ending is.
FAR_SHARE = 0.8
ALIKE_SHARE = 0.5
ALIKE_ANSWERS_MIN = 8


class LowWater:
    """Of the answers seen lately; every packet wakes us until one was seen."""

    __slots__ = ("_endings", "_far_bytes", "_lengths", "ending_bytes")

    def __init__(self) -> None:
        self._endings: deque[int] = deque(maxlen=ANSWERS_KEPT)
        self._lengths: deque[int] = deque(maxlen=ANSWERS_KEPT)
        # No more than the shortest ending.
        self.ending_bytes = 1
        self._far_bytes = 0

    def forget_lengths(self) -> None:
        """Other requests follow."""
        self._lengths.clear()
        self._far_bytes = 0

    def note(self, answer_bytes: int, ending_bytes: int, took_s: Seconds) -> None:
        """An answer is complete: its length, that of its ending, and how long the ending took to come."""
        self._endings.append(max(1, ending_bytes) if took_s <= TOGETHER_S else 1)
        self._lengths.append(answer_bytes)
        self.ending_bytes = min(ENDING_BYTES_MAX, *self._endings)
        shortest, longest = min(self._lengths), max(self._lengths)
        is_alike = len(self._lengths) >= ALIKE_ANSWERS_MIN and shortest > ALIKE_SHARE * longest
        self._far_bytes = int(FAR_SHARE * shortest) if is_alike and self.ending_bytes > 1 else 0

    def mark_bytes(self, read_bytes: int) -> int:
        """For a stream of which so much was read, where it may be noticed late that it ended early."""
        return max(self.ending_bytes, min(GATHER_BYTES_MAX, self._far_bytes - read_bytes))
