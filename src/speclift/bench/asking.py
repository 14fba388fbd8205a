"""One question of the lossless gate to one server: the request as an application would send it, the answer as values.

Speed is measured elsewhere; here a whole body is read at once and only what was said counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from speclift.arithmetic.response import count, draft_counts
from speclift.core.address import joined
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import parse_json
from speclift.core.units import Seconds
from speclift.engines.http import ANSWER_BYTES_MAX, fetched
from speclift.lossless.answers import Alternative, Answer, Said
from speclift.lossless.questions import Question

ANSWER_LIMIT_S = 300.0
ERROR_CHARACTERS = 300
# A whole number beyond this is no log-probability, and may be none that a float can hold.
WHOLE_MAX = 10**6
# Reasoning models put their thoughts under another key; they are text all the same.
TEXT_KEYS = ("reasoning_content", "reasoning", "content")


async def ask(endpoint: Endpoint, question: Question, *, limit_s: Seconds = ANSWER_LIMIT_S) -> Answer:
    """An answer that could not be had is one with `error` set: the gate compares those too."""
    path = "/v1/chat/completions" if question.request.messages else "/v1/completions"
    data = json.dumps(body(endpoint, question)).encode()
    try:
        text = await fetched(
            joined(endpoint.base_url, path),
            data=data,
            api_key=endpoint.api_key,
            limit_s=limit_s,
            bytes_max=ANSWER_BYTES_MAX,
        )
        return read_stream(question, text) if question.stream else read_whole(question, parse_json(text))
    except EngineError as error:
        return failed(question, str(error).partition(" answered ")[2] or str(error))
    except ValueError as error:
        return failed(question, f"not JSON: {error}")


async def ask_all(endpoint: Endpoint, questions: Sequence[Question], *, at_once: int) -> list[Answer]:
    """In order of the questions, `at_once` of them in flight."""
    gate = asyncio.Semaphore(at_once)

    async def one(question: Question) -> Answer:
        async with gate:
            return await ask(endpoint, question)

    return list(await asyncio.gather(*(one(question) for question in questions)))


def body(endpoint: Endpoint, question: Question) -> dict[str, Any]:
    request = question.request
    said: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": request.max_tokens,
        "temperature": question.temperature,
        "seed": question.seed,
        "stream": question.stream,
        **dict(endpoint.extra_body),
    }
    if question.stream:
        said["stream_options"] = {"include_usage": True}
    if request.messages:
        said["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    else:
        said["prompt"] = request.prompt
    if request.top_p is not None and question.temperature > 0:
        said["top_p"] = request.top_p
    if question.listed and request.messages:
        said |= {"logprobs": True, "top_logprobs": question.listed}
    elif question.listed:
        said["logprobs"] = question.listed
    if question.wants_ids:
        said["return_token_ids"] = True
    return said | dict(question.settings)


def failed(question: Question, error: str) -> Answer:
    shown = error[:ERROR_CHARACTERS] or "no answer"
    return Answer(case=question.case, text="", finish_reason=None, tokens=None, error=shown)


def read_whole(question: Question, payload: Any) -> Answer:
    choices = payload.get("choices") if isinstance(payload, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return failed(question, f"no choices in the answer, which has: {_keys(payload)}")
    choice = choices[0]
    usage = payload.get("usage")
    counts = draft_counts(payload)
    said = tuple(_said(choice.get("logprobs")))
    return Answer(
        case=question.case,
        text=_text(choice),
        finish_reason=_word(choice.get("finish_reason")),
        tokens=count(usage.get("completion_tokens")) if isinstance(usage, Mapping) else None,
        said=said,
        ids=_ids(choice),
        prompt_ids=_whole_numbers(payload.get("prompt_token_ids") or choice.get("prompt_token_ids")),
        drafted=counts.drafted if counts else None,
        accepted=counts.accepted if counts else None,
    )


def read_stream(question: Question, text: str) -> Answer:
    """The same values from server-sent events."""
    parts: list[str] = []
    finish: str | None = None
    answer = Answer(case=question.case, text="", finish_reason=None, tokens=None)
    for line in text.splitlines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        payload = parse_json(data)
        if not isinstance(payload, Mapping) or payload.get("error"):
            return failed(question, f"in the stream: {data[:200]}")
        counts = draft_counts(payload)
        if counts is not None:
            answer = replace(answer, drafted=counts.drafted, accepted=counts.accepted)
        usage = payload.get("usage")
        if isinstance(usage, Mapping):
            answer = replace(answer, tokens=count(usage.get("completion_tokens")))
        for choice in _objects(payload.get("choices")):
            parts.append(_text(choice))
            finish = _word(choice.get("finish_reason")) or finish
    if finish is None:
        return failed(question, "the stream ended without a finish reason")
    return replace(answer, text="".join(parts), finish_reason=finish)


def _text(choice: Mapping[str, Any]) -> str:
    holder = choice.get("message") or choice.get("delta")
    if isinstance(holder, Mapping):
        return "".join(str(holder[key]) for key in TEXT_KEYS if isinstance(holder.get(key), str))
    return str(choice.get("text") or "")


def _ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    """vLLM lists them when asked (0.32), llama.cpp beside its log-probabilities (b11549)."""
    if isinstance(choice.get("token_ids"), list):
        return _whole_numbers(choice["token_ids"])
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return _whole_numbers([entry.get("id") for entry in _objects(content)])


def _said(logprobs: Any) -> list[Said]:
    """OpenAI's two forms; a token without alternatives is one the server gave no probability for."""
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(logprobs.get("content"), list):
        entries = [entry for entry in logprobs["content"] if isinstance(entry, Mapping)]
        return [
            Said(
                data=_bytes(entry),
                logprob=_number(entry.get("logprob")),
                choices=tuple(
                    Alternative(data=_bytes(other), logprob=_number(other.get("logprob")))
                    for other in _objects(entry.get("top_logprobs"))
                ),
            )
            for entry in entries
        ]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    tops = logprobs.get("top_logprobs")
    if not (isinstance(tokens, list) and isinstance(values, list) and isinstance(tops, list)):
        return []
    return [
        Said(
            data=_utf8(token),
            logprob=_number(value),
            choices=tuple(
                Alternative(data=_utf8(other), logprob=_number(each))
                for other, each in (top.items() if isinstance(top, Mapping) else ())
            ),
        )
        for token, value, top in zip(tokens, values, tops, strict=False)
    ]


def _bytes(entry: Mapping[str, Any]) -> bytes:
    data = entry.get("bytes")
    if isinstance(data, list) and all(isinstance(value, int) and 0 <= value < 256 for value in data):
        return bytes(data)
    return _utf8(entry.get("token") or "")


# What stands where something else should is left out, as if the server had not said it.


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """All of them or none: token ids with gaps are another text."""
    entries = value if isinstance(value, list) else []
    return tuple(entries) if all(type(entry) is int for entry in entries) else ()


def _number(value: Any) -> float:
    is_whole = type(value) is int and abs(value) <= WHOLE_MAX
    return float(value) if is_whole or isinstance(value, float) else 0.0


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _utf8(token: Any) -> bytes:
    return str(token).encode("utf-8", "surrogatepass") if isinstance(token, str) else b""


def _keys(payload: Any) -> str:
    return ", ".join(map(str, payload))[:120] if isinstance(payload, Mapping) else type(payload).__name__
