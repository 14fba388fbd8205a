"""llama.cpp's own probabilities of tokens that an arm said.

It cannot score a text (b11549), so the answer is fed back token by token: one decoded token each, but the full law
after top-k, top-p and min-p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from speclift.core.address import joined
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import need_list, need_number, need_objects, need_whole
from speclift.http.client import fetched, post_to
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore, lookups
from speclift.lossless.questions import Question

# It cuts at 40 tokens by default (top_k); more are listed where the server was told to keep more.
LISTED_MAX = 100
PROPS_LIMIT_S = 10.0


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
        if not isinstance(props, Mapping) or "build_info" not in props:
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
        rendered = await post_to(self._endpoint, "/apply-template", {"messages": messages})
        return await self._ids(str(rendered["prompt"]))

    async def _ids(self, text: str, *, add_special: bool = True) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": add_special}
        tokenized = await post_to(self._endpoint, "/tokenize", body)
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
                "n_probs": LISTED_MAX,
                "post_sampling_probs": True,
                "cache_prompt": True,
            }
            completion = await post_to(self._endpoint, "/completion", body)
            rows = need_objects(completion.get("completion_probabilities") or [{}])
            listed = need_objects(rows[0].get("top_probs") or [])
            laws.append(tuple((need_whole(entry["id"]), need_number(entry["prob"])) for entry in listed))
        return laws
