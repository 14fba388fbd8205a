"""Which of two pools is faster on live traffic, looked at whenever one likes? Pure.

Requests are compared within classes: alike in what was asked, in load, and in time. Of the logarithm y of what a
request took, with z = 1 in one pool and 0 in the other, each class adds

    sum (z - mean z) (y - mean y)      and      sum (z - mean z)^2 = n1 n0 / (n1 + n0)

and the ratio of both sums over all classes is the mean difference, each class weighted by the harmonic mean of its
counts. A class that only one pool saw adds nothing. Both sums are kept by groups of sessions, so that turns of one
conversation are not taken for independent evidence (the variance is one between clusters), and add up over time.

The interval is a confidence sequence: a normal mixture over effects of about MIXTURE_SD (Robbins 1970; asymptotic as in
Waudby-Smith et al. 2021), so that it holds at all times together. benchmarks/gateway_learning.py shows how well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.core.results import Estimate
from speclift.core.units import Seconds
from speclift.statistics.stats import SPREAD_MIN

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Sessions share groups by their hash: bounded memory, and enough for a variance.
GROUPS = 128
# Fewer groups of sessions in either pool say too little about how much they differ. From 20 on the interval held
# through at least 98 % of simulated days, where 95 % are promised and 2 % of requests are six times slower.
GROUPS_MIN = 20
# Effects that the sequence is tightest for: 20 % up or down.
MIXTURE_SD = 0.2
# Beyond it Student's t has no quantile that can be computed; nothing is decided that far out.
TAIL_MIN = 1e-200
# No ratio of times is beyond it, and exp() of much more is no number.
LOG_MAX = 50.0
METHOD = "classes of live requests, clustered by session, at any time"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolEvidence:
    """What some requests say; adds up. By group of sessions."""

    scores: Floats
    weights: Floats
    in_spec: Flags
    in_plain: Flags
    # Of classes that both pools saw: how many, their requests, and the squares of what sets those apart in a class.
    classes: int = 0
    rows: int = 0
    squares: float = 0.0

    def __add__(self, other: PoolEvidence) -> PoolEvidence:
        return PoolEvidence(
            scores=self.scores + other.scores,
            weights=self.weights + other.weights,
            in_spec=self.in_spec | other.in_spec,
            in_plain=self.in_plain | other.in_plain,
            classes=self.classes + other.classes,
            rows=self.rows + other.rows,
            squares=self.squares + other.squares,
        )

    @property
    def groups(self) -> int:
        """Of the pool that has fewer."""
        return int(min(self.in_spec.sum(), self.in_plain.sum()))


def no_evidence() -> PoolEvidence:
    nowhere = np.zeros(GROUPS, dtype=np.bool_)
    return PoolEvidence(
        scores=np.zeros(GROUPS), weights=np.zeros(GROUPS), in_spec=nowhere, in_plain=nowhere.copy()
    )


def pool_evidence(
    classes: Sequence[int] | NDArray[np.int64],
    groups: Sequence[int] | NDArray[np.int64],
    is_spec: Sequence[bool] | Flags,
    taken_s: Sequence[Seconds] | Floats,
) -> PoolEvidence:
    """One entry per request; classes are numbered from 0, times above 0."""
    kinds, group = np.asarray(classes, dtype=np.int64), np.asarray(groups, dtype=np.int64)
    spec = np.asarray(is_spec, dtype=np.bool_)
    if not len(kinds):
        return no_evidence()
    # So that more is faster.
    speed = -np.log(np.asarray(taken_s, dtype=np.float64))
    counts = np.bincount(kinds)
    in_spec = np.bincount(kinds, weights=spec, minlength=len(counts))
    is_shared = (in_spec > 0) & (in_spec < counts)
    shared = is_shared[kinds]
    size = np.maximum(counts, 1)
    side = spec - (in_spec / size)[kinds]
    rest = speed - (np.bincount(kinds, weights=speed, minlength=len(counts)) / size)[kinds]
    scores, weights = np.zeros(GROUPS), np.zeros(GROUPS)
    np.add.at(scores, group[shared], (side * rest)[shared])
    np.add.at(weights, group[shared], (side * side)[shared])
    return PoolEvidence(
        scores=scores,
        weights=weights,
        in_spec=np.bincount(group[shared & spec], minlength=GROUPS) > 0,
        in_plain=np.bincount(group[shared & ~spec], minlength=GROUPS) > 0,
        classes=int(is_shared.sum()),
        rows=int(shared.sum()),
        squares=float((rest[shared] ** 2).sum()),
    )


def anytime_speedup(evidence: PoolEvidence, *, alpha: float) -> Estimate | None:
    """Time in plain over time in spec; the interval fails at any time at all with probability `alpha`.

    None where too little is known to say how much sessions differ.
    """
    degrees = evidence.rows - evidence.classes - 1
    if evidence.groups < GROUPS_MIN or degrees < 1:
        return None
    weight = float(evidence.weights.sum())
    effect = float(evidence.scores.sum()) / weight
    # Each class's own mean was taken from its rows, which lie the closer to it the fewer they are.
    between = float(((evidence.scores - effect * evidence.weights) ** 2).sum()) / weight**2
    # A canary of fifty that happens to have none of the slowest requests looks steadier than it is: no less is
    # believed than what all requests of both pools say.
    within = max(evidence.squares - effect**2 * weight, 0.0) / evidence.rows / weight
    variance = max(max(between, within) * evidence.rows / degrees, SPREAD_MIN**2 / weight)
    half = math.sqrt(variance) * _boundary(MIXTURE_SD**2 / variance, alpha, df=evidence.groups - 1)
    return Estimate(
        value=math.exp(effect),
        low=math.exp(max(effect - half, -LOG_MAX)),
        high=math.exp(min(effect + half, LOG_MAX)),
        n=evidence.groups,
        method=METHOD,
        level=1 - alpha,
    )


def _boundary(information: float, alpha: float, *, df: int) -> float:
    """Standard errors that a sum may be off at any time; `information` is the mixture's variance over the estimate's.

    A variance from few groups is itself uncertain: Student's t with the same tail stands in for the normal.
    """
    normal = math.sqrt((1 + 1 / information) * (math.log1p(information) - 2 * math.log(alpha)))
    tail = max(float(special.ndtr(-normal)), TAIL_MIN)
    return -float(special.stdtrit(df, tail))


@dataclass(slots=True)
class _Epoch:
    began_s: Seconds
    evidence: PoolEvidence


class FadingEvidence:
    """Evidence of the last `horizon_s`: two epochs that overlap by half, each a confidence sequence of its own.

    An average that forgets bit by bit would have no such guarantee; of epochs one knows how many begin in a week.
    """

    def __init__(self, *, horizon_s: Seconds) -> None:
        self._horizon_s = horizon_s
        self._epochs: list[_Epoch] = []

    def add(self, evidence: PoolEvidence, *, now_s: Seconds) -> None:
        self._epochs = [epoch for epoch in self._epochs if now_s - epoch.began_s < self._horizon_s]
        if not self._epochs or now_s - self._epochs[-1].began_s >= self._horizon_s / 2:
            self._epochs.append(_Epoch(began_s=now_s, evidence=no_evidence()))
        for epoch in self._epochs:
            epoch.evidence = epoch.evidence + evidence

    def clear(self) -> None:
        self._epochs = []

    @property
    def newest_first(self) -> tuple[PoolEvidence, ...]:
        return tuple(epoch.evidence for epoch in reversed(self._epochs))
