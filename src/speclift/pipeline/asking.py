"""One question of the lossless gate to one server: the request as an application would send it, the answer as values.

Speed is measured elsewhere; here a whole body is read at once and only what was said counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.units import Seconds
from speclift.engine.aside import aside
from speclift.engine.http import fetch
from speclift.model.response import count, draft_counts
from speclift.verify.answers import Answer, Choice, Said
from speclift.verify.questions import Question

ANSWER_LIMIT_S = 300.0
ERROR_CHARACTERS = 300
# Reasoning models put their thoughts under another key; they are text all the same.
TEXT_KEYS = ("reasoning_content", "reasoning", "content")


async def ask(endpoint: Endpoint, question: Question, *, limit_s: Seconds = ANSWER_LIMIT_S) -> Answer:
    """An answer that could not be had is one with `error` set: the gate compares those too."""
    path = "/v1/chat/completions" if question.request.messages else "/v1/completions"
    data = json.dumps(body(endpoint, question)).encode()
    try:
        text = await aside(
            fetch, f"{endpoint.base_url}{path}", data=data, api_key=endpoint.api_key, limit_s=limit_s
        )
        return read_stream(question, text) if question.stream else read_whole(question, json.loads(text))
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
        return failed(question, f"no choices in the answer: {json.dumps(payload)[:120]}")
    choice = choices[0]
    usage = payload.get("usage")
    counts = draft_counts(payload)
    said = tuple(_said(choice.get("logprobs")))
    return Answer(
        case=question.case,
        text=_text(choice),
        finish_reason=choice.get("finish_reason"),
        tokens=count(usage.get("completion_tokens")) if isinstance(usage, Mapping) else None,
        said=said,
        ids=_ids(choice),
        prompt_ids=tuple(payload.get("prompt_token_ids") or choice.get("prompt_token_ids") or ()),
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
        payload = json.loads(data)
        if not isinstance(payload, Mapping) or payload.get("error"):
            return failed(question, f"in the stream: {data[:200]}")
        counts = draft_counts(payload)
        if counts is not None:
            answer = replace(answer, drafted=counts.drafted, accepted=counts.accepted)
        usage = payload.get("usage")
        if isinstance(usage, Mapping):
            answer = replace(answer, tokens=count(usage.get("completion_tokens")))
        for choice in payload.get("choices") or ():
            parts.append(_text(choice))
            finish = choice.get("finish_reason") or finish
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
        return tuple(int(token) for token in choice["token_ids"])
    content = (choice.get("logprobs") or {}).get("content") or ()
    ids = [entry.get("id") for entry in content if isinstance(entry, Mapping)]
    found = [token for token in ids if isinstance(token, int)]
    return tuple(found) if len(found) == len(ids) else ()


def _said(logprobs: Any) -> list[Said]:
    """OpenAI's two forms; a token without alternatives is one the server gave no probability for."""
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(logprobs.get("content"), list):
        entries = [entry for entry in logprobs["content"] if isinstance(entry, Mapping)]
        return [
            Said(
                data=_bytes(entry),
                logprob=float(entry.get("logprob") or 0.0),
                choices=tuple(
                    Choice(data=_bytes(other), logprob=float(other.get("logprob") or 0.0))
                    for other in entry.get("top_logprobs") or ()
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
            data=str(token).encode(),
            logprob=float(value or 0.0),
            choices=tuple(
                Choice(data=str(other).encode(), logprob=float(each)) for other, each in (top or {}).items()
            ),
        )
        for token, value, top in zip(tokens, values, tops, strict=False)
    ]


def _bytes(entry: Mapping[str, Any]) -> bytes:
    data = entry.get("bytes")
    if isinstance(data, list) and all(isinstance(value, int) and 0 <= value < 256 for value in data):
        return bytes(data)
    return str(entry.get("token") or "").encode()
