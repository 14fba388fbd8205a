"""What the client and its sending processes tell each other, and how it travels: length, then pickle.

Both ends are this program at the same version on a private socket pair; nothing from outside is unpickled.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from speclift.core.units import Seconds, Tokens

_LENGTH = struct.Struct("!I")

# id, when it is due on the monotonic clock (None: when a stream is free), the bytes to send, how many may come back,
# the most tokens of an answer and of a draft (None: not known).
OrderRow = tuple[int, Seconds | None, bytes, int, Tokens | None, Tokens | None]
# id, intended, sent, end, then the fields of AnswerRead in their order; steps and what was refused as pairs.
ResultRow = tuple[
    int,
    Seconds,
    Seconds,
    Seconds,
    str,
    str,
    Seconds | None,
    Seconds | None,
    Tokens | None,
    Tokens | None,
    str | None,
    str,
    Tokens | None,
    Tokens | None,
    Sequence[tuple[Tokens, Tokens]] | None,
    Sequence[tuple[str, str]],
]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process is told when it is started: where to send to, and how long a request may take."""

    host: str
    port: int
    is_tls: bool
    limit_s: Seconds


@dataclass(frozen=True, slots=True)
class Begin:
    """A turn begins: this many streams for orders that are not due at a moment of their own. `is_other_work`: its
    requests are of another kind than those before."""

    turn: int
    streams: int
    is_other_work: bool = False


@dataclass(frozen=True, slots=True)
class Orders:
    rows: Sequence[OrderRow]


@dataclass(frozen=True, slots=True)
class End:
    """No more orders in this turn: send ProcessHealth when the last result was handed over."""


@dataclass(frozen=True, slots=True)
class Results:
    rows: Sequence[ResultRow]


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """How the process itself fared: P99 of how long bytes lay unread and of how late a first token's time stamp
    may be, CPU seconds of the turn."""

    turn: int
    lag_p99_s: Seconds
    blur_p99_s: Seconds
    cpu_s: Seconds


Message: TypeAlias = Begin | Orders | End | Results | ProcessHealth


def frame(message: Message) -> bytes:
    data = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Messages out of bytes that come in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        place = 0
        while len(self._buffer) - place >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, place)
            start = place + _LENGTH.size
            if len(self._buffer) < start + length:
                break
            messages.append(pickle.loads(self._buffer[start : start + length]))
            place = start + length
        del self._buffer[:place]
        return messages
