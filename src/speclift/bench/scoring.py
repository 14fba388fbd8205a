"""The target's own probabilities of tokens that an arm said, from a server that runs without speculation.

vLLM scores a whole answer in one request (prompt_logprobs, 0.32). llama.cpp has nothing like it (b11549), so the
answer is fed back token by token: one decoded token each, but the full law after top-k, top-p and min-p.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from speclift.core.address import joined
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import (
    as_list,
    as_number,
    as_object,
    need_list,
    need_object,
    need_objects,
    need_whole,
)
from speclift.core.results import is_complete
from speclift.engines.http import fetched, posted_json
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore, lookups, tempered
from speclift.lossless.questions import Question

# vLLM's default limit (--max-logprobs 20).
VLLM_LISTED = 20
# llama.cpp cuts at 40 tokens by default (top_k); more are listed where the server was told to keep more.
LLAMA_LISTED = 100
PROPS_LIMIT_S = 10.0
# What reading an answer of another shape than expected may raise: a list for an object, a word for a number.
ODD_SHAPE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


class Scorer(Protocol):
    # Body fields that make sampled requests follow the law that is scored.
    settings: tuple[tuple[str, object], ...]
    # What its answers must carry so that they can be scored.
    listed: int
    temperature_max: float

    async def score(self, question: Question, answer: Answer) -> list[TokenScore]:
        """One per token, none where the answer's tokens are not known; EngineError where the server refuses."""
        ...


async def scorer_for(endpoint: Endpoint) -> Scorer | None:
    """By trying: what a server can do says more than its name."""
    if await _has_prompt_logprobs(endpoint):
        return VllmScorer(endpoint)
    try:
        return await LlamaScorer.of(endpoint)
    except (EngineError, *ODD_SHAPE):
        return None


async def score_all(
    scorer: Scorer, questions: Sequence[Question], answers: Sequence[Answer], *, at_once: int
) -> list[TokenScore]:
    """Of every answer whose token ids are known; EngineError where one cannot be scored or those of several are not
    known, for what is left out might be what is wrong."""
    held = asyncio.Semaphore(at_once)

    async def one(question: Question, answer: Answer) -> list[TokenScore] | EngineError:
        async with held:
            try:
                return await scorer.score(question, answer)
            except EngineError as error:
                return error
            except ODD_SHAPE as error:
                return EngineError(f"the server's probabilities have another shape: {type(error).__name__}")

    given = [pair for pair in zip(questions, answers, strict=False) if pair[1].is_ok]
    known = []
    for scores in await asyncio.gather(*(one(question, answer) for question, answer in given if answer.ids)):
        if isinstance(scores, EngineError):
            raise scores
        if scores:
            known.append(scores)
    if not is_complete(asked=len(given), used=len(known)):
        raise EngineError(f"the token ids of {len(given) - len(known)} of {len(given)} answers are not known")
    return [score for scores in known for score in scores]


async def _has_prompt_logprobs(endpoint: Endpoint) -> bool:
    body = {"model": endpoint.model, "prompt": "a b", "max_tokens": 1, "prompt_logprobs": 1}
    try:
        answer = await _post(endpoint, "/v1/completions", body)
    except EngineError:
        return False
    first = next(iter(as_list(answer.get("choices"))), None)
    return isinstance(as_object(first).get("prompt_logprobs"), list)


class VllmScorer:
    listed = 0
    # Above it the unlisted tokens have a weight that the listed ones do not bound.
    temperature_max = 1.0
    # generation_config.json may set cuts that the scores do not show.
    settings: tuple[tuple[str, object], ...] = (("top_p", 1.0), ("top_k", 0))

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def score(self, question: Question, answer: Answer) -> list[TokenScore]:
        if not answer.ids or not answer.prompt_ids:
            raise EngineError("the server gave no token ids", hint="vLLM gives them on return_token_ids")
        ids = [*answer.prompt_ids, *answer.ids]
        body = {
            "model": self._endpoint.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": VLLM_LISTED,
        }
        scored = await _post(self._endpoint, "/v1/completions", body)
        choice = need_objects(scored["choices"])[0]
        rows = need_list(choice["prompt_logprobs"])[len(answer.prompt_ids) :]
        hints = lookups(answer.prompt_ids, answer.ids)
        return [
            _vllm_score(token, need_object(row), hint, temperature=question.temperature)
            for token, row, hint in zip(answer.ids, rows, hints, strict=True)
        ]


