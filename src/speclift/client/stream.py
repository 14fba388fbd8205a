"""The bytes of one streamed response to a record's fields, as they arrive. Pure: arrival times come with the bytes.

Tokens are counted by the server (usage or timings), never by chunks: under speculation one chunk may carry
several. The last token's time is the finish chunk's where the text ended by itself, because the end token
is counted but carries no text. Nothing is kept per token but the text and, where the engine counts alongside,
three numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO

import orjson

from speclift.arithmetic.possible import NO_LIMITS, Limits
from speclift.client.reported import Reported
from speclift.core.foreign_text import error_message, error_text
from speclift.core.json_reading import as_object, as_objects, as_text
from speclift.core.records import Outcome, Refused, Step
from speclift.core.units import Seconds, Tokens

ERROR_TEXT_MAX = 500
REASON_MAX = 40
# Of what came before any event: enough to tell what it was instead.
LEAD_BYTES_MAX = 4096
# Lines that servers send before the first event, to keep the connection alive.
STREAM_STARTS = (b":", b"event:", b"id:", b"retry:", b"data:")
# vLLM's last event lists every step of the answer: some 600 kB for 100,000 tokens (0.32).
LINE_BYTES_MAX = 4 << 20
# The longest [DONE] line with its spaces and line end; anything longer is looked at as JSON at once.
DONE_BYTES_MAX = 16
_MARK = re.compile(rb'"(?:content|text|reasoning|reasoning_content)": ?"([^"\\]+)"')
# Reads that are looked at together, where a chunk's end tells that it is not the last one.
LATER_MAX = 8
# Chunks in a row that did not look like the one before: then this stream's chunks differ in more than their text.
FRAME_MISSES_MAX = 4
# Reasoning models stream their thoughts under another key; they are tokens all the same. vLLM (0.32) calls it
# reasoning, llama.cpp and SGLang reasoning_content, some servers send both with the same text.
THOUGHT_KEY, OTHER_THOUGHT_KEY = "reasoning", "reasoning_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    outcome: Outcome
    error: str = ""
    first_token_s: Seconds | None = None
    last_token_s: Seconds | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    finish_reason: str | None = None
    text: str = ""
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    steps: tuple[Step, ...] | None = None
    # Numbers that the server reported and that cannot be true.
    refused: tuple[Refused, ...] = ()


def read_stream(reads: Iterable[tuple[Seconds, bytes]], *, limits: Limits = NO_LIMITS) -> StreamResult:
    """`reads` are network reads in order, each with the moment it arrived."""
    reader = StreamReader(limits)
    for arrived_s, data in reads:
        reader.feed(arrived_s, data)
    return reader.result()


class StreamReader:
    """Accumulates one response."""

    __slots__ = (
        "_ending_bytes",
        "_failure",
        "_finish_reason",
        "_finish_s",
        "_first_s",
        "_frame_misses",
        "_has_event",
        "_last_s",
        "_lead",
        "_prefix",
        "_reported",
        "_rest",
        "_rest_length",
        "_rest_s",
        "_start",
        "_text",
        "later_max",
        "suffix",
        "text_count",
    )

    def __init__(self, limits: Limits = NO_LIMITS) -> None:
        self._reported = Reported(limits)
        self._first_s: Seconds | None = None
        self._last_s: Seconds | None = None
        self._finish_s: Seconds | None = None
        self._finish_reason: str | None = None
        self._text = StringIO()
        # Chunks with text.
        self.text_count = 0
        self._ending_bytes = 0
        self._failure: tuple[Outcome, str] | None = None
        self._rest = b""
        self._rest_s: Seconds = 0.0
        self._has_event = False
        self._lead = b""
        # What surrounds the text in this stream's chunks, once a chunk has shown it.
        self._frame_misses = 0
        self._set_frame(b"", b"")

    def feed(self, arrived_s: Seconds, data: bytes) -> None:
        """A line belongs to the read that completed it."""
        if not self._has_event:
            self._lead += data[: LEAD_BYTES_MAX - len(self._lead)]
        if self._rest:
            data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        self._rest_s = arrived_s
        if len(self._rest) > LINE_BYTES_MAX:
            self._fail(Outcome.MALFORMED, f"a line of more than {LINE_BYTES_MAX >> 20} MiB in the stream")
        if self._failure is not None:
            self._rest = b""  # nothing more is read of it
        for line in lines:
            # Comments keep the connection alive; event and id lines carry nothing here.
            if line[:5] == b"data:" and self._failure is None:
                self._take_line(arrived_s, line[5:], is_whole=True)
            if self._finish_s is not None:
                self._ending_bytes += len(line) + 1

    @property
    def ending(self) -> tuple[int, Seconds] | None:
        """Bytes from the event with the finish reason on, and how long they took to come; None before it."""
        return None if self._finish_s is None else (self._ending_bytes, self._rest_s - self._finish_s)

    @property
    def has_frame(self) -> bool:
        """Whether `take_framed` may be tried: a chunk has shown what surrounds the text, and no line is open."""
        return bool(self._prefix) and not self._rest and self._failure is None

    def take_framed(self, data: bytes) -> bool:
        """HTTP chunks that are events like those before them but for their text: taken without reading JSON.

        False, and nothing taken, where they are anything else. `note_last` says when the last of them arrived.
        """
        pieces = data.split(self.suffix)
        if pieces.pop() or not pieces:
            return False  # it does not end as they do, or it is the end
        prefix, start, rest = self._prefix, self._start, self._rest_length
        texts = []
        try:
            for piece in pieces:
                edge = piece.find(b"\r\n", 1, 8)
                if len(piece) + rest != edge + int(piece[:edge], 16) or not piece.startswith(
                    prefix, edge + 2
                ):
                    return False
                texts.append(piece[edge + start :].decode())
        except ValueError:
            return False
        text = "".join(texts)
        if "" in texts or not text.isprintable() or '"' in text or "\\" in text:
            return False
        self._text.write(text)
        self.text_count += len(texts)
        return True

    def note_last(self, arrived_s: Seconds) -> None:
        self._last_s = arrived_s
        self._frame_misses = 0

    def result(self) -> StreamResult:
        """What the response amounts to, once its last byte was fed."""
        if self._rest[:5] == b"data:" and self._failure is None:
            self._take_line(self._rest_s, self._rest[5:], is_whole=False)
        self._rest = b""
        if self._failure is not None:
            return self._build(*self._failure)
        if self._finish_reason is None:
            return self._build(*self._unfinished())
        return self._build(Outcome.OK, "")

    def _unfinished(self) -> tuple[Outcome, str]:
        lead = self._lead.strip()
        if not lead:
            return Outcome.CUT, "an empty answer"
        if self._has_event or lead.startswith(STREAM_STARTS) or b"data:".startswith(lead):
            return Outcome.CUT, "the stream ended without a finish_reason"
        words = error_text(self._lead, limit=ERROR_TEXT_MAX // 2)
        return Outcome.MALFORMED, f"not an event stream: {words}"

    def _fail(self, outcome: Outcome, error: str) -> None:
        """The first failure is the cause of those after it."""
        if self._failure is None:
            self._failure = outcome, error[:ERROR_TEXT_MAX]

    def _take_line(self, arrived_s: Seconds, data: bytes, *, is_whole: bool) -> None:
        self._has_event = True
        if len(data) <= DONE_BYTES_MAX and data.strip() == b"[DONE]":
            return  # some servers send it twice
        payload = _payload(data)
        if payload is not None:
            if payload.get("error"):
                words = error_message(payload) or data[:ERROR_TEXT_MAX].decode("utf-8", "replace").strip()
                self._fail(Outcome.HTTP_ERROR, f"error in the stream: {words}")
                return
            if self._take(arrived_s, payload):
                if self._may_have_frame:
                    self._frame_misses += 1
                    self._set_frame(*_frame_of(data, payload))
                return
        if is_whole or payload is not None:  # else the end of the stream broke it off
            self._fail(Outcome.MALFORMED, f"not a valid chunk in the stream: {data[:240].strip()[:120]!r}")

    @property
    def _may_have_frame(self) -> bool:
        """Whether what follows may be like this chunk but for its text, and nobody counts alongside."""
        return (
            self._finish_s is None
            and self._frame_misses < FRAME_MISSES_MAX
            and not self._reported.counts_alongside
        )

    def _take(self, arrived_s: Seconds, payload: dict[str, object]) -> bool:
        """False where it is not a chunk of a completion; then nothing was taken."""
        choices = payload.get("choices") or []
        if not isinstance(choices, list):
            return False
        texts = [_text_of(choice) if isinstance(choice, dict) else None for choice in choices]
        if None in texts:
            return False
        self._reported.take(payload, text_count=sum(map(bool, texts)))
        for index, text in enumerate(texts):
            if text:
                self.text_count += 1
                if self._first_s is None:
                    self._first_s = arrived_s
                self._last_s = arrived_s
                self._text.write(text)
            reason = choices[index].get("finish_reason")
            if reason:
                self._finish_reason = reason[:REASON_MAX] if isinstance(reason, str) else "unreadable"
                self._finish_s = arrived_s
        return True

    def _set_frame(self, prefix: bytes, suffix: bytes) -> None:
        self._prefix, self.suffix = prefix, suffix
        # Where the text starts after a chunk's size, and what its size counts besides a piece before the suffix.
        self._start, self._rest_length = len(prefix) + 2, len(suffix) - 4
        self.later_max = LATER_MAX if b'"finish_reason"' in suffix else 1

    def _build(self, outcome: Outcome, error: str) -> StreamResult:
        text = self._text.getvalue()
        text_bytes = len(text.encode("utf-8", "surrogatepass"))
        believed = self._reported.believed(text_bytes=text_bytes, chunk_count=self.text_count)
        ended_by_itself = self._finish_reason == "stop" and self._first_s is not None
        return StreamResult(
            outcome=outcome,
            error=error,
            first_token_s=self._first_s,
            last_token_s=self._finish_s if ended_by_itself else self._last_s,
            prompt_tokens=believed.prompt_tokens,
            output_tokens=believed.output_tokens,
            finish_reason=self._finish_reason,
            text=text,
            drafted=believed.drafted,
            accepted=believed.accepted,
            steps=believed.steps,
            refused=believed.refused,
        )


def _plain(raw: bytes) -> str:
    """The text of a JSON string that stands for itself; '' where it needs JSON to be read."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() and '"' not in text and "\\" not in text else ""


