"""How many tokens does a step yield at a k that was not run? From one run at k_max, and corrections where others ran.

A drafter that sees only the text (draft model, n-gram, suffix) is replayed: which tokens it would get right does not
depend on k, so a run of m such tokens and the one that ends it takes ceil((m + 1) / (k + 1)) steps at any k. A head
that reads the target's hidden states is truncated, min(accepted, k), and corrected by what other runs measured.
"""

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
from scipy.special import stdtrit

from speclift.arithmetic.acceptance import iid_length
from speclift.core.results import CONFIDENCE, Estimate
from speclift.core.speculation import Drafter, Head
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


# How far an extrapolation may be off at small k, as sd of log length. On the data of SpecDecode-Bench (arXiv
# 2601.11580) replay erred by at most 0.4 %, truncation by 2-7 %, one geometric rate from totals by 2-10 %.
ERROR_SD = {Basis.REPLAY: 0.003, Basis.TRUNCATION: 0.05, Basis.GEOMETRIC: 0.06}
# And how far that error strays from a line in log k: truncation corrected by a second run erred by at most 1.2 %.
STRAY_SD = {Basis.REPLAY: 0.003, Basis.TRUNCATION: 0.008, Basis.GEOMETRIC: 0.02}
# sd of log length between requests at k = 10, before any was seen, and of the error of one request that two runs share:
# worth one request. A few that happen to agree are no sign that the next will.
REQUEST_SD = 0.3
SHARED_SD = 0.05
# Runs of one text at temperature 0 have no noise at all; their equations still need a solution.
_TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRun:
    """Requests that one drafter served at one k, from any loads: acceptance does not depend on the load."""

    k: int
    requests: tuple[RequestCounts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthAt:
    """Tokens per step at one k and how that is known.

    Beyond the largest k that ran it is `censored`: low and high then hold what the run leaves open as well.
    """

    k: int
    length: Estimate
    basis: Basis
    # Drafted tokens per step, steps without a draft counted: what verification pays for.
    drafted: float
    # Share of the steps that draft.
    drafting: float = 1.0
    is_censored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCurve:
    """`log_covariance` is of log length over the points, for choices between k of the same drafter."""

    points: tuple[LengthAt, ...]
    log_covariance: Floats
    requests: int

    def at(self, k: int) -> LengthAt:
        for point in self.points:
            if point.k == k:
                return point
        raise ValueError(f"the curve has no k={k}, only {[point.k for point in self.points]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Correction:
    """What a run at another k says: log(measured / predicted there), and each request's part in it."""

    k: int
    log_ratio: float
    influence: Floats
    # Of requests that the carrying run never saw.
    extra_sd: float


def is_prefix_only(drafter: Drafter) -> bool:
    """Whether its drafts depend on the text alone. Block verification couples the positions of a draft: not then."""
    block = ("rejection_sample_method", '"block"') in drafter.extra
    return not isinstance(drafter, Head) and not block


def accepted_lengths(
    runs: Sequence[AcceptanceRun], ks: Sequence[int], *, prefix_only: bool, level: float = CONFIDENCE
) -> AcceptanceCurve:
    """The curve over `ks`. The run with the largest k whose steps are known in order carries it, others correct it.

    Intervals treat a request as one unit, however many steps it had: steps of one text are alike.
    """
    if any(k < 1 for k in ks):
        raise ValueError(f"k counts drafted tokens and must be at least 1, saw {list(ks)}")
    pooled = _pooled(runs)
    carrier = _carrier(pooled, prefix_only=prefix_only)
    corrections = [_correction(carrier, k, run) for k, run in sorted(pooled.items()) if k != carrier.k_max]
    mended = _mended(carrier, ks, corrections)
    rows = [_log_length(carrier, k, mend, corrections) for k, mend in zip(ks, mended.log_ratio, strict=True)]
    covariance = _covariance(carrier, rows, mended)
    halves = _half_widths(np.diag(covariance), count=len(carrier.requests), level=level)
    return AcceptanceCurve(
        points=tuple(
            row.point(carrier, half=half, level=level) for row, half in zip(rows, halves, strict=True)
        ),
        log_covariance=covariance,
        requests=len(carrier.requests),
    )


def _carrier(pooled: Mapping[int, Mapping[str, Sequence[RequestCounts]]], *, prefix_only: bool) -> Carrier:
    if not pooled:
        raise ValueError("accepted lengths are predicted from at least one run with decode steps, saw none")
    ordered = [
        k
        for k, run in pooled.items()
        if all(counts.is_ordered for requests in run.values() for counts in requests)
    ]
    k_max = max(ordered or pooled)
    return Carrier(k_max=k_max, requests=pooled[k_max], prefix_only=prefix_only, is_ordered=bool(ordered))


def _half_widths(variances: Floats, *, count: int, level: float) -> list[float]:
    """Of intervals of log length; one request leaves everything open."""
    if count < 2:
        return [math.inf] * len(variances)
    quantile = float(stdtrit(count - 1, (1 + level) / 2))
    return [quantile * math.sqrt(variance) for variance in variances]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """log L at one k before its interval is known."""

    k: int
    log_length: float
    basis: Basis
    drafted: float
    drafting: float
    # log L if nothing beyond k_max is gained, and if all that could be is; None up to k_max.
    bracket: tuple[float, float] | None

    @property
    def bracket_sd(self) -> float:
        return 0.0 if self.bracket is None else (self.bracket[1] - self.bracket[0]) / 4

    def point(self, carrier: Carrier, *, half: float, level: float) -> LengthAt:
        low, high = self.bracket or (self.log_length, self.log_length)
        most = carrier.length_max(self.k)
        value = min(max(math.exp(self.log_length), 1.0), most)
        return LengthAt(
            k=self.k,
            length=Estimate(
                value=value,
                low=min(max(1.0, math.exp(low - half)), value),
                high=max(min(most, math.exp(min(high + half, 50.0))), value),
                n=len(carrier.requests),
                method=f"{self.basis.value}, clustered on requests",
                level=level,
            ),
            basis=self.basis,
            drafted=self.drafted,
            drafting=self.drafting,
            is_censored=self.bracket is not None,
        )


def _log_length(carrier: Carrier, k: int, mend: float, corrections: Sequence[_Correction]) -> _Row:
    basis = carrier.basis
    if k == carrier.k_max or any(k == each.k for each in corrections):
        basis = Basis.MEASURED
    elif corrections and basis is not Basis.REPLAY:
        basis = Basis.TWO_RUN
    bracket = None
    if k > carrier.k_max:
        low, high = carrier.bracket(k)
        bracket = (math.log(low), math.log(high))
    return _Row(
        k=k,
        log_length=math.log(carrier.sums(k).length) + mend,
        basis=basis,
        drafted=carrier.drafted(k),
        drafting=carrier.drafting(k),
        bracket=bracket,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mended:
    """What other runs add to the carrier's log length at every k asked for: a row each."""

    log_ratio: Floats
    # Each request's part in it.
    influence: Floats
    # What stays open when all requests are known.
    covariance: Floats


def _mended(carrier: Carrier, ks: Sequence[int], corrections: Sequence[_Correction]) -> _Mended:
    """The best linear estimate of the carrier's error at every k from what other runs showed of it.

    A run of a dozen requests at one k is worth little beside what hundreds at two others say of the k between them.
    """
    own = _error_covariance(carrier, ks, ks)
    count = len(carrier.requests)
    if not corrections:
        return _Mended(log_ratio=np.zeros(len(ks)), influence=np.zeros((len(ks), count)), covariance=own)
    ran = [each.k for each in corrections]
    influence = np.array([each.influence for each in corrections])
    foreign = np.diag([each.extra_sd**2 for each in corrections])
    across, there = _error_covariance(carrier, ks, ran), _error_covariance(carrier, ran, ran)
    noise = influence @ influence.T * _unbiased(count) + foreign + _TINY * np.eye(len(ran))
    weights = np.linalg.solve(there + noise, across.T).T
    left = own - weights @ across.T - across @ weights.T + weights @ (there + foreign) @ weights.T
    return _Mended(
        log_ratio=weights @ np.array([each.log_ratio for each in corrections]),
        influence=weights @ influence,
        covariance=left,
    )


def _covariance(carrier: Carrier, rows: Sequence[_Row], mended: _Mended) -> Floats:
    """Of log length between k: which requests were seen, what other runs leave open, requests unlike any seen, and
    what lies beyond k_max."""
    count = len(carrier.requests)
    influence = np.array([carrier.sums(row.k).influence for row in rows]).reshape(len(rows), count)
    influence = influence + mended.influence
    covariance: Floats = influence @ influence.T * _unbiased(count) + mended.covariance
    unseen = np.array([_prior_sd(row.k) for row in rows]) / count
    covariance += np.outer(unseen, unseen)
    bracketed = np.array([row.bracket_sd for row in rows])
    covariance += np.outer(bracketed, bracketed)
    return covariance


def _error_covariance(carrier: Carrier, left: Sequence[int], right: Sequence[int]) -> Floats:
    """Of log (true / extrapolated length) between k: none at k_max, in the main a line in log k, level below k = 2.

    What strays from the line adds up with the distance from k_max. Errors below and above k_max have no part in common.
    """
    here, there = (np.log(carrier.k_max) - np.log(np.array(ks, dtype=float)) for ks in (left, right))
    whole = max(math.log(carrier.k_max), math.log(2.0))
    bend = math.log(max(carrier.k_max / 2, 2.0))
    line = np.outer(np.minimum(np.abs(here) / bend, 1.0), np.minimum(np.abs(there) / bend, 1.0))
    stray = np.minimum(np.abs(here)[:, None], np.abs(there)[None, :]) / whole
    one_side = here[:, None] * there[None, :] > 0
    covariance: Floats = one_side * (
        ERROR_SD[carrier.basis] ** 2 * line + STRAY_SD[carrier.basis] ** 2 * stray
    )
    return covariance


def _prior_sd(k: int) -> float:
    """Of log length between requests: none at k = 0, where every step yields one token."""
    return REQUEST_SD * math.log1p(k) / math.log1p(10)


def _unbiased(count: int) -> float:
    return count / max(1, count - 1)


def _correction(carrier: Carrier, k: int, run: Mapping[str, Sequence[RequestCounts]]) -> _Correction:
    """Paired on the requests of both runs; of unlike requests where none is shared."""
    shared = np.array([request_id in run for request_id in carrier.requests])
    predicted = carrier.sums(k)
    influence = np.zeros(len(shared))
    if shared.sum() > 1:
        predicted = predicted.only(shared)
        measured = totals([run[request_id] for request_id in carrier.requests if request_id in run])
        influence[shared] = measured.influence - predicted.influence
        extra_sd = SHARED_SD / int(shared.sum())
    else:
        measured = totals(list(run.values()))
        influence -= predicted.influence
        count = len(run)
        extra_sd = float(np.sqrt(np.sum(measured.influence**2) * count / (count - 1))) if count > 1 else 1.0
    log_ratio = math.log(measured.length / predicted.length)
    return _Correction(k=k, log_ratio=log_ratio, influence=influence, extra_sd=extra_sd)


def _pooled(runs: Sequence[AcceptanceRun]) -> dict[int, dict[str, list[RequestCounts]]]:
    """By k, then by request; the same request at two loads is one unit."""
    pooled: dict[int, dict[str, list[RequestCounts]]] = {}
    for run in runs:
        for request in run.requests:
            if request.steps > 0:
                pooled.setdefault(run.k, {}).setdefault(request.request_id, []).append(request)
    return pooled
