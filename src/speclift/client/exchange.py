"""A request on its way: what is to be sent, on which connection, and what has come back of it."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.client.connection import Connection, Stamp, moment_of
from speclift.core.foreign_text import READ_BYTES_MAX, error_text
from speclift.core.records import AnswerRead, Outcome
from speclift.core.units import Seconds
from speclift.http.answer import ERROR_TEXT_MAX, AnswerReader
from speclift.http.counts import NO_LIMITS, Limits
from speclift.http.message import ResponseReader

# Of the text of an answer that failed: what it said is not compared with anything.
FAILED_TEXT_MAX = 16 * 1024
# Of an answer whose length nobody knows.
ANSWER_BYTES_MAX = 64 << 20


@dataclass(slots=True)
class Errand:
    """One request: its bytes, when it is due (None: when a stream is free) and what became of it."""

    id: int
    due: Seconds | None
    data: bytes
    # What its answer may have, head and all.
    bytes_max: int = ANSWER_BYTES_MAX
    sent: Seconds = 0.0
    intended: Seconds = 0.0
    # What a possible answer keeps to.
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A finished request; moments are of time.perf_counter."""

    id: int
    intended: Seconds
    sent: Seconds
    end: Seconds
    result: AnswerRead


class Exchange:
    """One request under way."""

    __slots__ = (
        *("_error_body", "connection", "is_framed", "is_silent", "job", "last_read", "later"),
        *("read_bytes", "receive", "response", "stamp", "stream"),
    )

    def __init__(self, job: Errand, connection: Connection) -> None:
        self.job = job
        self.connection = connection
        self.response = ResponseReader()
        self.stream = AnswerReader(job.limits)
        self._error_body = b""
        self.last_read: Seconds | None = None
        self.read_bytes = 0
        # Whether nothing was read since the sender last looked.
        self.is_silent = False
        # Whether the next bytes may be a chunk like the last one; then only its stamp is kept.
        self.is_framed = False
        self.stamp: Stamp | None = None
        self.receive = connection.receive_raw
        # Reads that end as the chunks before them: looked at together, or when something else comes.
        self.later: list[tuple[bytes, Stamp]] = []

    def take_later(self) -> list[tuple[bytes, Stamp]]:
        """What was left for later and has to be read one by one: nothing where all of it is like what came before."""
        reads, self.later = self.later, []
        if reads and self.stream.take_framed(b"".join([data for data, _ in reads])):
            self.stamp = reads[-1][1]
            return []
        return reads

    def settle(self) -> None:
        """When the last framed chunk came, now that it matters."""
        if self.stamp is not None:
            self.last_read = moment_of(self.stamp)
            self.stream.note_last(self.last_read)
            self.stamp = None

    def keep_error(self, body: bytes) -> None:
        """More of the body of an answer that is not 200."""
        if len(self._error_body) < READ_BYTES_MAX:
            self._error_body += body

    @property
    def ending(self) -> tuple[Outcome | None, str]:
        """Of an answer that came whole: None where the stream says how it went."""
        return (None, "") if self.response.status == 200 else (Outcome.HTTP_ERROR, self.http_error)

    @property
    def excess(self) -> tuple[Outcome, str] | None:
        """Where more came than anybody would read: such an answer is not waited for."""
        if len(self._error_body) >= READ_BYTES_MAX:
            return Outcome.HTTP_ERROR, self.http_error
        if self.read_bytes <= self.job.bytes_max:
            return None
        size = f"more than {self.job.bytes_max:,} bytes"
        return Outcome.MALFORMED, f"the answer is too long for max_tokens: {size}"

    def late(self, limit_s: Seconds) -> str:
        """What there was of an answer that was not whole in time."""
        if not self.response.has_begun:
            return f"no answer within {limit_s:g} s"
        so_far = f"incomplete after {limit_s:g} s, {self.read_bytes:,} bytes received"
        return so_far if self.response.status in (0, 200) else f"{so_far}; {self.http_error}"

    @property
    def http_error(self) -> str:
        where = self.response.location
        moved = f"moved to {where[:ERROR_TEXT_MAX]} " if where else ""
        text = error_text(self._error_body, limit=ERROR_TEXT_MAX)
        return f"{self.response.status}: {moved}{text}".strip()


def words(error: OSError) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
