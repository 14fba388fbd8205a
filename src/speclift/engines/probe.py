"""Proves that drafts really happen: a text to repeat, on which any working drafter scores.

An engine can start without the speculation it was asked for (llama.cpp on a vocabulary mismatch, vLLM on a
head that never loaded) and say nothing; measuring that arm would compare the baseline with itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from speclift.core.errors import EngineError
from speclift.core.json_reading import as_object
from speclift.http.counts import count, draft_counts

PROBE_TOKENS = 96
# Below this mean accepted length on a text to repeat, the drafter is broken, not slow (vLLM PR 35548, 37667).
ACCEPTED_LENGTH_MIN = 1.1

# Plain prose: even a 135M model copies it, so that a silent drafter shows, not a weak target.
_TEXT = (
    "The miller opened the gate at six every morning and let the water run onto the old wheel. He swept the "
    "floor, filled four sacks with flour, and tied each of them with a blue string. When the baker came with "
    "his cart, they carried the sacks outside together, drank a cup of milk by the door, and talked about the "
    "weather until the bell of the church rang seven times."
)
_PROMPT = "Repeat the following text exactly, word for word:\n\n" + _TEXT


def probe_body(model: str, extra: Mapping[str, object]) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": PROBE_TOKENS,
        "temperature": 0,
        "seed": 1,
        **extra,
    }


def judge_probe(response: Mapping[str, object], *, arm: str, is_forced: bool = False) -> str:
    """A sentence on what was seen; EngineError where speculation did not happen.

    `is_forced` where acceptance is synthetic: how much was accepted then says nothing about the drafter.
    """
    counts = draft_counts(response.get("timings"), response.get("metrics"))
    if counts is None:
        return "the engine reports no draft counts"
    tokens = count(as_object(response.get("usage")).get("completion_tokens")) or 0
    if counts.drafted == 0:
        raise EngineError(
            f"arm {arm} drafted no token when asked to repeat a text ({tokens} tokens): it does not speculate",
            hint="search the engine's log for 'speculative'; check the method, the draft model and its vocabulary",
        )
    steps = tokens - 1 - counts.accepted
    length = (tokens - 1) / steps if steps > 0 else float("inf")
    if length < ACCEPTED_LENGTH_MIN and not is_forced:
        raise EngineError(
            f"arm {arm} accepted {counts.accepted} of {counts.drafted} draft tokens when asked to repeat a text "
            f"(accepted length {length:.2f}, at least {ACCEPTED_LENGTH_MIN} expected)",
            hint="the draft does not match the target: check method, draft model and chat template",
        )
    return f"probe: {counts.accepted} of {counts.drafted} draft tokens accepted in {tokens} tokens"
