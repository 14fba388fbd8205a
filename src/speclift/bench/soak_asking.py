"""One request of a soak to one server, read as it comes: what was said, choice by choice, until the end or until the
caller leaves.

Bounded in bytes, choices and time: a server under fire may send anything, and for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from speclift.arithmetic.response import count, draft_counts
from speclift.client.wire import ResponseReader, Target, WireError, target_of
from speclift.core.address import without_secrets
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import READ_BYTES_MAX, error_message, error_text, parse_json
from speclift.core.json_reading import as_list, as_object, as_objects, as_text, as_whole, need_whole
from speclift.core.units import Seconds, Tokens
from speclift.engines.http import post_to
from speclift.lossless.soak.values import SoakChoice, SoakRequest, ToolCall

READ_BYTES = 1 << 16
# Some hundred tokens in chunks of 300 bytes each, with log-probabilities ten times that.
ANSWER_BYTES_MAX = 8 << 20
LINE_BYTES_MAX = 1 << 20
# More than any request of ours asks for.
CHOICES_MAX = 16
CALLS_MAX = 64
ERROR_CHARACTERS = 300
# Digits that are told apart from any number by its tokens, and a number that shows whether they are.
FORBIDDEN, YEAR = "379", "3797"
# vLLM (0.32) calls thoughts reasoning, llama.cpp and SGLang reasoning_content; some servers send both, alike.
THOUGHT_KEYS = ("reasoning_content", "reasoning")


class AnswerRefused(Exception):
    """What came is no answer, in words."""


@dataclass(slots=True)
class CallParts:
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ChoiceParts:
    """A choice while it comes."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: dict[int, CallParts] = field(default_factory=dict)
    finish_reason: str | None = None

    def take(self, choice: Mapping[str, object]) -> None:
        holder = choice.get("delta") or choice.get("message")
        if isinstance(holder, dict):
            self.texts.append(as_text(holder.get("content")) or "")
            self.thoughts.append(
                next((said for key in THOUGHT_KEYS if (said := as_text(holder.get(key)))), "")
            )
            for place, call in enumerate(as_objects(holder.get("tool_calls"))):
                self._take_call(call, place)
        else:
            self.texts.append(as_text(choice.get("text")) or "")
        reason = as_text(choice.get("finish_reason"))
        self.finish_reason = self.finish_reason or (reason[:ERROR_CHARACTERS] if reason else None)

    def _take_call(self, call: Mapping[str, object], place: int) -> None:
        index = as_whole(call.get("index"))
        if len(self.calls) >= CALLS_MAX:
            raise AnswerRefused(f"more than {CALLS_MAX} tool calls in one answer")
        parts = self.calls.setdefault(place if index is None else index, CallParts())
        function = as_object(call.get("function"))
        parts.name += as_text(function.get("name")) or ""
        # Some servers send arguments as an object: what a caller gets is its JSON.
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        parts.arguments.append(as_text(arguments) or "")

    @property
    def choice(self) -> SoakChoice:
        return SoakChoice(
            text="".join(self.texts),
            finish_reason=self.finish_reason,
            thoughts="".join(self.thoughts),
            calls=tuple(
                ToolCall(name=call.name, arguments="".join(call.arguments))
                for _, call in sorted(self.calls.items())
            ),
        )


@dataclass(slots=True)
class Heard:
    """What one request got, while it comes and when it ended."""

    parts: dict[int, ChoiceParts] = field(default_factory=dict)
    chunks: int = 0
    tokens: Tokens | None = None
    thinking_tokens: Tokens | None = None
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    error: str = ""
    status: int | None = None
    left: bool = False
    is_hung: bool = False

    @property
    def choices(self) -> tuple[SoakChoice, ...]:
        return tuple(parts.choice for _, parts in sorted(self.parts.items()))

    def take(self, payload: Mapping[str, object]) -> None:
        """One event of a stream, or a whole answer."""
        if payload.get("error"):
            words = error_message(payload) or "without words"
            self.status = None if self.chunks else _status_told(payload)
            raise AnswerRefused(f"{self.status or 'error in the stream'}: {words}")
        counts = draft_counts(payload)
        if counts is not None:
            self.drafted, self.accepted = counts.drafted, counts.accepted
        usage = as_object(payload.get("usage"))
        if usage:
            self.tokens = count(usage.get("completion_tokens"))
            details = as_object(usage.get("completion_tokens_details"))
            self.thinking_tokens = count(details.get("reasoning_tokens"))
        choices = as_objects(payload.get("choices"))
        for choice in choices:
            index = as_whole(choice.get("index")) or 0
            if index not in self.parts and len(self.parts) >= CHOICES_MAX:
                raise AnswerRefused(f"more than {CHOICES_MAX} choices in one answer")
            self.parts.setdefault(index, ChoiceParts()).take(choice)
        self.chunks += bool(choices)


def _status_told(payload: Mapping[str, object]) -> int | None:
    """vLLM has said "200 OK" to a stream before it looks at its settings, and refuses in the first event (0.32)."""
    code = as_whole(as_object(payload.get("error")).get("code"))
    return code if code is not None and 400 <= code < 600 else None


