"""How many bytes of a stream may lie unread before we are woken: no more than its ending has, and more while the end
is far.

The kernel stamps what arrives, and between the first token and the last nobody looks at the stamps; being woken
for each token would cost more than all the rest. An ending (finish reason, usage, [DONE]) comes at once, so that
a mark no higher than its length lets tokens gather and still tells of the end when it is there. Where answers are
about as long as each other, nothing of the kind is expected before most of the shortest has come.
"""

from __future__ import annotations

from collections import deque

from speclift.core.units import Seconds

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
