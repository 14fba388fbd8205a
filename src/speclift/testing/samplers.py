"""How drafted tokens are verified, small and exact: the reference against which the lossless gate is tested.

Each rule takes what one step sees, for many sequences at once: `p` (n, k+1, V) the target's distributions after
0..k drafted tokens, `q` (n, k, V) the draft's, `drafted` (n, k). It returns how many drafts each sequence keeps
and the one token it adds. Rejection sampling and block verification leave the target's law unchanged (proofs:
Leviathan et al., arXiv 2211.17192, appendix A.1; Sun et al., arXiv 2403.10444, theorem 1); greedy matching does
at temperature 0. The others do not, and say by how much in `law_at_one_position`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.int64]
Generator: TypeAlias = np.random.Generator
Scalar = TypeVar("Scalar", bound=np.generic)
Rule: TypeAlias = Callable[[Floats, Floats, Ids, Generator], tuple[Ids, Ids]]

# vLLM's typical acceptance, as long as it had one (up to v0.9, typical_acceptance_sampler.py).
POSTERIOR_THRESHOLD = 0.09
POSTERIOR_ALPHA = 0.3


def greedy(p: Floats, _q: Floats, drafted: Ids, _draws: Generator) -> tuple[Ids, Ids]:
    """Keep drafts while they are the target's most likely token, then add that token: temperature 0."""
    best = p.argmax(axis=2)
    kept = _leading(drafted == best[:, :-1])
    return kept, _at(best, kept)


def rejection(p: Floats, q: Floats, drafted: Ids, draws: Generator) -> tuple[Ids, Ids]:
    """Keep y with min(1, p(y)/q(y)); where it falls, draw from (p - q)+ normalised."""
    return relaxed(p, q, drafted, draws, factor=1.0)


def relaxed(p: Floats, q: Floats, drafted: Ids, draws: Generator, *, factor: float) -> tuple[Ids, Ids]:
    """Keeps with min(1, factor p/q): the lenience of Leviathan et al. A.5. Lossy for factor above 1."""
    kept = _leading(_uniform(drafted, draws) * _picked(q, drafted) < factor * _picked(p[:, :-1], drafted))
    return kept, draw_from(_residual(p, q, kept), draws)


def without_residual(p: Floats, q: Floats, drafted: Ids, draws: Generator) -> tuple[Ids, Ids]:
    """The usual mistake: after a rejection the next token is drawn from p itself."""
    kept = _leading(_uniform(drafted, draws) * _picked(q, drafted) < _picked(p[:, :-1], drafted))
    return kept, draw_from(_at(p, kept), draws)


def block(p: Floats, q: Floats, drafted: Ids, draws: Generator) -> tuple[Ids, Ids]:
    """Block verification (arXiv 2403.10444, algorithm 2): the longest prefix that its running ratio carries."""
    rows, k = drafted.shape
    ratio = np.ones((rows, k + 1))
    for i in range(k):
        step = _picked(p[:, :-1], drafted)[:, i] / _picked(q, drafted)[:, i]
        ratio[:, i + 1] = np.minimum(ratio[:, i] * step, 1.0)
    kept = np.zeros(rows, dtype=np.int64)
    for i in range(1, k + 1):
        if i < k:
            left = np.maximum(ratio[:, i, None] * p[:, i] - q[:, i], 0.0).sum(axis=1)
            total = left + 1.0 - ratio[:, i]
            chance = np.divide(left, total, out=np.ones(rows), where=total > 0)
        else:
            chance = ratio[:, k]
        kept = np.where(draws.random(rows) <= chance, i, kept)
    padded = np.concatenate([q, np.zeros_like(p[:, :1])], axis=1)
    rest = np.maximum(_at(ratio, kept)[:, None] * _at(p, kept) - _at(padded, kept), 0.0)
    return kept, draw_from(_normalised(rest, otherwise=_at(p, kept)), draws)


def typical(
    p: Floats,
    _q: Floats,
    drafted: Ids,
    draws: Generator,
    *,
    threshold: float = POSTERIOR_THRESHOLD,
    alpha: float = POSTERIOR_ALPHA,
) -> tuple[Ids, Ids]:
    """Typical acceptance (Medusa, arXiv 2401.10774): keep y where p(y) > min(threshold, alpha exp(-H(p)));
    where it falls, add the target's most likely token; after k kept drafts draw from p. Lossy."""
    kept = _leading(_picked(p[:, :-1], drafted) > typical_bar(p[:, :-1], threshold=threshold, alpha=alpha))
    fallen = kept < drafted.shape[1]
    return kept, np.where(fallen, _at(p.argmax(axis=2), kept), draw_from(_at(p, kept), draws))


def typical_bar(p: Floats, *, threshold: float, alpha: float) -> Floats:
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)
    bar: Floats = np.minimum(threshold, alpha * np.exp(-entropy))
    return bar