async def hear(
    endpoint: Endpoint, request: SoakRequest, *, limit_s: Seconds, leaves_after_s: Seconds = math.inf
) -> Heard:
    """Never raises for what a server does; what went wrong is `error`, in its words where it has any. `leaves_after_s`:
    then this caller goes, whatever the request says of itself."""
    heard = Heard()
    patience_s = min(leaves_after_s, math.inf if request.leaves_after_s is None else request.leaves_after_s)
    try:
        async with asyncio.timeout(min(limit_s, patience_s)):
            await _hear(endpoint, request, heard)
    except TimeoutError:
        if patience_s <= limit_s:
            heard.left = True
        else:
            heard.error, heard.is_hung = f"no end within {limit_s:g} s", True
    except AnswerRefused as refusal:
        heard.error = str(refusal)
    except (OSError, WireError, ValueError) as error:
        heard.error = f"{type(error).__name__}: {error}"
    heard.error = without_secrets(heard.error)[:ERROR_CHARACTERS]
    return heard


async def digit_tokens(endpoint: Endpoint) -> tuple[tuple[int, str], ...]:
    """Some digits as tokens of this server, where each is one and numbers have no others: forbidden, such a digit can
    stand in no answer. None where the server does not tell its tokens."""
    try:
        year = await _tokens(endpoint, YEAR)
        digits = [await _tokens(endpoint, digit) for digit in FORBIDDEN]
    except (EngineError, ValueError):
        return ()
    if len(year) != len(YEAR) or any(len(each) != 1 for each in digits):
        return ()
    return tuple((ids[0], digit) for ids, digit in zip(digits, FORBIDDEN, strict=True))


async def _tokens(endpoint: Endpoint, text: str) -> list[int]:
    """llama.cpp reads `content` (b11549), vLLM `prompt` (0.32); neither minds what is the other's."""
    body = {"model": endpoint.model, "content": text, "prompt": text, "add_special_tokens": False}
    answer = await post_to(endpoint, "/tokenize", body)
    return [need_whole(entry) for entry in as_list(answer.get("tokens"))]


async def _hear(endpoint: Endpoint, request: SoakRequest, heard: Heard) -> None:
    target = target_of(endpoint.base_url, api_key=endpoint.api_key)
    body = as_object(parse_json(request.body))
    is_streamed = body.get("stream") is not False
    said: dict[str, object] = {"model": request.model or endpoint.model, **body, "stream": is_streamed}
    if is_streamed:
        said.setdefault("stream_options", {"include_usage": True})
    response = ResponseReader()
    async with _sent(target, target.request(request.path, json.dumps(said).encode())) as reader:
        pieces = _bodies(reader, response)
        try:
            if is_streamed:
                await _take_events(pieces, response, request, heard)
            else:
                await _take_whole(pieces, response, heard)
        finally:
            heard.status = heard.status or response.status or None


@functools.cache
def _tls() -> ssl.SSLContext:
    """Reading the machine's certificates takes longer than many an answer."""
    return ssl.create_default_context()


@contextlib.asynccontextmanager
async def _sent(target: Target, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """The connection is closed whatever happens: that is how a server learns that its caller left."""
    address = target.address
    tls = _tls() if address.is_tls else None
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        writer.write(data)
        await writer.drain()
        yield reader
    finally:
        writer.transport.abort()


async def _bodies(reader: asyncio.StreamReader, response: ResponseReader) -> AsyncIterator[bytes]:
    """Pieces of the body as they come."""
    size = 0
    while not response.is_done:
        data = await reader.read(READ_BYTES)
        if not data:
            if not response.end():
                raise AnswerRefused(
                    "the connection ended in mid-answer" if response.has_begun else "no answer"
                )
            return
        size += len(data)
        if size > ANSWER_BYTES_MAX:
            raise AnswerRefused(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
        yield response.feed(data)


async def _take_events(
    pieces: AsyncIterator[bytes], response: ResponseReader, request: SoakRequest, heard: Heard
) -> None:
    rest, lead = b"", b""
    async for piece in pieces:
        if response.status != 200 or not heard.chunks:
            lead += piece[: READ_BYTES_MAX - len(lead)]
        if response.status != 200:
            continue
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise AnswerRefused(f"a line of more than {LINE_BYTES_MAX >> 20} MiB in the stream")
        for line in lines:
            if line.startswith(b"data:") and _take_event(line[5:].strip(), heard):
                return
            if request.leaves_after_chunks is not None and heard.chunks >= request.leaves_after_chunks:
                heard.left = True
                return
    if rest.startswith(b"data:"):
        _take_event(rest[5:].strip(), heard)
    _require_success(response, lead)
    if not heard.parts:
        raise AnswerRefused(f"not an event stream: {error_text(lead, limit=ERROR_CHARACTERS // 2)}")


def _take_event(data: bytes, heard: Heard) -> bool:
    """Whether it says that nothing follows: some servers then leave the connection open."""
    if data == b"[DONE]" and heard.parts:
        return True
    if data == b"[DONE]" or not data:
        return False
    try:
        payload = parse_json(data)
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise AnswerRefused(f"not a valid chunk in the stream: {data[:120].decode('utf-8', 'replace')!r}")
    heard.take(payload)
    return False


async def _take_whole(pieces: AsyncIterator[bytes], response: ResponseReader, heard: Heard) -> None:
    body = b"".join([piece async for piece in pieces])
    _require_success(response, body)
    payload = parse_json(body)
    if not isinstance(payload, dict):
        raise AnswerRefused(f"not a JSON object: {body[:120].decode('utf-8', 'replace')!r}")
    heard.take(payload)
    if not heard.parts:
        raise AnswerRefused("no choices in the answer")


def _require_success(response: ResponseReader, body: bytes) -> None:
    if response.status != 200:
        raise AnswerRefused(f"{response.status}: {error_text(body, limit=ERROR_CHARACTERS)}")
