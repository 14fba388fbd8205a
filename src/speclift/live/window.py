"""What the increments of a window say together. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from speclift.core.live import Buckets, Increment, LivePercentiles, LiveTotals
from speclift.core.units import Seconds

# A percentile is told from so many requests on: fewer have no slowest hundredth, twentieth or half.
PERCENTILES = {"p50": (0.50, 2), "p95": (0.95, 20), "p99": (0.99, 100)}
_COUNTED = (
    *("tokens", "requests", "drafts", "drafted", "accepted"),
    *("prompt_tokens", "prefix_hits", "prefix_queries"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSums:
    seconds: Seconds
    # None where the engine does not count it.
    tokens: float | None
    requests: float | None
    drafts: float | None
    acceptance_rate: float | None
    # Drafts accepted as far as each position, as a share.
    per_position: tuple[float, ...]
    prompt_tokens: float | None
    prefix_hit_rate: float | None
    running: float | None
    waiting: float | None
    kv_used: float | None
    ttft_s: LivePercentiles
    tpot_s: LivePercentiles

    @property
    def has_traffic(self) -> bool:
        return bool(self.tokens)


def sums_of(increments: Sequence[Increment]) -> LiveSums:
    totals = [increment.totals for increment in increments]
    counted = {name: _sum(getattr(each, name) for each in totals) for name in _COUNTED}
    return LiveSums(
        seconds=sum(increment.seconds for increment in increments),
        tokens=counted["tokens"],
        requests=counted["requests"],
        drafts=counted["drafts"],
        acceptance_rate=_ratio(counted["accepted"], counted["drafted"]),
        per_position=_shares(totals),
        prompt_tokens=counted["prompt_tokens"],
        prefix_hit_rate=_ratio(counted["prefix_hits"], counted["prefix_queries"]),
        running=_mean((each.running, each.seconds) for each in increments),
        waiting=_mean((each.waiting, each.seconds) for each in increments),
        kv_used=max((each.kv_used for each in increments if each.kv_used is not None), default=None),
        ttft_s=percentiles_of([each.ttft for each in totals]),
        tpot_s=_time_per_token(totals),
    )


def percentiles_of(buckets: Sequence[Buckets | None]) -> LivePercentiles:
    known = [each for each in buckets if each is not None]
    # A server that was given other bounds is another server; the newest counts.
    alike = [each for each in known if each.bounds == known[-1].bounds]
    if not alike:
        return LivePercentiles()
    bounds = alike[-1].bounds
    counts = tuple(map(sum, zip(*(each.counts for each in alike), strict=True)))
    together = Buckets(bounds=bounds, counts=counts, sum=_sum(each.sum for each in alike))
    found = {
        name: _quantile(together, share)
        for name, (share, least) in PERCENTILES.items()
        if together.total >= least
    }
    return LivePercentiles(**found, mean=_ratio(together.sum, together.total))


def _quantile(buckets: Buckets, share: float) -> float | None:
    """Linear within the bucket, as Prometheus does it; but None in the last one, which has no end, and in the first,
    which may begin far below: vLLM's first time per token is anything up to 10 ms."""
    rank = share * buckets.total
    edges = pairwise((0.0, *buckets.bounds))
    below = 0.0
    for (lower, upper), count in zip(edges, buckets.counts, strict=True):
        if count >= rank and count > below:
            is_open = math.isinf(upper) or lower == 0
            return None if is_open else lower + (upper - lower) * (rank - below) / (count - below)
        below = count
    return None


def _time_per_token(totals: Sequence[LiveTotals]) -> LivePercentiles:
    if any(each.tpot is not None for each in totals):
        return percentiles_of([each.tpot for each in totals])
    return LivePercentiles(
        mean=_ratio(_sum(each.decode_s for each in totals), _sum(each.tokens for each in totals))
    )


def _shares(totals: Sequence[LiveTotals]) -> tuple[float, ...]:
    """Of the drafts in pages that tell positions."""
    telling = [each for each in totals if each.accepted_at and each.drafts is not None]
    positions = min((len(each.accepted_at) for each in telling), default=0)
    drafts = sum(each.drafts or 0.0 for each in telling)
    if not drafts:
        return ()
    return tuple(sum(each.accepted_at[index] for each in telling) / drafts for index in range(positions))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    if total <= 0:
        return known[-1][0] if known else None
    return sum(value * weight for value, weight in known) / total