def _frame_of(data: bytes, payload: dict[str, object]) -> tuple[bytes, bytes]:
    """What stands before and after the text of an HTTP chunk; empty where that cannot be told for sure.

    The chunks of a stream mostly differ in their text alone, and then need no JSON to be read.
    """
    choices = as_objects(payload.get("choices"))
    if len(choices) != 1 or choices[0].get("finish_reason") or payload.get("usage"):
        return b"", b""
    text = _text_of(choices[0])
    marked = _MARK.search(data) if text else None
    if marked is None or _plain(marked.group(1)) != text:
        return b"", b""
    prefix, suffix = data[: marked.start(1)], data[marked.end(1) :]
    try:
        other = orjson.loads(prefix + b"~" + suffix)
    except orjson.JSONDecodeError:
        return b"", b""
    # Only where the mark is the text, and nothing else, does the whole say the same with another text in it.
    if _text_of(other["choices"][0]) != "~":
        return b"", b""
    return b"data:" + prefix, suffix + b"\n\n\r\n"


def _payload(data: bytes) -> dict[str, object] | None:
    """A JSON object; None for anything else."""
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        # orjson is strict where engines written in Python are not: NaN, lone surrogates.
        try:
            payload = json.loads(data)
        except (ValueError, RecursionError):
            return None
    return payload if isinstance(payload, dict) else None


def _text_of(choice: Mapping[str, object]) -> str | None:
    """The text in one choice of a chunk; None where what stands in its place is no text."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text, thought = choice.get("text"), None
    else:
        text, thought = delta.get("content"), delta.get(THOUGHT_KEY)
        if thought is None:
            thought = delta.get(OTHER_THOUGHT_KEY)
    if text is None:
        text = ""
    if not isinstance(text, str) or not (thought is None or isinstance(thought, str)):
        return None
    whole = thought + text if thought else text
    return whole or _called(choice)


def _called(choice: Mapping[str, object]) -> str:
    """The names and arguments of tools that are called: tokens like any others."""
    calls = as_objects(as_object(choice.get("delta")).get("tool_calls"))
    functions = [as_object(call.get("function")) for call in calls]
    pieces = (as_text(function.get(key)) for function in functions for key in ("name", "arguments"))
    return "".join(piece for piece in pieces if piece)
