"""vLLM's own probabilities of tokens that an arm said: a whole answer in one request (prompt_logprobs, 0.32)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.json_reading import as_list, as_number, as_object, need_list, need_object, need_objects
from speclift.http.client import post_to
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore, lookups, tempered
from speclift.lossless.questions import Question

# The default limit (--max-logprobs 20).
LISTED_MAX = 20


async def has_prompt_logprobs(endpoint: Endpoint) -> bool:
    body = {"model": endpoint.model, "prompt": "a b", "max_tokens": 1, "prompt_logprobs": 1}
    try:
        answer = await post_to(endpoint, "/v1/completions", body)
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
            raise EngineError("the server gave no token ids", hint="vLLM returns them with return_token_ids")
        ids = [*answer.prompt_ids, *answer.ids]
        body = {
            "model": self._endpoint.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": LISTED_MAX,
        }
        scored = await post_to(self._endpoint, "/v1/completions", body)
        choice = need_objects(scored["choices"])[0]
        rows = need_list(choice["prompt_logprobs"])[len(answer.prompt_ids) :]
        hints = lookups(answer.prompt_ids, answer.ids)
        return [
            _score(token, need_object(row), hint, temperature=question.temperature)
            for token, row, hint in zip(answer.ids, rows, hints, strict=True)
        ]


def _score(token: int, row: Mapping[str, object], hint: int | None, *, temperature: float) -> TokenScore:
    """The row lists the likeliest tokens and the one that stands there, whatever its rank."""
    logprobs = {int(key): _logprob(need_object(entry)["logprob"]) for key, entry in row.items()}
    ranked = sorted(logprobs, key=lambda each: -logprobs[each])[:LISTED_MAX]
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


def _logprob(value: object) -> float:
    """Infinite too, as the logarithm of nothing is."""
    number = as_number(value)
    if number is None:
        raise TypeError(f"no number: {value!r}")
    return float(number)
