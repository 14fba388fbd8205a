"""What one answer says of itself while it is relayed: when its text came, how long it is, what was drafted of it.

Made for thousands of chunks a second: JSON is read until the first text was seen and of the last lines, never in
between. Tokens are counted by the server, never by chunks. Whatever is sent, so much of it is kept and no more.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import orjson

from speclift.arithmetic.possible import NO_LIMITS, TOKEN_BYTES_MAX, Limits, judge_drafts, judge_tokens
from speclift.arithmetic.response import DraftCounts, count, draft_counts
from speclift.client.stream import StreamReader
from speclift.core.foreign_text import error_message, error_text
from speclift.core.json_reading import as_object, as_objects, as_text
from speclift.core.units import Seconds, Tokens
from speclift.live.gateway.chunks import body_of, passing

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
REASON_MAX = 40
_TEXT_KEYS = ("content", "text", "reasoning", "reasoning_content", "refusal")
_CALL_KEYS = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSeen:
    """One answer once its last byte was relayed; None is what it does not say, or what cannot be true."""

    # Of a stream; an answer that comes whole has no first token.
    first_text_s: Seconds | None = None
    # The finish where the text ended by itself: the end token is counted and carries no text.
    last_text_s: Seconds | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    finish_reason: str | None = None
    # What the answer itself calls an error; "" where it does not.
    error: str = ""
    # Where text was to be kept; None where it was not, or is too long.
    text: str | None = None

    @property
    def tpot_s(self) -> Seconds | None:
        """None too where all of it came at once: held back on the way, or a single step."""
        first, last, tokens = self.first_text_s, self.last_text_s, self.output_tokens
        if first is None or last is None or tokens is None or tokens < 2 or last <= first:
            return None
        return (last - first) / (tokens - 1)


class ObservedAnswer:
    """Takes the body of one answer as it comes, whatever it is."""

    __slots__ = (
        "_arrivals",
        "_first_s",
        "_is_whole",
        "_keeps_text",
        "_later",
        "_length",
        "_limits",
        "_reader",
        "_tail",
        "_tail_max",
        "_tail_start",
        "_unread",
    )

    def __init__(self, *, limits: Limits = NO_LIMITS, keeps_text: bool = False) -> None:
        """`limits` is what was asked for; not to be given where several answers are asked for at once."""
        self._limits = limits
        self._keeps_text = keeps_text
        self._reader = StreamReader() if keeps_text else None
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

    def result(self) -> AnswerSeen:
        if self._later[0]:
            self._catch_up()
        if self._is_whole:
            return self._whole()
        text = None if self._reader is None else self._reader.result().text
        return self._streamed(text)

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
        if any(payload is not None and _has_text(payload) for payload in events):
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

    def _keep_text(self, reader: StreamReader, arrived_s: Seconds, body: bytes) -> None:
        if self._is_whole or self._length > TEXT_BODY_BYTES_MAX:
            self._reader = None
            return
        reader.feed(arrived_s, body)

    def _arrival(self, place: int) -> Seconds:
        """When the byte before this place came; the earliest that is remembered where that is longer ago."""
        return next(arrived_s for arrived_s, length in self._arrivals if length >= place)

    def _events(self) -> Iterator[tuple[Seconds, Mapping[str, object]]]:
        """The last ones with their times. What has no line end behind it may be whole all the same."""
        lines = bytes(self._tail).split(b"\n")[-LINES_KEPT - 1 :]
        place = self._length + 1 - sum(len(line) + 1 for line in lines)
        for line in lines:
            place += len(line) + 1
            payload = _event(line)
            if payload is not None:
                yield self._arrival(min(place, self._length)), payload

    def _streamed(self, text: str | None) -> AnswerSeen:
        reason, error = None, ""
        finish_s = last_s = None
        counted = _Counted()
        for arrived_s, payload in self._events():
            counted.take(payload)
            if _has_text(payload):
                last_s = arrived_s
            reason_here = _finish_reason(payload)
            if reason_here is not None:
                reason, finish_s = reason_here, arrived_s
            if payload.get("error"):
                error = (error_message(payload) or "an error without words")[:ERROR_TEXT_MAX]
        if self._first_s is None:
            last_s = None
        elif reason == "stop" and finish_s is not None:
            last_s = finish_s
        elif last_s is None:
            last_s = self._arrivals[-1][0]  # the lines with text were given up
        return counted.seen(
            AnswerSeen(
                first_text_s=self._first_s, last_text_s=last_s, finish_reason=reason, error=error, text=text
            ),
            body_bytes=self._length,
            limits=self._limits,
        )

    def _whole(self) -> AnswerSeen:
        payload = _object(bytes(self._tail)) if self._tail_start == 0 else None
        if payload is None:
            return AnswerSeen()
        counted = _Counted()
        counted.take(payload)
        error = error_text(bytes(self._tail), limit=ERROR_TEXT_MAX) if payload.get("error") else ""
        text = _message_text(payload) if self._keeps_text else None
        return counted.seen(
            AnswerSeen(finish_reason=_finish_reason(payload), error=error, text=text),
            body_bytes=self._length,
            limits=self._limits,
        )


class _Counted:
    """The counts in the last events; the latest of each is what holds."""

    def __init__(self) -> None:
        self._usage: Mapping[str, object] = {}
        self._drafts: DraftCounts | None = None

    def take(self, payload: Mapping[str, object]) -> None:
        self._usage = as_object(payload.get("usage")) or self._usage
        self._drafts = draft_counts(payload) or self._drafts

    def seen(self, answer: AnswerSeen, *, body_bytes: int, limits: Limits) -> AnswerSeen:
        """With those of them that can be true."""
        tokens = count(self._usage.get("completion_tokens"))
        if tokens is None and self._drafts is not None:
            tokens = self._drafts.output_tokens
        if tokens is not None:
            # How much of the body is text is not known: no more than all of it, and as much as the tokens could say.
            text_bytes = min(body_bytes, tokens * TOKEN_BYTES_MAX)
            if judge_tokens(tokens, text_bytes=text_bytes, limits=limits) is not None:
                tokens = None
        drafted, accepted = self._drafted_and_accepted(tokens, limits)
        return replace(
            answer,
            prompt_tokens=count(self._usage.get("prompt_tokens")),
            output_tokens=tokens,
            drafted=drafted,
            accepted=accepted,
        )

    def _drafted_and_accepted(
        self, tokens: Tokens | None, limits: Limits
    ) -> tuple[Tokens | None, Tokens | None]:
        drafts = self._drafts or _predictions(self._usage)
        if (
            drafts is None
            or judge_drafts(drafts, drafts.steps or (), tokens=tokens, limits=limits) is not None
        ):
            return None, None
        return drafts.drafted, drafts.accepted


def _predictions(usage: Mapping[str, object]) -> DraftCounts | None:
    """OpenAI's own fields. Servers that draft nothing fill both with zero; one alone is no rate."""
    details = as_object(usage.get("completion_tokens_details"))
    accepted, rejected = (
        count(details.get(f"{name}_prediction_tokens")) for name in ("accepted", "rejected")
    )
    if accepted is None or rejected is None or accepted + rejected == 0:
        return None
    return DraftCounts(drafted=accepted + rejected, accepted=accepted)


