"""One request of a soak to one server, read as it comes: what was said, choice by choice, until the end or until the
caller leaves.

Bounded in bytes, choices and time: a server under fire may send anything, and for ever.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass

from speclift.core.address import without_secrets
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import READ_BYTES_MAX, error_text, parse_json
from speclift.core.json_reading import as_list, as_object, need_whole
from speclift.core.records import AnswerChoice, Outcome
from speclift.core.units import Seconds, Tokens
from speclift.http.answer import AnswerReader
from speclift.http.client import pieces, post_to, sent
from speclift.http.counts import count
from speclift.http.message import HttpError, ResponseReader, target_of
from speclift.lossless.soak.values import SoakRequest

# Some hundred tokens in chunks of 300 bytes each, with log-probabilities ten times that.
ANSWER_BYTES_MAX = 8 << 20
ERROR_CHARACTERS = 300
# Digits that are told apart from any number by its tokens, and a number that shows whether they are.
FORBIDDEN, YEAR = "379", "3797"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one request got when it ended."""

    choices: tuple[AnswerChoice, ...]
    tokens: Tokens | None
    thinking_tokens: Tokens | None
    drafted: Tokens | None
    accepted: Tokens | None
    error: str
    status: int | None
    left: bool = False
    is_hung: bool = False


async def hear(
    endpoint: Endpoint, request: SoakRequest, *, limit_s: Seconds, leaves_after_s: Seconds = math.inf
) -> Heard:
    """Never raises for what a server does; what went wrong is `error`, in its words where it has any. `leaves_after_s`:
    then this caller goes, whatever the request says of itself."""
    reader, response = AnswerReader(), ResponseReader()
    patience_s = min(leaves_after_s, math.inf if request.leaves_after_s is None else request.leaves_after_s)
    error, left, is_hung = "", False, False
    try:
        async with asyncio.timeout(min(limit_s, patience_s)):
            left = await _hear(endpoint, request, reader, response)
        # An answer without a reason for its end is one, and a fault of its own.
        is_cut = bool(reader.choices) and reader.failure is not None and reader.failure[0] is Outcome.CUT
        error = "" if left or reader.failure is None or is_cut else reader.failure[1]
    except TimeoutError:
        left, is_hung = patience_s <= limit_s, patience_s > limit_s
        error = f"no end within {limit_s:g} s" if is_hung else ""
    except EngineError as refused:
        error = str(refused)
    except (OSError, HttpError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return _heard(reader, response, error, left=left, is_hung=is_hung)


def _heard(reader: AnswerReader, response: ResponseReader, error: str, *, left: bool, is_hung: bool) -> Heard:
    if reader.status_told is not None:
        error = f"{reader.status_told}: {error.partition(': ')[2]}"
    usage, drafts = reader.reported.usage, reader.reported.drafts
    return Heard(
        choices=tuple(choice.choice for _, choice in sorted(reader.choices.items())),
        tokens=count(usage.get("completion_tokens")),
        thinking_tokens=count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        drafted=drafts.drafted if drafts else None,
        accepted=drafts.accepted if drafts else None,
        error=without_secrets(error)[:ERROR_CHARACTERS],
        status=reader.status_told or response.status or None,
        left=left,
        is_hung=is_hung,
    )


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


async def _hear(
    endpoint: Endpoint, request: SoakRequest, reader: AnswerReader, response: ResponseReader
) -> bool:
    """Whether this caller left before the end."""
    target = target_of(endpoint.base_url, api_key=endpoint.api_key)
    body = as_object(parse_json(request.body))
    is_streamed = body.get("stream") is not False
    said: dict[str, object] = {"model": request.model or endpoint.model, **body, "stream": is_streamed}
    if is_streamed:
        said.setdefault("stream_options", {"include_usage": True})
    async with sent(target, target.request(request.path, json.dumps(said).encode())) as stream:
        parts = _bounded(pieces(stream, response))
        if not is_streamed:
            whole = b"".join([part async for part in parts])
            _require_success(response, whole)
            reader.take_whole(whole)
            return False
        refusal = b""
        async for part in parts:
            if response.status != 200:
                refusal += part[: READ_BYTES_MAX - len(refusal)]
                continue
            # Event by event: this caller may leave after any of them.
            for line in part.splitlines(keepends=True):
                reader.feed(0.0, line)
                if request.leaves_after_chunks is not None and (
                    reader.chunk_count >= request.leaves_after_chunks
                ):
                    return True
                if reader.is_over or reader.failure is not None:
                    return False
        _require_success(response, refusal)
        reader.end()
        return False


async def _bounded(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise EngineError(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
        yield part


def _require_success(response: ResponseReader, body: bytes) -> None:
    if response.status != 200:
        raise EngineError(f"{response.status}: {error_text(body, limit=ERROR_CHARACTERS)}")