def _vllm_score(token: int, row: Mapping[str, object], hint: int | None, *, temperature: float) -> TokenScore:
    """The row lists the likeliest tokens and the one that stands there, whatever its rank."""
    logprobs = {int(key): _number(need_object(entry)["logprob"]) for key, entry in row.items()}
    ranked = sorted(logprobs, key=lambda each: -logprobs[each])[:VLLM_LISTED]
    top, low, high = tempered({each: logprobs[each] for each in ranked}, temperature=temperature)
    scale = (
        math.log(sum(math.exp(logprobs[each] / temperature) for each in ranked)) if temperature < 1 else 0.0
    )
    return TokenScore(
        chosen=token,
        top=top,
        tail_low=low,
        tail_high=high,
        chosen_probability=math.exp(logprobs[token] / temperature - scale),
        lookup=hint,
    )


class LlamaScorer:
    listed = 1  # its token ids come with log-probabilities only
    temperature_max = math.inf
    settings: tuple[tuple[str, object], ...] = ()

    def __init__(self, endpoint: Endpoint, *, end: int | None) -> None:
        self._endpoint = endpoint
        self._end = end

    @classmethod
    async def of(cls, endpoint: Endpoint) -> LlamaScorer:
        props = parse_json(
            await fetched(
                joined(endpoint.base_url, "/props"), api_key=endpoint.api_key, limit_s=PROPS_LIMIT_S
            )
        )
        if not isinstance(props, dict) or "build_info" not in props:
            raise EngineError("not llama.cpp")
        scorer = cls(endpoint, end=None)
        (score,) = await scorer._law([await scorer._ids("a b")], temperature=1.0)
        if not score:
            raise EngineError("no probabilities")
        end = await scorer._ids(str(props.get("eos_token") or ""))
        return cls(endpoint, end=end[-1] if end else None)

    async def score(self, question: Question, answer: Answer) -> list[TokenScore]:
        prompt, ids = await self._prompt(question), await self._drawn(answer)
        laws = await self._law(
            [[*prompt, *ids[:i]] for i in range(len(ids))], temperature=question.temperature
        )
        scores = []
        for token, law, hint in zip(ids, laws, lookups(prompt, ids), strict=True):
            tail = max(0.0, 1.0 - sum(mass for _, mass in law))
            tail = tail if tail > 1e-4 else 0.0  # rounding of a law that is listed whole
            scores.append(TokenScore(chosen=token, top=law, tail_low=tail, tail_high=tail, lookup=hint))
        return scores

    async def _drawn(self, answer: Answer) -> list[int]:
        """The ids of all tokens that were drawn, the end among them; empty where they are not known.

        llama.cpp lists no token whose bytes end within a character (b11549: an emoji of four tokens lists the last).
        The text's own tokens stand for such an answer where they are as many and hold all that was listed.
        """
        ids = list(answer.ids)
        if answer.tokens in (None, len(ids)):
            return ids
        end = [self._end] if answer.finish_reason == "stop" and self._end is not None else []
        text = await self._ids(answer.text, add_special=False)
        for whole in (text, [*text, *end], [*ids, *end] if ids[-1:] != end else []):
            left = iter(whole)
            if len(whole) == answer.tokens and all(token in left for token in ids):
                return whole
        return []

    async def _prompt(self, question: Question) -> list[int]:
        request = question.request
        if not request.messages:
            return await self._ids(request.prompt or "")
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        rendered = await _post(self._endpoint, "/apply-template", {"messages": messages})
        return await self._ids(str(rendered["prompt"]))

    async def _ids(self, text: str, *, add_special: bool = True) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": add_special}
        tokenized = await _post(self._endpoint, "/tokenize", body)
        return [need_whole(token) for token in need_list(tokenized["tokens"])]

    async def _law(
        self, prefixes: Sequence[Sequence[int]], *, temperature: float
    ) -> list[tuple[tuple[int, float], ...]]:
        """The law of the next token after each prefix, in order so that each reuses the one before."""
        laws = []
        for prefix in prefixes:
            body = {
                "prompt": list(prefix),
                "n_predict": 1,
                "temperature": temperature,
                "n_probs": LLAMA_LISTED,
                "post_sampling_probs": True,
                "cache_prompt": True,
            }
            completion = await _post(self._endpoint, "/completion", body)
            rows = need_objects(completion.get("completion_probabilities") or [{}])
            listed = need_objects(rows[0].get("top_probs") or [])
            laws.append(tuple((need_whole(entry["id"]), _number(entry["prob"])) for entry in listed))
        return laws


def _number(value: object) -> float:
    """Infinite too, as the logarithm of nothing is."""
    number = as_number(value)
    if number is None:
        raise TypeError(f"no number: {value!r}")
    return float(number)


async def _post(endpoint: Endpoint, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
    return await posted_json(joined(endpoint.base_url, path), body, api_key=endpoint.api_key)
