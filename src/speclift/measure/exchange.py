"""A request on its way: what is to be sent, on which connection, and what has come back of it."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.units import Seconds
from speclift.measure.connection import Connection, Stamp
from speclift.measure.stream import ERROR_TEXT_MAX, StreamReader, StreamResult
from speclift.measure.wire import ResponseReader


@dataclass(slots=True)
class Job:
    """One request: its bytes, when it is due (None: when a stream is free) and what became of it."""

    id: int
    due: Seconds | None
    data: bytes
    sent: Seconds = 0.0
    intended: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A finished request; moments are of time.perf_counter."""

    id: int
    intended: Seconds
    sent: Seconds
    end: Seconds
    result: StreamResult


class Exchange:
    """One request under way."""

    __slots__ = (
        *("connection", "error_body", "is_framed", "job", "last_read", "receive"),
        *("response", "stamp", "stream", "take_framed"),
    )

    def __init__(self, job: Job, connection: Connection) -> None:
        self.job = job
        self.connection = connection
        self.response = ResponseReader()
        self.stream = StreamReader()
        self.error_body = b""
        self.last_read: Seconds | None = None
        # Whether the next bytes may be a chunk like the last one; then only its stamp is kept.
        self.is_framed = False
        self.stamp: Stamp | None = None
        self.receive = connection.receive_raw
        self.take_framed = self.stream.take_framed


def words(error: OSError) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
