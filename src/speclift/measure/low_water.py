"""How many bytes of a stream may lie unread before we are woken: no more than its ending has.

The kernel stamps what arrives, and between the first token and the last nobody looks at the stamps; being woken
for each token would cost more than all the rest. An ending (finish reason, usage, [DONE]) comes at once, so that
a mark no higher than its length lets tokens gather and still tells of the end when it is there.
"""

from __future__ import annotations

from collections import deque

from speclift.core.units import Seconds

# Endings differ in a few digits; a shorter one than these is noticed when the sender next looks at silent streams.
ENDINGS_KEPT = 32
# An ending that takes longer has its finish reason read by itself: the time of the last token is that chunk's.
TOGETHER_S = 0.001
# Some tokens' worth: gathering more saves little.
MARK_BYTES_MAX = 1024


class LowWater:
    """The shortest of the endings seen lately, in bytes; 1 (every packet wakes us) until one was seen."""

    __slots__ = ("_endings", "mark_bytes")

    def __init__(self) -> None:
        self.mark_bytes = 1
        self._endings: deque[int] = deque(maxlen=ENDINGS_KEPT)

    def note(self, ending_bytes: int, took_s: Seconds) -> None:
        self._endings.append(max(1, ending_bytes) if took_s <= TOGETHER_S else 1)
        self.mark_bytes = min(MARK_BYTES_MAX, *self._endings)
