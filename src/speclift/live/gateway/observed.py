"""What one answer says of itself while it is relayed: when its text came, how long it is, what was drafted of it.

Made for thousands of chunks a second: JSON is read until the first text was seen and of the last lines, never in
between. Tokens are counted by the server, never by chunks. Whatever is sent, so much of it is kept and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from speclift.core.foreign_text import error_message, error_text
from speclift.core.records import AnswerRead, Outcome
from speclift.core.units import Seconds
from speclift.http.answer import AnswerEvent, AnswerReader, read_event
from speclift.http.counts import NO_LIMITS, Limits, Reported
from speclift.http.message import SIZES

# The end of a stream lies in its last three events (the finish, the counts, [DONE]), each with a blank line behind it.
# Twice as many are kept, for servers that put comments between them.
LINES_KEPT = 12
# So much comes before the lines are cut back to the last: some forty chunks, a tenth of a microsecond for each.
TAIL_BYTES = 8 * 1024
# Of one line, and of an answer that is one JSON document: vLLM's last event lists every step of the answer, some 600 kB
# for 100,000 tokens (0.32).
LINE_BYTES_MAX = 1 << 20
# Reads at the end whose times are kept apart: the last text, the finish, the counts and [DONE] may each come alone.
ARRIVALS_KEPT = 8
# Whole chunks that are kept unread, and how many of them when there are twice as many: those before hold neither the
# first text nor the end.
CHUNKS_KEPT = 16
# Of an answer whose text is kept: some 60,000 tokens in chunks of 250 bytes.
TEXT_BODY_BYTES_MAX = 16 << 20
ERROR_TEXT_MAX = 200
# Of one read: what is passed on unread is kept for a while, so a server that floods is read with care.
PASSED_BYTES_MAX = 4096
_SIZE_DIGITS = 3
# Bound once: Python looks a method of an imported name up anew for every token.
_size_of = SIZES.get


class ObservedAnswer:
    """Takes the body of one answer as it comes, whatever it is."""

    __slots__ = (
        "_arrivals",
        "_first_s",
        "_is_whole",
        "_later",
        "_length",
        "_limits",
        "_reader",
        "_tail",
        "_tail_max",
        "_tail_start",
        "_unread",
        "keeps_text",
    )

    def __init__(self, *, limits: Limits = NO_LIMITS, keeps_text: bool = False) -> None:
        """`limits` is what was asked for; not to be given where several answers are asked for at once."""
        self._limits = limits
        # False from where it is too long on.
        self.keeps_text = keeps_text
        self._reader = AnswerReader() if keeps_text else None
        # None until the first byte that is no space: then whether it is one JSON document.
        self._is_whole: bool | None = None
        self._first_s: Seconds | None = None
        # The last lines; where they begin, and how much has come at all.
        self._tail = bytearray()
        self._tail_start = 0
        self._tail_max = TAIL_BYTES
        self._length = 0
        # Where in the tail the lines begin that were not looked at for text yet.
        self._unread = 0
        # When the last reads came, and what had come with them.
        self._arrivals: deque[tuple[Seconds, int]] = deque(maxlen=ARRIVALS_KEPT)
        # Whole chunks that nobody has looked at yet, with their times.
        self._later: tuple[list[Seconds], list[bytes]] = ([], [])

    @property
    def heard_s(self) -> Seconds:
        """When the last part came, of those that were taken for later; 0 where none waits."""
        return self._later[0][-1] if self._later[0] else 0.0

    def passing(
        self, write: Callable[[bytes], None], clock: Callable[[], Seconds]
    ) -> Callable[[bytes], bool] | None:
        """What takes whole chunks from now on, in less time than `feed` takes their bodies, and writes them; None where
        each of them has to be read: no text has come yet, or all of it is to be kept."""
        if self._first_s is None or self._reader is not None:
            return None
        return passing(write, self._later, self._skip, kept_max=2 * CHUNKS_KEPT, clock=clock)

    def _skip(self) -> None:
        """Of the first half only how much it was is still wanted, and its frames may well be counted with it."""
        times, chunks = self._later
        self._length += sum(map(len, chunks[:CHUNKS_KEPT]))
        del times[:CHUNKS_KEPT], chunks[:CHUNKS_KEPT]
        self._tail.clear()
        self._tail_start = self._length
        self._unread = 0

    def _catch_up(self) -> None:
        """The last of what came is looked at."""
        later = list(zip(*self._later, strict=True))
        for each in self._later:
            each.clear()
        for arrived_s, chunks in later:
            self.feed(arrived_s, body_of(chunks))

    def ends_with(self, ends: tuple[bytes, ...]) -> bool:
        """Whether what came so far does."""
        if self._later[0]:
            self._catch_up()
        return self._tail.endswith(ends)

    def feed(self, arrived_s: Seconds, body: bytes) -> None:
        if self._later[0]:
            self._catch_up()
        self._length = length = self._length + len(body)
        self._arrivals.append((arrived_s, length))
        self._tail += body
        if self._first_s is None:
            self._look_for_text(arrived_s, body)
        if len(self._tail) > self._tail_max:
            self._cut_back()
        if self._reader is not None:
            self._keep_text(self._reader, arrived_s, body)

    def result(self) -> AnswerRead:
        """The answer once its last byte was relayed, its text only where that is kept."""
        if self._later[0]:
            self._catch_up()
        reported = Reported(self._limits)
        answer = self._whole(reported) if self._is_whole else self._streamed(reported)
        return reported.believed(answer, body_bytes=self._length, chunk_count=None)

    def _look_for_text(self, arrived_s: Seconds, body: bytes) -> None:
        """Until it was found, every line that is complete is read."""
        if self._is_whole is None:
            begun = body.lstrip()
            self._is_whole = begun.startswith((b"{", b"[")) if begun else None
        if self._is_whole:
            self._tail_max = LINE_BYTES_MAX
            return
        tail = self._tail
        # What came before holds no line end behind the lines that were read.
        end = tail.rfind(b"\n", max(self._unread, len(tail) - len(body))) + 1
        if end == 0:
            return
        lines = bytes(tail[self._unread : end])
        self._unread = end
        # Comments and blank lines may come by the thousand.
        events = (_event(line) for line in lines.split(b"\n")) if b"data:" in lines else ()
        if any(event is not None and event.has_text for event in events):
            self._first_s = arrived_s

    def _cut_back(self) -> None:
        """To the last lines. A line that does not end may grow up to its bound, and is given up there."""
        tail = self._tail
        place = len(tail)
        for _ in range(LINES_KEPT + 1):
            place = tail.rfind(b"\n", 0, place)
            if place < 0:
                break
        cut = place + 1
        if self._is_whole:
            cut = len(tail)
        elif cut == 0 and len(tail) > LINE_BYTES_MAX:
            cut = tail.rfind(b"\n") + 1 or len(tail)
        del tail[:cut]
        self._tail_start += cut
        self._unread = max(self._unread - cut, 0)
        self._tail_max = max(TAIL_BYTES, min(2 * len(tail), LINE_BYTES_MAX))

    def _keep_text(self, reader: AnswerReader, arrived_s: Seconds, body: bytes) -> None:
        if self._is_whole:
            self._reader = None  # read when it is over
        elif self._length > TEXT_BODY_BYTES_MAX:
            self._reader, self.keeps_text = None, False
        else:
            reader.feed(arrived_s, body)

    def _arrival(self, place: int) -> Seconds:
        """When the byte before this place came; the earliest that is remembered where that is longer ago."""
        return next(arrived_s for arrived_s, length in self._arrivals if length >= place)

    def _events(self) -> Iterator[tuple[Seconds, AnswerEvent]]:
        """The last ones with their times. What has no line end behind it may be whole all the same."""
        lines = bytes(self._tail).split(b"\n")[-LINES_KEPT - 1 :]
        place = self._length + 1 - sum(len(line) + 1 for line in lines)
        for line in lines:
            place += len(line) + 1
            event = _event(line)
            if event is not None:
                yield self._arrival(min(place, self._length)), event

    def _streamed(self, reported: Reported) -> AnswerRead:
        reason, error = None, ""
        finish_s = last_s = None
        for arrived_s, event in self._events():
            reported.take(event.usage or None, event.timings, event.metrics)
            if event.has_text:
                last_s = arrived_s
            if event.finish_reason is not None:
                reason, finish_s = event.finish_reason, arrived_s
            if event.error:
                error = (error_message({"error": event.error}) or "an error without words")[:ERROR_TEXT_MAX]
        if self._first_s is None:
            last_s = None
        elif reason == "stop" and finish_s is not None:
            last_s = finish_s
        elif last_s is None:
            last_s = self._arrivals[-1][0]  # the lines with text were given up
        return AnswerRead(
            outcome=Outcome.HTTP_ERROR if error else Outcome.OK,
            error=error,
            first_token_s=self._first_s,
            last_token_s=last_s,
            finish_reason=reason,
            text="" if self._reader is None else self._reader.result().text,
        )

    def _whole(self, reported: Reported) -> AnswerRead:
        body = bytes(self._tail) if self._tail_start == 0 else b""
        event, reader = read_event(body), AnswerReader()
        if event is None:
            self.keeps_text = False
            return AnswerRead(outcome=Outcome.OK)
        reported.take(event.usage, event.timings, event.metrics)
        if self.keeps_text:
            reader.take_whole(body)
        return AnswerRead(
            outcome=Outcome.HTTP_ERROR if event.error else Outcome.OK,
            error=error_text(body, limit=ERROR_TEXT_MAX) if event.error else "",
            finish_reason=event.finish_reason,
            text=reader.text,
        )


def _event(line: bytes) -> AnswerEvent | None:
    return read_event(line[5:]) if line.startswith(b"data:") else None


def are_whole_chunks(data: bytes) -> bool:
    """From the first byte to the last, and none of them the last of its body."""
    place, length = 0, len(data)
    while place < length:
        edge = data.find(b"\r\n", place, place + _SIZE_DIGITS + 2)
        # Without an edge, -1 would be one, and what follows it may lie behind: a size cut in two would never end.
        size = _size_of(data[place:edge]) if edge > place else None
        if size is None:
            return False
        place = edge + size + 4
        if data[place - 2 : place] != b"\r\n":
            return False
    return place == length


def passing(
    write: Callable[[bytes], None],
    later: tuple[list[Seconds], list[bytes]],
    shorten: Callable[[], None],
    *,
    kept_max: int,
    clock: Callable[[], Seconds],
) -> Callable[[bytes], bool]:
    """The way of every token, so one call and as few more as can be: whole chunks are written as they came and noted in
    `later` with their time, which is shortened where it has come to `kept_max`. What this makes says whether the bytes
    were such chunks; of others it does nothing. Times and chunks stand in a list each: a pair for every token would be
    so much more for the garbage collector to look through."""
    times, kept = later

    def pass_on(data: bytes) -> bool:
        edge = data.find(b"\r\n", 0, _SIZE_DIGITS + 2)
        size = _size_of(data[:edge])
        if size is None or len(data) > PASSED_BYTES_MAX:
            return False
        # One chunk, most of the time; where the loop is busy, several.
        if (len(data) != edge + size + 4 or data[-2:] != b"\r\n") and not are_whole_chunks(data):
            return False
        times.append(clock())
        kept.append(data)
        if len(kept) >= kept_max:
            shorten()
        write(data)
        return True

    return pass_on


def body_of(chunks: bytes) -> bytes:
    """What whole chunks carry."""
    parts, place = [], 0
    while place < len(chunks):
        edge = chunks.index(b"\r\n", place)
        end = edge + 2 + SIZES[chunks[place:edge]]
        parts.append(chunks[edge + 2 : end])
        place = end + 2
    return b"".join(parts)
