"""The bytes of one OpenAI-compatible answer to its text, calls, times and counts, streamed or whole. No I/O: arrival
times come with the bytes.

Tokens are counted by the server (usage or timings), never by chunks: under speculation one chunk may carry
several. The last token's time is the finish chunk's where the text ended by itself, because the end token
is counted but carries no text. Thoughts and calls of tools are output like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any, TypeAlias

import msgspec

from speclift.core.foreign_text import error_message, error_text
from speclift.core.json_reading import as_object, as_objects, as_text, as_whole
from speclift.core.records import AnswerChoice, AnswerRead, Outcome, ToolCall
from speclift.core.units import Seconds
from speclift.http.counts import NO_LIMITS, Limits, Reported

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
# More than any request of ours asks for.
CHOICES_MAX, CALLS_MAX = 128, 64
_MARK = re.compile(rb'"(?:content|text|reasoning|reasoning_content)": ?"([^"\\]+)"')
# Reads that are looked at together, where a chunk's end tells that it is not the last one.
LATER_MAX = 8
# Chunks in a row that did not look like the one before: then this stream's chunks differ in more than their text.
FRAME_MISSES_MAX = 4


# What stands there may be of any kind, and is looked at where it is wanted.
Whatever: TypeAlias = Any


class _Said(msgspec.Struct, gc=False):
    """A `delta` or a `message`."""

    content: str | None = None
    # Thoughts: vLLM (0.32) calls them reasoning, llama.cpp and SGLang reasoning_content, some servers send both alike.
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Whatever = None
    # OpenAI's older form of a call.
    function_call: Whatever = None


class _Choice(msgspec.Struct, gc=False):
    index: Whatever = 0
    delta: _Said | None = None
    message: _Said | None = None
    text: str | None = None
    finish_reason: Whatever = None
    logprobs: Whatever = None
    token_ids: Whatever = None
    prompt_token_ids: Whatever = None

    @property
    def texts(self) -> tuple[str, str]:
        """Thoughts, and what was said."""
        said = self.delta or self.message
        if said is None:
            return "", self.text or ""
        return said.reasoning or said.reasoning_content or "", said.content or said.refusal or self.text or ""

    @property
    def says_text_alone(self) -> bool:
        """Text or a thought, and nothing else that is to be kept."""
        if self.finish_reason or self.logprobs is not None or self.token_ids:
            return False
        thought, text = self.texts
        return bool(thought) != bool(text) and not self.calls

    @property
    def calls(self) -> list[Mapping[str, object]]:
        said = self.delta or self.message
        if said is None or not (said.tool_calls or said.function_call):
            return []
        older = [{"function": said.function_call}] if said.function_call else []
        return [*as_objects(said.tool_calls), *older]


class AnswerEvent(msgspec.Struct, gc=False):
    """One event of a stream, or a whole answer."""

    choices: list[_Choice] | None = None
    usage: Whatever = None
    timings: Whatever = None
    metrics: Whatever = None
    error: Whatever = None
    # llama.cpp's own /completion has its text outside of any choice.
    content: Whatever = None
    prompt_token_ids: Whatever = None

    @property
    def has_text(self) -> bool:
        """Text, thoughts or the call of a tool."""
        if not self.choices:
            return isinstance(self.content, str) and self.content != ""
        return any(any(choice.texts) or any(choice.calls) for choice in self.choices)

    @property
    def finish_reason(self) -> str | None:
        return next((word_of(each.finish_reason) for each in self.choices or () if each.finish_reason), None)


_DECODER = msgspec.json.Decoder(AnswerEvent)


def read_event(data: bytes) -> AnswerEvent | None:
    """None for what is no JSON object, or has something else where text or choices belong."""
    try:
        return _DECODER.decode(data)
    except (ValueError, RecursionError):
        pass
    # msgspec is strict where engines written in Python are not: NaN, lone surrogates.
    try:
        return msgspec.convert(json.loads(data), AnswerEvent)
    except (ValueError, RecursionError):
        return None


def word_of(finish_reason: object) -> str:
    return finish_reason[:REASON_MAX] if isinstance(finish_reason, str) else "unreadable"


class ChoiceReader:
    """One choice of an answer, while it comes."""

    __slots__ = ("_keeps_tokens", "calls", "finish_reason", "logprobs", "text", "thoughts", "token_ids")

    def __init__(self, *, keeps_tokens: bool) -> None:
        self.text, self.thoughts = StringIO(), StringIO()
        # Name and arguments of each.
        self.calls: dict[int, tuple[StringIO, StringIO]] = {}
        self.finish_reason: str | None = None
        # As they came, where they are wanted: whoever asked for them reads them.
        self._keeps_tokens = keeps_tokens
        self.logprobs: list[Mapping[str, object]] = []
        self.token_ids: list[object] | None = None

    def take(self, choice: _Choice) -> bool:
        """Whether it has any text."""
        thought, text = choice.texts
        if thought:
            self.thoughts.write(thought)
        if text:
            self.text.write(text)
        has_text = bool(thought or text)
        for place, call in enumerate(choice.calls):
            has_text = self._take_call(call, place) or has_text
        if self._keeps_tokens:
            self._keep_tokens(choice)
        if choice.finish_reason and self.finish_reason is None:
            self.finish_reason = word_of(choice.finish_reason)
        return has_text

    def _keep_tokens(self, choice: _Choice) -> None:
        if isinstance(choice.logprobs, dict):
            self.logprobs.append(choice.logprobs)
        if isinstance(choice.token_ids, list):
            self.token_ids = [] if self.token_ids is None else self.token_ids
            self.token_ids += choice.token_ids

    def _take_call(self, call: Mapping[str, object], place: int) -> bool:
        index = as_whole(call.get("index"))
        if len(self.calls) >= CALLS_MAX:
            raise ValueError(f"more than {CALLS_MAX} tool calls in one answer")
        function = as_object(call.get("function"))
        # Some servers send arguments as an object: what a caller gets is its JSON.
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        name, more = as_text(function.get("name")) or "", as_text(arguments) or ""
        parts = self.calls.setdefault(place if index is None else index, (StringIO(), StringIO()))
        parts[0].write(name)
        parts[1].write(more)
        return bool(name or more)

    @property
    def choice(self) -> AnswerChoice:
        return AnswerChoice(
            text=self.text.getvalue(),
            finish_reason=self.finish_reason,
            thoughts=self.thoughts.getvalue(),
            calls=tuple(
                ToolCall(name=name.getvalue(), arguments=arguments.getvalue())
                for _, (name, arguments) in sorted(self.calls.items())
            ),
        )


def read_stream(reads: Iterable[tuple[Seconds, bytes]], *, limits: Limits = NO_LIMITS) -> AnswerRead:
    """`reads` are network reads in order, each with the moment it arrived."""
    reader = AnswerReader(limits)
    for arrived_s, data in reads:
        reader.feed(arrived_s, data)
    return reader.result()


class AnswerReader:
    """Accumulates one answer."""

    __slots__ = (
        *("_ending_bytes", "_finish_s", "_first_s", "_frame_misses", "_framed_text", "_has_event", "_last_s"),
        *("_keeps_tokens", "_lead", "_prefix", "_rest", "_rest_length", "_rest_s", "_start"),
        *("choices", "chunk_count", "failure", "is_over", "later_max", "prompt_ids", "reported"),
        *("status_told", "suffix", "text_count"),
    )

    def __init__(self, limits: Limits = NO_LIMITS, *, keeps_tokens: bool = False) -> None:
        """`keeps_tokens`: their ids and log-probabilities, too, which take far more room than the text."""
        self._keeps_tokens = keeps_tokens
        self.reported = Reported(limits)
        # By index.
        self.choices: dict[int, ChoiceReader] = {}
        self.prompt_ids: object = None
        self.failure: tuple[Outcome, str] | None = None
        # A stream's first event may refuse with a status of its own.
        self.status_told: int | None = None
        # [DONE] came: some servers then leave the connection open.
        self.is_over = False
        # Events with choices, and chunks with text.
        self.chunk_count = self.text_count = 0
        self._first_s: Seconds | None = None
        self._last_s: Seconds | None = None
        self._finish_s: Seconds | None = None
        self._ending_bytes = 0
        self._rest = b""
        self._rest_s: Seconds = 0.0
        self._has_event = False
        self._lead = b""
        # What surrounds the text in this stream's chunks, once a chunk has shown it.
        self._frame_misses = 0
        self._framed_text = StringIO()
        self._set_frame(b"", b"")

    def feed(self, arrived_s: Seconds, data: bytes) -> None:
        """More of a stream. A line belongs to the read that completed it."""
        if not self._has_event:
            self._lead += data[: LEAD_BYTES_MAX - len(self._lead)]
        if self._rest:
            data = self._rest + data
        *lines, self._rest = data.split(b"\n")
        self._rest_s = arrived_s
        if len(self._rest) > LINE_BYTES_MAX:
            self._fail(Outcome.MALFORMED, f"a line of more than {LINE_BYTES_MAX >> 20} MiB in the stream")
        if self.failure is not None:
            self._rest = b""  # nothing more is read of it
        for line in lines:
            # Comments keep the connection alive; event and id lines carry nothing here.
            if line[:5] == b"data:" and self.failure is None:
                self._take_line(arrived_s, line[5:], is_whole=True)
            if self._finish_s is not None:
                self._ending_bytes += len(line) + 1

    def take_whole(self, body: bytes) -> None:
        """An answer that was not streamed."""
        event = read_event(body)
        if event is not None and event.error:
            self._refused(event, body, "answer")
        elif event is not None and event.choices:
            self._take(None, event)
        else:
            words = error_text(body, limit=ERROR_TEXT_MAX // 4) or "nothing"
            self._fail(Outcome.MALFORMED, f"no choices in the answer, which says: {words}")

    @property
    def text(self) -> str:
        return "".join(reader.choice.whole for _, reader in sorted(self.choices.items()))

    @property
    def finish_reason(self) -> str | None:
        return next((each.finish_reason for each in self.choices.values() if each.finish_reason), None)

    @property
    def ending(self) -> tuple[int, Seconds] | None:
        """Bytes from the event with the finish reason on, and how long they took to come; None before it."""
        return None if self._finish_s is None else (self._ending_bytes, self._rest_s - self._finish_s)

    @property
    def has_frame(self) -> bool:
        """Whether `take_framed` may be tried: a chunk has shown what surrounds the text, and no line is open."""
        return bool(self._prefix) and not self._rest and self.failure is None

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
        self._framed_text.write(text)
        self.text_count += len(texts)
        return True

    def note_last(self, arrived_s: Seconds) -> None:
        self._last_s = arrived_s
        self._frame_misses = 0

    def result(self) -> AnswerRead:
        """What the answer amounts to, once its last byte was fed."""
        self.end()
        text = self.text
        finish_reason = self.finish_reason
        ended_by_itself = finish_reason == "stop" and self._first_s is not None
        outcome, error = self.failure or (Outcome.OK, "")
        answer = AnswerRead(
            outcome=outcome,
            error=error,
            first_token_s=self._first_s,
            last_token_s=self._finish_s if ended_by_itself else self._last_s,
            finish_reason=finish_reason,
            text=text,
        )
        text_bytes = len(text.encode("utf-8", "surrogatepass"))
        return self.reported.believed(answer, body_bytes=text_bytes, chunk_count=self.text_count)

    def end(self) -> None:
        """Nothing follows: a stream without a finish was cut, and what is no stream is told apart from it."""
        if self._rest[:5] == b"data:" and self.failure is None:
            self._take_line(self._rest_s, self._rest[5:], is_whole=False)
        self._rest = b""
        if (
            self.failure is not None
            or self._finish_s is not None
            or (self.chunk_count and not self._has_event)
        ):
            return
        lead = self._lead.strip()
        if not lead:
            self._fail(Outcome.CUT, "an empty answer")
        elif self._has_event or lead.startswith(STREAM_STARTS) or b"data:".startswith(lead):
            self._fail(Outcome.CUT, "the stream ended without a finish_reason")
        else:
            words = error_text(self._lead, limit=ERROR_TEXT_MAX // 2)
            self._fail(Outcome.MALFORMED, f"not an event stream: {words}")

    def _fail(self, outcome: Outcome, error: str) -> None:
        """The first failure is the cause of those after it."""
        if self.failure is None:
            self.failure = outcome, error[:ERROR_TEXT_MAX]

    def _refused(self, event: AnswerEvent, data: bytes, where: str) -> None:
        code = as_whole(as_object(event.error).get("code"))
        # vLLM has said "200 OK" to a stream before it looks at its settings, and refuses in the first event (0.32).
        if code is not None and 400 <= code < 600 and not self.chunk_count:
            self.status_told = code
        words = error_message({"error": event.error})
        words = words or data[:ERROR_TEXT_MAX].decode("utf-8", "replace").strip()
        self._fail(Outcome.HTTP_ERROR, f"error in the {where}: {words}")

    def _take_line(self, arrived_s: Seconds, data: bytes, *, is_whole: bool) -> None:
        self._has_event = True
        if len(data) <= DONE_BYTES_MAX and data.strip() in (b"[DONE]", b""):
            self.is_over = self.is_over or (bool(self.choices) and data.strip() != b"")
            return  # some servers send it twice
        event = read_event(data)
        if event is None:
            if is_whole:  # else the end of the stream broke it off
                self._fail(
                    Outcome.MALFORMED, f"not a valid chunk in the stream: {data[:240].strip()[:120]!r}"
                )
        elif event.error:
            self._refused(event, data, "stream")
        else:
            self._take(arrived_s, event)
            if (
                self._finish_s is None
                and self._frame_misses < FRAME_MISSES_MAX
                and self.reported.drafts is None
                and self.failure is None
            ):
                self._frame_misses += 1
                self._look_for_frame(data, event)

    def _take(self, arrived_s: Seconds | None, event: AnswerEvent) -> None:
        """One event of a stream; None is the time of a whole answer, whose tokens have none."""
        text_count = 0
        for choice in event.choices or ():
            index = as_whole(choice.index) or 0
            reader = self.choices.get(index)
            if reader is None:
                if len(self.choices) >= CHOICES_MAX:
                    self._fail(Outcome.MALFORMED, f"more than {CHOICES_MAX} choices in one answer")
                    return
                reader = self.choices[index] = ChoiceReader(keeps_tokens=self._keeps_tokens)
            try:
                has_text = reader.take(choice)
            except ValueError as error:
                self._fail(Outcome.MALFORMED, str(error))
                return
            if has_text:
                text_count += 1
                if self._first_s is None:
                    self._first_s = arrived_s
                self._last_s = arrived_s
            if choice.finish_reason:
                self._finish_s = arrived_s
            self.prompt_ids = self.prompt_ids or event.prompt_token_ids or choice.prompt_token_ids
        self.chunk_count += bool(event.choices)
        self.text_count += text_count
        self.reported.take(event.usage, event.timings, event.metrics, text_count=text_count)

    def _look_for_frame(self, data: bytes, event: AnswerEvent) -> None:
        prefix, suffix, is_thought = _frame_of(data, event)
        self._set_frame(prefix, suffix)
        if prefix and event.choices:
            reader = self.choices[as_whole(event.choices[0].index) or 0]
            self._framed_text = reader.thoughts if is_thought else reader.text

    def _set_frame(self, prefix: bytes, suffix: bytes) -> None:
        self._prefix, self.suffix = prefix, suffix
        # Where the text starts after a chunk's size, and what its size counts besides a piece before the suffix.
        self._start, self._rest_length = len(prefix) + 2, len(suffix) - 4
        self.later_max = LATER_MAX if b'"finish_reason"' in suffix else 1


def _frame_of(data: bytes, event: AnswerEvent) -> tuple[bytes, bytes, bool]:
    """What stands before and after the text of an HTTP chunk, and whether that is a thought; empty where that cannot be
    told for sure.

    The chunks of a stream mostly differ in their text alone, and then need no JSON to be read.
    """
    none = b"", b"", False
    choices = event.choices or ()
    if len(choices) != 1 or event.usage or not choices[0].says_text_alone:
        return none
    thought, text = choices[0].texts
    marked = _MARK.search(data)
    if marked is None or _plain(marked.group(1)) != (thought or text):
        return none
    prefix, suffix = data[: marked.start(1)], data[marked.end(1) :]
    other = read_event(prefix + b"~" + suffix)
    # Only where the mark is the text, and nothing else, does the whole say the same with another text in it.
    if other is None or not other.choices or other.choices[0].texts != (("~", "") if thought else ("", "~")):
        return none
    return b"data:" + prefix, suffix + b"\n\n\r\n", bool(thought)


def _plain(raw: bytes) -> str:
    """The text of a JSON string that stands for itself; '' where it needs JSON to be read."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() and '"' not in text and "\\" not in text else ""
