"""What would the requests of one run have yielded at another k? Replay, truncation, or one geometric rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from speclift.arithmetic.acceptance import iid_length
from speclift.search.counts import RequestCounts

Floats: TypeAlias = NDArray[np.float64]

_BISECTIONS = 50
# The longest row of drafts accepted in full that is followed exactly; longer ones repeat it.
_CHAIN_MAX = 64


class Basis(StrEnum):
    """Where an accepted length comes from, best first."""

    MEASURED = "measured"
    REPLAY = "replay"
    TWO_RUN = "two-run"
    TRUNCATION = "truncation"
    GEOMETRIC = "geometric"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSums:
    """Tokens and steps of each request; the length is their ratio."""

    tokens: Floats
    steps: Floats

    @property
    def length(self) -> float:
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def influence(self) -> Floats:
        """Of each request on log length; their squares add up to its variance (linearised ratio)."""
        influence: Floats = (self.tokens - self.length * self.steps) / self.tokens.sum()
        return influence

    def only(self, chosen: NDArray[np.bool_]) -> RequestSums:
        return RequestSums(tokens=self.tokens[chosen], steps=self.steps[chosen])


def totals(groups: Sequence[Sequence[RequestCounts]]) -> RequestSums:
    """Of each request the mean of the times it was sent: those that every load sends must not outweigh the others."""
    return RequestSums(
        tokens=_means(groups, lambda request: request.tokens),
        steps=_means(groups, lambda request: request.steps),
    )


def _means(groups: Sequence[Sequence[RequestCounts]], count: Callable[[RequestCounts], float]) -> Floats:
    return np.array([sum(count(each) for each in group) / len(group) for group in groups])


class Carrier:
    """One run at k_max with its requests in a fixed order; says what they give at another k.

    A request that was sent several times counts once.
    """

    def __init__(
        self,
        *,
        k_max: int,
        requests: Mapping[str, Sequence[RequestCounts]],
        prefix_only: bool,
        is_ordered: bool,
    ) -> None:
        self.k_max = k_max
        self.requests = tuple(requests)
        self._groups = [requests[request_id] for request_id in self.requests]
        self.basis = Basis.GEOMETRIC
        if is_ordered:
            self.basis = Basis.REPLAY if prefix_only else Basis.TRUNCATION

    def sums(self, k: int) -> RequestSums:
        match self.basis:
            case Basis.REPLAY:
                return self._replayed(k, self._hazard)
            case Basis.TRUNCATION:
                return self._truncated(k)
            case _:
                return self._geometric(k)

    def bracket(self, k: int) -> tuple[float, float]:
        """Beyond k_max: if no further token is gained, and if acceptance goes on as it ended.

        Replayed, only the tokens after drafts accepted in full are open: none right, or all.
        """
        if self.basis is Basis.REPLAY:
            return self._replayed(k, 0.0).length, self._replayed(k, 1.0).length
        ends = self._truncated(self.k_max) if self.basis is Basis.TRUNCATION else self._geometric(self.k_max)
        goes_on = (
            self._tokens_beyond(k, self._hazard) if self.basis is Basis.TRUNCATION else self._geometric(k)
        )
        return ends.length, max(ends.length, goes_on.length)

    def drafted(self, k: int) -> float:
        """Drafted tokens per step at k; a step without a draft stays one."""
        counts = self._drafted_counts
        total = sum(counts.values())
        mean = sum(min(length, k) * count for length, count in counts.items()) / total if total else float(k)
        # A draft shorter than k_max was all there was to draft; longer k would not have lengthened it.
        if total and k > self.k_max:
            mean += (k - self.k_max) * counts.get(self.k_max, 0.0) / total
        kept_steps, kept_drafted = self._kept
        steps = float(self.sums(k).steps.sum())
        return mean * (self.drafting(k) - kept_steps / steps) + kept_drafted / steps

    def length_max(self, k: int) -> float:
        """No step yields more tokens; drafts that no k changes may be longer than k."""
        kept_steps, kept_drafted = self._kept
        return max(float(k), kept_drafted / kept_steps if kept_steps else 0.0) + 1.0

    def drafting(self, k: int) -> float:
        """Share of the steps at k that draft."""
        return 1.0 - float(self._without.sum()) / float(self.sums(k).steps.sum())

    @cached_property
    def _kept(self) -> tuple[float, float]:
        """Steps that no k changes, and what they drafted, over all requests."""
        return (
            float(_means(self._groups, lambda request: request.kept_steps).sum()),
            float(_means(self._groups, lambda request: request.kept_drafted).sum()),
        )

    def _replayed(self, k: int, bonus: float) -> RequestSums:
        kinds, counts = self._chains
        steps = np.array([chain_steps(full, last, self.k_max, k, bonus) for full, last in kinds])
        kept = _means(self._groups, lambda request: request.kept_steps)
        return RequestSums(tokens=self._tokens, steps=counts @ steps + self._without + kept)

    def _truncated(self, k: int) -> RequestSums:
        if k > self.k_max:
            low, high = self._truncated(self.k_max), self._tokens_beyond(k, self._hazard)
            # Between "no further gain" and "as it ended", which lie below and above the truth in recorded data.
            middle: Floats = low.tokens * math.sqrt(high.length / low.length)
            return RequestSums(tokens=middle, steps=low.steps)
        return self._tokens_up_to(k)

    def _tokens_up_to(self, k: int) -> RequestSums:
        lengths = np.arange(self._histogram.shape[1])
        lost = self._histogram @ (lengths - np.minimum(lengths, k))
        return RequestSums(tokens=self._tokens - lost, steps=self._steps)

    def _tokens_beyond(self, k: int, hazard: float) -> RequestSums:
        """S_(k_max + m) = S_k_max h^m with the last conditional rate h."""
        ends = self._tokens_up_to(self.k_max)
        full = self._histogram[:, self.k_max]
        gained = math.fsum(hazard**m for m in range(1, k - self.k_max + 1))
        return RequestSums(tokens=ends.tokens + full * gained, steps=ends.steps)

    def _geometric(self, k: int) -> RequestSums:
        length = RequestSums(tokens=self._tokens, steps=self._steps).length
        share = iid_length(_alpha(length, self.k_max), k) / length
        return RequestSums(tokens=self._tokens * share, steps=self._steps)

    @cached_property
    def _tokens(self) -> Floats:
        return totals(self._groups).tokens

    @cached_property
    def _steps(self) -> Floats:
        return totals(self._groups).steps

    @cached_property
    def _without(self) -> Floats:
        return _means(self._groups, lambda request: request.without_draft)

    @cached_property
    def _histogram(self) -> Floats:
        """Drafts by request and accepted length, up to k_max at least."""
        counts = [Counter(chain.from_iterable(each.accepted for each in group)) for group in self._groups]
        width = 1 + max([self.k_max, *(length for found in counts for length in found)])
        rows = np.array([[float(found[length]) for length in range(width)] for found in counts])
        return rows / self._times[:, None]

    @cached_property
    def _times(self) -> Floats:
        """How often each request was sent."""
        return np.array([float(len(group)) for group in self._groups])

    @cached_property
    def _drafted_counts(self) -> Mapping[int, float]:
        """Drafts by length, over all requests."""
        counts: dict[int, float] = {}
        for group in self._groups:
            for length, count in Counter(chain.from_iterable(each.drafted for each in group)).items():
                counts[length] = counts.get(length, 0.0) + count / len(group)
        return counts

    @cached_property
    def _chains(self) -> tuple[tuple[tuple[int, int], ...], Floats]:
        """The kinds of chains there are, and how many of each a request has."""
        found = [
            sum((chains_of(each.accepted, k_max=self.k_max) for each in group), Counter())
            for group in self._groups
        ]
        kinds = tuple(sorted(set(chain.from_iterable(found))))
        counts = np.array([[float(each[kind]) for kind in kinds] for each in found])
        return kinds, counts / self._times[:, None]

    @cached_property
    def _hazard(self) -> float:
        """h = S_k_max / S_(k_max - 1) over all requests."""
        full = float(self._histogram[:, self.k_max].sum())
        nearly = full + float(self._histogram[:, self.k_max - 1].sum())
        return full / nearly if nearly else 0.0


# A search asks for the same requests again after every launch.
@lru_cache(maxsize=1 << 15)
def chains_of(accepted: tuple[int, ...], *, k_max: int) -> Counter[tuple[int, int]]:
    """Rows of drafts accepted in full, each with what the draft after them accepted; -1 where the text ended."""
    chains: Counter[tuple[int, int]] = Counter()
    full = 0
    for length in accepted:
        if length < k_max:
            chains[full, length] += 1
            full = 0
        else:
            full += 1
            if full == _CHAIN_MAX:
                chains[full, -1] += 1
                full = 0
    if full:
        chains[full, -1] += 1
    return chains


@cache
def chain_steps(full: int, last: int, k_max: int, k: int, bonus: float) -> float:
    """Expected steps at k of `full` drafts accepted in full and one that accepted `last`.

    The token after each full draft was not drafted: it would have been right with probability `bonus`, and then the
    run of right tokens goes on; else it ends there. A run of m right tokens and its end are ceil((m + 1) / (k + 1)).
    """
    width = k_max + 1
    expected, joined = 0.0, 1.0
    for before in range(1, full + 1):
        if before == full and last < 0:
            return expected + joined * math.ceil(full * width / (k + 1))
        ends = joined * (1.0 - bonus)
        if ends > 0:
            rest = chain_steps(full - before, last, k_max, k, bonus)
            expected += ends * (math.ceil(before * width / (k + 1)) + rest)
        joined *= bonus
    return expected + joined * math.ceil((full * width + last + 1) / (k + 1))


def _alpha(length: float, k: int) -> float:
    """The acceptance rate at which i.i.d. drafts of k give this length."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if iid_length(middle, k) < length else (low, middle)
    return high
