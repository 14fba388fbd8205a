"""One question of the lossless gate to one server: the request as an application would send it, the answer as values.

Speed is measured elsewhere; here a whole body is read at once and only what was said counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from speclift.core.address import joined
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.json_reading import as_list, as_object, as_objects, as_whole
from speclift.core.units import Seconds
from speclift.http.answer import AnswerReader, ChoiceReader
from speclift.http.client import ANSWER_BYTES_MAX, completion_body, completion_path, fetched
from speclift.http.counts import count
from speclift.lossless.answers import Alternative, Answer, Said
from speclift.lossless.questions import Question

ANSWER_LIMIT_S = 300.0
ERROR_CHARACTERS = 300
# A whole number beyond this is no log-probability, and may be none that a float can hold.
WHOLE_MAX = 10**6


async def ask(endpoint: Endpoint, question: Question, *, limit_s: Seconds = ANSWER_LIMIT_S) -> Answer:
    """An answer that could not be had is one with `error` set: the gate compares those too."""
    path = completion_path(question.request)
    data = json.dumps(body(endpoint, question)).encode()
    try:
        answer = await fetched(
            joined(endpoint.base_url, path),
            data=data,
            api_key=endpoint.api_key,
            limit_s=limit_s,
            bytes_max=ANSWER_BYTES_MAX,
        )
    except EngineError as error:
        return failed(question, str(error).partition(" answered ")[2] or str(error))
    return read_answer(question, answer.encode("utf-8", "surrogatepass"))


async def ask_all(endpoint: Endpoint, questions: Sequence[Question], *, at_once: int) -> list[Answer]:
    """The answers in order of the questions, `at_once` of them in flight."""
    gate = asyncio.Semaphore(at_once)

    async def one(question: Question) -> Answer:
        async with gate:
            return await ask(endpoint, question)

    return list(await asyncio.gather(*(one(question) for question in questions)))


def body(endpoint: Endpoint, question: Question) -> dict[str, object]:
    request = question.request
    fields = completion_body(
        endpoint,
        request,
        seed=question.seed,
        temperature=question.temperature,
        top_p=request.top_p if question.temperature > 0 else None,
        is_streamed=question.stream,
    )
    if question.listed and request.messages:
        fields |= {"logprobs": True, "top_logprobs": question.listed}
    elif question.listed:
        fields["logprobs"] = question.listed
    if question.wants_ids:
        fields["return_token_ids"] = True
    return fields | dict(question.settings)


def failed(question: Question, error: str) -> Answer:
    shown = error[:ERROR_CHARACTERS] or "no answer"
    return Answer(case=question.case, text="", finish_reason=None, tokens=None, error=shown)


def read_answer(question: Question, body: bytes) -> Answer:
    """The answer as the one reader of answers has it; a whole answer also has its tokens."""
    reader = AnswerReader(keeps_tokens=True)
    if question.stream:
        reader.feed(0.0, body)
    else:
        reader.take_whole(body)
    reader.end()
    if reader.failure is not None:
        return failed(question, reader.failure[1])
    drafts, first = reader.reported.drafts, min(reader.choices.items())[1]
    return Answer(
        case=question.case,
        text=reader.text if question.stream else first.choice.whole,
        finish_reason=reader.finish_reason,
        tokens=count(reader.reported.usage.get("completion_tokens")),
        said=tuple(said for logprobs in first.logprobs for said in _said(logprobs)),
        ids=_ids(first),
        prompt_ids=_whole_numbers(reader.prompt_ids),
        drafted=drafts.drafted if drafts else None,
        accepted=drafts.accepted if drafts else None,
    )


def _ids(choice: ChoiceReader) -> tuple[int, ...]:
    """vLLM lists them when asked (0.32), llama.cpp beside its log-probabilities (b11549)."""
    if choice.token_ids is not None:
        return _whole_numbers(choice.token_ids)
    entries = (entry for logprobs in choice.logprobs for entry in as_objects(logprobs.get("content")))
    return _whole_numbers([entry.get("id") for entry in entries])


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
