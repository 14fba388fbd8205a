"""The fake engine's token mode: sampled text follows a chain of known probabilities, verified by a reference
sampler, and can be scored. `sampler=rejection` keeps the target's law; `without-residual`, `relaxed-1.3` and
`typical` are servers that lost it. Scoring is worded as vLLM words prompt_logprobs (0.32). Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from speclift.arithmetic.samplers import RULES, Chain, generate, softmax
from speclift.core.errors import UsageError
from speclift.core.units import Tokens

LISTED_MAX = 20


@cache
def chain_of(tokens: int) -> Chain:
    """The one language that every fake server of this kind speaks."""
    return Chain.drawn(tokens=tokens, spread=2.5, agreement=0.8, seed=20)


def at_temperature(chain: Chain, temperature: float) -> Chain:
    return Chain(
        target=softmax(np.log(chain.target) / temperature), draft=softmax(np.log(chain.draft) / temperature)
    )


def prompt_ids(prompt: str, *, tokens: int) -> list[int]:
    """One id per word, the same on every server."""
    words = prompt.split() or [""]
    return [hashlib.sha256(word.encode("utf-8", "surrogatepass")).digest()[0] % tokens for word in words]


def sampled_ids(
    rule: str, *, prompt: str, count: Tokens, k: int, temperature: float, seed: str, tokens: int
) -> tuple[int, ...]:
    entropy = int.from_bytes(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    ids = generate(
        at_temperature(chain_of(tokens), temperature),
        RULES[rule],
        sequences=1,
        length=count,
        k=k,
        draws=np.random.default_rng(entropy),
        start=prompt_ids(prompt, tokens=tokens)[-1],
    )
    return tuple(int(token) for token in ids[0])


def prompt_logprobs(
    prompt: str | Sequence[int], *, listed: int, tokens: int
) -> list[dict[str, dict[str, float]] | None]:
    """For each token of the prompt the likeliest tokens there and itself; nothing for the first."""
    ids = prompt_ids(prompt, tokens=tokens) if isinstance(prompt, str) else list(prompt)
    if not all(isinstance(token, int) and 0 <= token < tokens for token in ids):
        raise UsageError(f"a prompt of ids must hold ids in 0..{tokens - 1}")
    if not 0 <= listed <= LISTED_MAX:
        raise UsageError(f"prompt_logprobs must lie in 0..{LISTED_MAX}, saw {listed}")
    logs = np.log(chain_of(tokens).target)
    rows: list[dict[str, dict[str, float]] | None] = [None]
    for before, said in pairwise(ids):
        order = [int(token) for token in np.argsort(-logs[before])]
        shown = dict.fromkeys([*order[:listed], said])
        rows.append(
            {
                str(token): {"logprob": float(logs[before, token]), "rank": order.index(token) + 1}
                for token in shown
            }
        )
    return rows
