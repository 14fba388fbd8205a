"""What the increments of a window say together. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from speclift.core.live import Buckets, Increment, LivePercentiles
from speclift.core.units import Seconds

# A percentile is told from so many requests on: fewer have no slowest hundredth, twentieth or half.
PERCENTILES = {"p50": (0.50, 2), "p95": (0.95, 20), "p99": (0.99, 100)}


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
    tokens, drafts = _sum(t.tokens for t in totals), _sum(t.drafts for t in totals)
    accepted, drafted = _sum(t.accepted for t in totals), _sum(t.drafted for t in totals)
    return LiveSums(
        seconds=sum(increment.seconds for increment in increments),
        tokens=tokens,
        requests=_sum(t.requests for t in totals),
        drafts=drafts,
        acceptance_rate=_ratio(accepted, drafted),
        per_position=_shares([t.accepted_at for t in totals], drafts),
        prompt_tokens=_sum(t.prompt_tokens for t in totals),
        prefix_hit_rate=_ratio(_sum(t.prefix_hits for t in totals), _sum(t.prefix_queries for t in totals)),
        running=_mean((each.running, each.seconds) for each in increments),
        waiting=_mean((each.waiting, each.seconds) for each in increments),
        kv_used=max((each.kv_used for each in increments if each.kv_used is not None), default=None),
        ttft_s=percentiles_of([t.ttft for t in totals]),
        tpot_s=_time_per_token(increments),
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


def _time_per_token(increments: Sequence[Increment]) -> LivePercentiles:
    found = percentiles_of([each.totals.tpot for each in increments])
    if any(each.totals.tpot is not None for each in increments):
        return found
    return LivePercentiles(
        mean=_ratio(
            _sum(each.totals.decode_s for each in increments), _sum(each.totals.tokens for each in increments)
        )
    )


def _shares(by_position: Sequence[tuple[float, ...]], drafts: float | None) -> tuple[float, ...]:
    positions = max((len(each) for each in by_position), default=0)
    if not drafts or not positions:
        return ()
    reached = [sum(each[index] for each in by_position if len(each) > index) for index in range(positions)]
    return tuple(count / drafts for count in reached)


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