def _event(line: bytes) -> Mapping[str, object] | None:
    return _object(line[5:]) if line.startswith(b"data:") else None


def _object(data: bytes) -> Mapping[str, object] | None:
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        # orjson is strict where engines written in Python are not: NaN, lone surrogates.
        try:
            payload = json.loads(data)
        except (ValueError, RecursionError):
            return None
    return payload if isinstance(payload, dict) else None


def _has_text(payload: Mapping[str, object]) -> bool:
    """Text, thoughts or the call of a tool; llama.cpp's own /completion has its text outside of any choice."""
    choices = as_objects(payload.get("choices"))
    said = [as_object(choice.get("delta")) or choice for choice in choices] or [payload]
    return any(
        any(isinstance(delta.get(key), str) and delta[key] for key in _TEXT_KEYS)
        or any(delta.get(key) for key in _CALL_KEYS)
        for delta in said
    )


def _finish_reason(payload: Mapping[str, object]) -> str | None:
    reasons = (choice.get("finish_reason") for choice in as_objects(payload.get("choices")))
    return next((_word(reason) for reason in reasons if reason), None)


def _word(reason: object) -> str:
    return reason[:REASON_MAX] if isinstance(reason, str) else "unreadable"


def _message_text(payload: Mapping[str, object]) -> str | None:
    """Of the first choice, thoughts first, as a stream brings them."""
    choice = next(iter(as_objects(payload.get("choices"))), {})
    message = as_object(choice.get("message"))
    if not message:
        return as_text(choice.get("text"))
    thought = as_text(message.get("reasoning")) or as_text(message.get("reasoning_content")) or ""
    content = as_text(message.get("content"))
    return thought + content if content is not None else thought or None
