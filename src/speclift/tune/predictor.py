"""How many tokens does a step yield at a k that was not run? From one run at k_max, and corrections where others ran.

A drafter that sees only the text (draft model, n-gram, suffix) is replayed: which tokens it would get right does not
depend on k, so a run of m such tokens and the one that ends it takes ceil((m + 1) / (k + 1)) steps at any k. A head
that reads the target's hidden states is truncated, min(accepted, k), and corrected by what other runs measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from speclift.core.results import CONFIDENCE, Estimate
from speclift.core.speculation import Drafter, Head
from speclift.tune.counts import RequestCounts
from speclift.tune.extrapolate import Basis, Carrier, Floats, Sums

# How far a prediction may be off, as sd of its log: on the data of SpecDecode-Bench (arXiv 2601.11580) replay erred
# by at most 0.4 %, truncation by 2-7 %, truncation corrected by a second run by at most 1.2 %, one geometric rate
# from totals by 2-10 %.
ERROR_SD = {
    Basis.MEASURED: 0.0,
    Basis.REPLAY: 0.003,
    Basis.TWO_RUN: 0.006,
    Basis.TRUNCATION: 0.05,
    Basis.GEOMETRIC: 0.06,
}


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
    ordered = [
        k for k, run in pooled.items() if all(each.is_ordered for group in run.values() for each in group)
    ]
    if not pooled:
        raise ValueError("accepted lengths are predicted from at least one run with decode steps, saw none")
    k_max = max(ordered or pooled)
    carrier = Carrier(k_max=k_max, requests=pooled[k_max], prefix_only=prefix_only, is_ordered=bool(ordered))
    corrections = [_correction(carrier, k, run) for k, run in sorted(pooled.items()) if k != k_max]
    rows = [_log_length(carrier, k, corrections) for k in ks]
    count = len(carrier.requests)
    influence = np.array([row.influence for row in rows]).reshape(len(rows), count)
    spread = np.array([row.model_sd for row in rows])
    covariance: Floats = influence @ influence.T * (count / max(1, count - 1)) + np.outer(spread, spread)
    quantile = float(student_t.ppf((1 + level) / 2, count - 1)) if count > 1 else math.inf
    points = []
    for row, variance in zip(rows, np.diag(covariance), strict=True):
        half = math.inf if count < 2 else quantile * math.sqrt(variance)
        points.append(row.point(carrier, half=half, level=level))
    return AcceptanceCurve(points=tuple(points), log_covariance=covariance, requests=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """log L at one k before its interval is known."""

    k: int
    log_length: float
    influence: Floats
    model_sd: float
    basis: Basis
    drafted: float
    # log L if nothing beyond k_max is gained, and if all that could be is; None up to k_max.
    bracket: tuple[float, float] | None

    def point(self, carrier: Carrier, *, half: float, level: float) -> LengthAt:
        low, high = self.bracket or (self.log_length, self.log_length)
        value = min(max(math.exp(self.log_length), 1.0), self.k + 1.0)
        return LengthAt(
            k=self.k,
            length=Estimate(
                value=value,
                low=min(max(1.0, math.exp(low - half)), value),
                high=max(min(self.k + 1.0, math.exp(min(high + half, 50.0))), value),
                n=len(carrier.requests),
                method=f"{self.basis.value}, clustered on requests",
                level=level,
            ),
            basis=self.basis,
            drafted=self.drafted,
            is_censored=self.bracket is not None,
        )


def _log_length(carrier: Carrier, k: int, corrections: Sequence[_Correction]) -> _Row:
    sums = carrier.sums(k)
    log_length, influence = math.log(sums.length), sums.influence
    weights = _interpolation(k, [each.k for each in corrections], carrier.k_max)
    for weight, correction in zip(weights, corrections, strict=True):
        log_length += weight * correction.log_ratio
        influence = influence + weight * correction.influence
    basis = carrier.basis
    if k == carrier.k_max or any(k == each.k for each in corrections):
        basis = Basis.MEASURED
    elif corrections and basis is not Basis.REPLAY:
        basis = Basis.TWO_RUN
    # Nothing is left open at k_max itself; below it, the more the fewer tokens a step may draft.
    reach = abs(math.log(carrier.k_max / k)) / math.log(carrier.k_max) if carrier.k_max > 1 else 1.0
    model_sd = ERROR_SD[basis] * min(1.0, reach)
    bracket = None
    if k > carrier.k_max:
        low, high = carrier.bracket(k)
        bracket = (math.log(low), math.log(high))
        model_sd = math.hypot(model_sd, (bracket[1] - bracket[0]) / 4)
    foreign = math.fsum(
        (weight * each.extra_sd) ** 2 for weight, each in zip(weights, corrections, strict=True)
    )
    return _Row(
        k=k,
        log_length=log_length,
        influence=influence,
        model_sd=math.sqrt(model_sd**2 + foreign),
        basis=basis,
        drafted=carrier.drafted(k),
        bracket=bracket,
    )


def _correction(carrier: Carrier, k: int, run: Mapping[str, Sequence[RequestCounts]]) -> _Correction:
    """Paired on the requests of both runs; of unlike requests where none is shared."""
    shared = np.array([request_id in run for request_id in carrier.requests])
    predicted = carrier.sums(k)
    influence = np.zeros(len(shared))
    if shared.sum() > 1:
        predicted = predicted.only(shared)
        measured = _totals([run[request_id] for request_id in carrier.requests if request_id in run])
        influence[shared] = measured.influence - predicted.influence
        extra_sd = 0.0
        error_sd = float(np.sqrt(np.sum(influence**2) * shared.sum() / (shared.sum() - 1)))
    else:
        measured = _totals(list(run.values()))
        influence -= predicted.influence
        count = len(run)
        extra_sd = float(np.sqrt(np.sum(measured.influence**2) * count / (count - 1))) if count > 1 else 1.0
        error_sd = math.hypot(extra_sd, float(np.sqrt(np.sum(influence**2))))
    # Believed as far as its noise is small beside the error it is to mend.
    prior = ERROR_SD[carrier.basis] ** 2
    share = prior / (prior + error_sd**2)
    log_ratio = math.log(measured.length / predicted.length)
    return _Correction(
        k=k, log_ratio=share * log_ratio, influence=share * influence, extra_sd=share * extra_sd
    )


def _interpolation(k: int, corrected: Sequence[int], k_max: int) -> list[float]:
    """How much of each correction applies at k: linear in log k between runs, none at k_max, level below the lowest."""
    knots = sorted([*corrected, k_max])
    places = np.log(knots)
    return [
        float(np.interp(math.log(k), places, [1.0 if knot == each else 0.0 for knot in knots]))
        for each in corrected
    ]


def _pooled(runs: Sequence[AcceptanceRun]) -> dict[int, dict[str, list[RequestCounts]]]:
    """By k, then by request; the same request at two loads is one unit."""
    pooled: dict[int, dict[str, list[RequestCounts]]] = {}
    for run in runs:
        for request in run.requests:
            if request.steps > 0:
                pooled.setdefault(run.k, {}).setdefault(request.request_id, []).append(request)
    return pooled


def _totals(groups: Sequence[Sequence[RequestCounts]]) -> Sums:
    return Sums(
        tokens=np.array([float(sum(each.tokens for each in group)) for group in groups]),
        steps=np.array([float(sum(each.steps for each in group)) for group in groups]),
    )