def law_at_one_position(rule: str, p: Floats, q: Floats, **settings: float) -> Floats:
    """The exact law of the token at the first drafted position, drafts drawn from `q`; last axis is the token.

    Total variation to `p`, half the sum of |law - p|, is what the rule costs per drafted position.
    """
    keep: Floats = np.minimum(p, q)
    residual = _normalised(np.maximum(p - q, 0.0), otherwise=p)
    match rule:
        case "rejection":
            return p
        case "relaxed":
            keep = np.minimum(q, settings["factor"] * p)
            return np.asarray(keep + (1.0 - keep.sum(axis=-1, keepdims=True)) * residual)
        case "without-residual":
            return np.asarray(keep + (1.0 - keep.sum(axis=-1, keepdims=True)) * p)
        case "typical":
            bar = typical_bar(p, threshold=settings["threshold"], alpha=settings["alpha"])
            keep = np.where(p > bar[..., None], q, 0.0)
            best = np.eye(p.shape[-1])[p.argmax(axis=-1)]
            return np.asarray(keep + (1.0 - keep.sum(axis=-1, keepdims=True)) * best)
        case _:
            raise ValueError(f"no law is known for rule {rule!r}")


def total_variation(a: Floats, b: Floats) -> Floats:
    distance: Floats = np.abs(a - b).sum(axis=-1) / 2
    return distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A target and a draft whose next token depends on the one before: rows are contexts."""

    target: Floats
    draft: Floats

    @classmethod
    def drawn(cls, *, tokens: int, spread: float, agreement: float, seed: int) -> Chain:
        """Random logits of standard deviation `spread`; the draft shares `agreement` of them (correlation)."""
        draws = np.random.default_rng(seed)
        shared, other = draws.normal(size=(2, tokens, tokens))
        mixed = agreement * shared + np.sqrt(1.0 - agreement**2) * other
        return cls(target=softmax(spread * shared), draft=softmax(spread * mixed))

    def one_hot(self) -> Chain:
        """The same chain with a draft that always offers its most likely token, as engines do by default."""
        return Chain(target=self.target, draft=np.eye(len(self.draft))[self.draft.argmax(axis=1)])


def generate(
    chain: Chain,
    rule: Rule,
    *,
    sequences: int,
    length: int,
    k: int,
    draws: Generator,
    start: int | None = None,
) -> Ids:
    """Token ids (sequences, length) as an engine that verifies by `rule` would emit them; k = 0 is without drafts.

    `start` is the context of the first token; None draws one for each sequence.
    """
    out = np.zeros((sequences, length + k + 1), dtype=np.int64)
    last = draws.integers(len(chain.target), size=sequences)
    last = last if start is None else np.full(sequences, start)
    filled = np.zeros(sequences, dtype=np.int64)
    rows = np.arange(sequences)
    while (active := filled < length).any():
        drafted = np.zeros((sequences, k), dtype=np.int64)
        contexts = np.zeros((sequences, k + 1), dtype=np.int64)
        contexts[:, 0] = last
        for i in range(k):
            drafted[:, i] = draw_from(chain.draft[contexts[:, i]], draws)
            contexts[:, i + 1] = drafted[:, i]
        kept, added = rule(chain.target[contexts], chain.draft[contexts[:, :k]], drafted, draws)
        emitted = np.concatenate([drafted, added[:, None]], axis=1)
        emitted[rows, kept] = added
        for i in range(k + 1):
            wanted = active & (i <= kept)
            out[rows[wanted], filled[wanted] + i] = emitted[wanted, i]
        filled = np.where(active, filled + kept + 1, filled)
        filled = np.minimum(filled, length)
        last = added
    return out[:, :length]


RULES: dict[str, Rule] = {
    "greedy": greedy,
    "rejection": rejection,
    "block": block,
    "without-residual": without_residual,
    "relaxed-1.3": partial(relaxed, factor=1.3),
    "typical": typical,
}


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def draw_from(weights: Floats, draws: Generator) -> Ids:
    """One token per row, by inversion of the cumulative weights."""
    cumulative = weights.cumsum(axis=1)
    point = draws.random(len(weights))[:, None] * cumulative[:, -1:]
    return np.asarray((cumulative <= point).sum(axis=1).clip(max=weights.shape[1] - 1))


def _residual(p: Floats, q: Floats, kept: Ids) -> Floats:
    """(p - q)+ at the first rejected draft; p itself where all were kept."""
    padded = np.concatenate([q, np.zeros_like(p[:, :1])], axis=1)
    return _normalised(np.maximum(_at(p, kept) - _at(padded, kept), 0.0), otherwise=_at(p, kept))


def _normalised(weights: Floats, *, otherwise: Floats) -> Floats:
    total = weights.sum(axis=-1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), otherwise)


def _leading(flags: NDArray[np.bool_]) -> Ids:
    """How many of each row hold before the first that does not."""
    return np.asarray(np.cumprod(flags, axis=1).sum(axis=1), dtype=np.int64)


def _picked(rows: Floats, drafted: Ids) -> Floats:
    return np.asarray(np.take_along_axis(rows, drafted[:, :, None], axis=2)[:, :, 0])


def _at(values: NDArray[Scalar], index: Ids) -> NDArray[Scalar]:
    return np.asarray(values[np.arange(len(index)), index])


def _uniform(drafted: Ids, draws: Generator) -> Floats:
    return draws.random(drafted.shape)
