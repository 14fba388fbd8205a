"""One question of the lossless gate to one server: the request as an application would send it, the answer as values.

Speed is measured elsewhere; here a whole body is read at once and only what was said counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from speclift.arithmetic.response import count, draft_counts
from speclift.core.address import joined
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import as_list, as_object, as_objects, as_text, as_whole
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


def body(endpoint: Endpoint, question: Question) -> dict[str, object]:
    request = question.request
    said: dict[str, object] = {
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


def read_whole(question: Question, answer: object) -> Answer:
    payload = as_object(answer)
    choice = next(iter(as_list(payload.get("choices"))), None)
    if not isinstance(choice, dict):
        return failed(question, f"no choices in the answer, which has: {_keys(answer)}")
    counts = draft_counts(payload)
    said = tuple(_said(as_object(choice.get("logprobs"))))
    return Answer(
        case=question.case,
        text=_text(choice),
        finish_reason=as_text(choice.get("finish_reason")) or None,
        tokens=count(as_object(payload.get("usage")).get("completion_tokens")),
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
        if not isinstance(payload, dict) or payload.get("error"):
            return failed(question, f"error in the stream: {data[:200]}")
        counts = draft_counts(payload)
        if counts is not None:
            answer = replace(answer, drafted=counts.drafted, accepted=counts.accepted)
        usage = payload.get("usage")
        if isinstance(usage, dict):
            answer = replace(answer, tokens=count(usage.get("completion_tokens")))
        for choice in as_objects(payload.get("choices")):
            parts.append(_text(choice))
            finish = as_text(choice.get("finish_reason")) or finish
    if finish is None:
        return failed(question, "the stream ended without a finish_reason")
    return replace(answer, text="".join(parts), finish_reason=finish)


def _text(choice: Mapping[str, object]) -> str:
    holder = choice.get("message") or choice.get("delta")
    if isinstance(holder, dict):
        return "".join(as_text(holder.get(key)) or "" for key in TEXT_KEYS)
    return str(choice.get("text") or "")


def _ids(choice: Mapping[str, object]) -> tuple[int, ...]:
    """vLLM lists them when asked (0.32), llama.cpp beside its log-probabilities (b11549)."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return _whole_numbers(ids)
    content = as_object(choice.get("logprobs")).get("content")
    return _whole_numbers([entry.get("id") for entry in as_objects(content)])


def _said(logprobs: Mapping[str, object]) -> list[Said]:
    """OpenAI's two forms; a token without alternatives is one the server gave no probability for."""
    content = logprobs.get("content")
    if isinstance(content, list):
        return [
            Said(
                data=_bytes(entry),
                logprob=_number(entry.get("logprob")),
                choices=tuple(
                    Alternative(data=_bytes(other), logprob=_number(other.get("logprob")))
                    for other in as_objects(entry.get("top_logprobs"))
                ),
            )
            for entry in as_objects(content)
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
                Alternative(data=_utf8(other), logprob=_number(logprob))
                for other, logprob in as_object(top).items()
            ),
        )
        for token, value, top in zip(tokens, values, tops, strict=False)
    ]


def _bytes(entry: Mapping[str, object]) -> bytes:
    data = entry.get("bytes")
    if isinstance(data, list) and all(isinstance(value, int) and 0 <= value < 256 for value in data):
        return bytes(data)
    return _utf8(entry.get("token") or "")


# What stands where something else should is left out, as if the server had not said it.


def _whole_numbers(value: object) -> tuple[int, ...]:
    """All of them or none: token ids with gaps are another text."""
    entries = as_list(value)
    whole = tuple(number for entry in entries if (number := as_whole(entry)) is not None)
    return whole if len(whole) == len(entries) else ()


def _number(value: object) -> float:
    whole = as_whole(value)
    if whole is not None and abs(whole) <= WHOLE_MAX:
        return float(whole)
    return value if isinstance(value, float) else 0.0


def _utf8(token: object) -> bytes:
    return token.encode("utf-8", "surrogatepass") if isinstance(token, str) else b""


def _keys(answer: object) -> str:
    return ", ".join(map(str, answer))[:120] if isinstance(answer, dict) else type(answer).__name__
