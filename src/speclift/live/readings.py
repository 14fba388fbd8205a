"""A server's counts between two pages of one process, if possible ones, and over a window of them. Pure.

Counters mean something only against an earlier page of the same process. A restart, an upgrade, another number of
drafted tokens, a load balancer that answers with another replica each time: all of them look like counters that jump,
and none of them is traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from speclift.core.live import (
    Buckets,
    Event,
    Increment,
    LivePercentiles,
    LiveTotals,
    MetricsReading,
    rounded,
)
from speclift.core.units import Seconds

# Pages further apart than so many intervals leave a gap that is worth a mark.
GAP_INTERVALS = 3
# How many processes may answer in turn behind one address and still be told apart.
PROCESSES_MAX = 8
# One that does not say when it began and did not answer for so many intervals is gone: the counters of its successor
# will overtake its own.
UNSEEN_INTERVALS_MAX = 6
# Clocks are corrected by less.
CLOCK_JUMP_S = 5.0
# A process says the same each time; replicas may begin within the same second.
START_ROUNDING_S = 0.01
# No server says more tokens in a second (the largest clusters say some hundred thousand).
TOKENS_PER_S_MAX = 1e7
# A percentile is told from so many requests on: fewer have no slowest hundredth, twentieth or half.
PERCENTILES = {"p50": (0.50, 2), "p95": (0.95, 20), "p99": (0.99, 100)}
# Counters that only rise, of which two pages tell the difference and a window the sum.
_FALLING_NEVER = ("tokens", "requests", "drafts", "drafted", "accepted", "steps", "prompt_tokens", "decode_s")
_COUNTED = (*_FALLING_NEVER, "prefix_queries", "prefix_hits")


# What was counted before these is another server's, or one that drafts otherwise.
ENDINGS = frozenset({Event.RESTART, Event.UPGRADE, Event.COUNTER_RESET, Event.K_CHANGED})


class Pages:
    """The pages of one address, in their order."""

    def __init__(self, *, interval_s: Seconds) -> None:
        self.interval_s = interval_s
        # The last page of every process seen lately, the newest at the end.
        self._last: list[MetricsReading] = []

    def turn(self, page: MetricsReading) -> tuple[Increment | None, tuple[Event, ...]]:
        """The increment that the page adds, if it can be known, and the events in between."""
        newest = self._last[-1] if self._last else None
        if newest is None:
            self._keep(page, None)
            return None, ()
        before, events = self._before(page, newest)
        events = (*_clock_events(newest, page, interval_s=self.interval_s), *events)
        self._keep(page, before)
        if before is None:
            return None, events
        if _drafts_otherwise(before, page):
            return None, (*events, Event.K_CHANGED)
        increment = _increment(before, page)
        if increment is None:
            return None, (*events, Event.IMPOSSIBLE)
        return increment, events

    def _before(
        self, page: MetricsReading, newest: MetricsReading
    ) -> tuple[MetricsReading | None, tuple[Event, ...]]:
        """The page before of the same process; None, and why, where there is none."""
        possible = [last for last in self._last if _may_be_same(last, page)]
        # Of several that could be, the nearest below: counters of another process would jump.
        before = max(possible, key=lambda last: last.totals.tokens or 0.0, default=None)
        if before is newest:
            return before, ()
        if before is not None:
            return before, (Event.REPLICAS,)
        if _is_same_start(newest, page):
            return None, (Event.COUNTER_RESET,)
        if page.started_s is not None and page.started_s < newest.wall_s - CLOCK_JUMP_S and newest.started_s:
            # It was there already when the other answered.
            return None, (Event.REPLICAS,)
        is_upgrade = newest.version and page.version and newest.version != page.version
        upgraded = (Event.UPGRADE,) if is_upgrade else ()
        return None, (
            Event.RESTART,
            *upgraded,
            *((Event.K_CHANGED,) if _drafts_otherwise(newest, page) else ()),
        )

    def _keep(self, page: MetricsReading, before: MetricsReading | None) -> None:
        others = [other for other in self._last if other is not before and self._may_come_again(other, page)]
        self._last = [*others[-PROCESSES_MAX + 1 :], page]

    def _may_come_again(self, other: MetricsReading, page: MetricsReading) -> bool:
        if other.started_s is None:
            return page.at_s - other.at_s <= UNSEEN_INTERVALS_MAX * self.interval_s
        recent_s = PROCESSES_MAX * GAP_INTERVALS * self.interval_s
        return page.at_s - other.at_s <= recent_s and not _is_same_start(other, page)


def is_another_process(before: MetricsReading, page: MetricsReading) -> bool:
    """True if this page cannot be of the process that wrote the one before."""
    return not _may_be_same(before, page)


def _is_same_start(one: MetricsReading, other: MetricsReading) -> bool:
    return (
        one.started_s is not None
        and other.started_s is not None
        and abs(one.started_s - other.started_s) <= START_ROUNDING_S
    )


def _may_be_same(before: MetricsReading, page: MetricsReading) -> bool:
    if before.engine != page.engine or before.at_s >= page.at_s or _fell(before.totals, page.totals):
        return False
    if before.started_s is not None or page.started_s is not None:
        return _is_same_start(before, page)
    return True


def _fell(before: LiveTotals, after: LiveTotals) -> bool:
    pairs = ((getattr(before, name), getattr(after, name)) for name in _FALLING_NEVER)
    return any(earlier is not None and later is not None and later < earlier for earlier, later in pairs)


def _clock_events(before: MetricsReading, page: MetricsReading, *, interval_s: Seconds) -> tuple[Event, ...]:
    passed_s = page.at_s - before.at_s
    events = []
    if abs(page.wall_s - before.wall_s - passed_s) > CLOCK_JUMP_S:
        events.append(Event.CLOCK_JUMP)
    if passed_s > GAP_INTERVALS * interval_s:
        events.append(Event.GAP)
    return tuple(events)


def _drafts_otherwise(before: MetricsReading, page: MetricsReading) -> bool:
    """True if both say how many tokens they draft at a time, and not the same."""
    return bool(_k(before) and _k(page)) and _k(before) != _k(page)


def _k(page: MetricsReading) -> int:
    return page.k if page.k is not None else len(page.totals.accepted_at)


def _increment(before: MetricsReading, page: MetricsReading) -> Increment | None:
    """None where what was counted cannot be."""
    counted = _counted(before.totals, page.totals)
    seconds = page.at_s - before.at_s
    if not _is_possible(counted, seconds):
        return None
    steps, step_tokens = decoded(counted, length=_middle(before.accepted_length, page.accepted_length))
    return Increment(
        from_s=before.at_s,
        to_s=page.at_s,
        totals=counted,
        running=_middle(before.running, page.running),
        waiting=_middle(before.waiting, page.waiting),
        kv_used=page.kv_used,
        steps=steps,
        step_tokens=step_tokens,
    )


def since_start(page: MetricsReading) -> Increment:
    """All that a page counts, for whoever has only one."""
    steps, step_tokens = decoded(page.totals, length=page.accepted_length)
    seconds = page.wall_s - page.started_s if page.started_s is not None else 0.0
    return Increment(
        from_s=page.at_s - max(0.0, seconds),
        to_s=page.at_s,
        totals=page.totals,
        running=page.running,
        waiting=page.waiting,
        kv_used=page.kv_used,
        steps=steps,
        step_tokens=step_tokens,
    )


def decoded(counted: LiveTotals, *, length: float | None) -> tuple[float | None, float | None]:
    """Decode steps, those without a draft included, and their tokens: the first token of an answer is no step's.

    An engine that counts no requests (llama.cpp) has a step too many for each: its accepted length comes out low, by
    one part in as many as an answer has tokens.
    """
    if counted.tokens is None:
        return None, None
    tokens = max(0.0, counted.tokens - (counted.requests or 0.0))
    if counted.steps is not None:
        return min(counted.steps, tokens), tokens
    if counted.accepted is not None:
        # vLLM counts what was accepted beyond the end of an answer, too: a draft is a step in any case.
        steps = max(tokens - counted.accepted, counted.drafts or 0.0)
        return min(steps, tokens), tokens
    if length is not None and length >= 1:
        return tokens / length, tokens
    return None, tokens


def _counted(before: LiveTotals, after: LiveTotals) -> LiveTotals:
    return LiveTotals(
        **{name: _rise(getattr(before, name), getattr(after, name)) for name in _COUNTED},
        accepted_at=_risen_positions(before, after),
        ttft=_risen_buckets(before.ttft, after.ttft),
        tpot=_risen_buckets(before.tpot, after.tpot),
    )


def _rise(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else later - earlier


def _risen_positions(before: LiveTotals, after: LiveTotals) -> tuple[float, ...]:
    """llama.cpp shows positions from its first draft on: before it they were zero. Empty where a page lacks them."""
    earlier = before.accepted_at
    if not earlier and before.drafts == 0:
        earlier = (0.0,) * len(after.accepted_at)
    if len(earlier) != len(after.accepted_at):
        return ()
    return tuple(later - first for first, later in zip(earlier, after.accepted_at, strict=True))


def _risen_buckets(before: Buckets | None, after: Buckets | None) -> Buckets | None:
    if before is None or after is None or before.bounds != after.bounds:
        return None
    counts = tuple(later - earlier for earlier, later in zip(before.counts, after.counts, strict=True))
    if list(counts) != sorted(counts) or counts[0] < 0:
        return None
    return Buckets(bounds=after.bounds, counts=counts, sum=_rise(before.sum, after.sum))


def _is_possible(counted: LiveTotals, seconds: Seconds) -> bool:
    return not any(_impossibilities(counted, seconds))


def _impossibilities(counted: LiveTotals, seconds: Seconds) -> Iterator[bool]:
    yield any(later > earlier for earlier, later in pairwise(counted.accepted_at))
    yield any(accepted < 0 for accepted in counted.accepted_at)
    if counted.accepted is not None and counted.drafted is not None:
        yield counted.accepted > counted.drafted
    if counted.tokens is not None:
        yield counted.tokens > TOKENS_PER_S_MAX * max(seconds, 1.0)


def _middle(one: float | None, other: float | None) -> float | None:
    values = [value for value in (one, other) if value is not None]
    return sum(values) / len(values) if values else None


def summed(increments: Sequence[Increment]) -> Increment:
    """A whole window as one increment: counters add up, the load is the mean over time."""
    totals = [increment.totals for increment in increments]
    end_s = increments[-1].to_s if increments else 0.0
    return Increment(
        from_s=end_s - sum(increment.seconds for increment in increments),
        to_s=end_s,
        totals=LiveTotals(
            **{name: _sum(getattr(part, name) for part in totals) for name in _COUNTED},
            # Not every page tells them: `position_shares`.
            accepted_at=(),
            ttft=_added([part.ttft for part in totals]),
            tpot=_added([part.tpot for part in totals]),
        ),
        running=_mean((part.running, part.seconds) for part in increments),
        waiting=_mean((part.waiting, part.seconds) for part in increments),
        kv_used=max((part.kv_used for part in increments if part.kv_used is not None), default=None),
    )


def position_shares(increments: Sequence[Increment]) -> tuple[float, ...]:
    """Drafts accepted as far as each position, as a share of those in pages that tell positions."""
    totals = [increment.totals for increment in increments]
    telling = [page for page in totals if page.accepted_at and page.drafts is not None]
    positions = min((len(page.accepted_at) for page in telling), default=0)
    drafts = sum(page.drafts or 0.0 for page in telling)
    if not drafts:
        return ()
    shares = (sum(page.accepted_at[index] for page in telling) / drafts for index in range(positions))
    return tuple(round(share, 4) for share in shares)


def percentiles_of(buckets: Buckets | None) -> LivePercentiles:
    """Those that so many requests can tell."""
    if buckets is None:
        return LivePercentiles()
    values = {
        name: rounded(_quantile(buckets, share))
        for name, (share, least) in PERCENTILES.items()
        if buckets.total >= least
    }
    return LivePercentiles(**values, mean=rounded(ratio(buckets.sum, buckets.total)))


def time_per_token(totals: LiveTotals) -> LivePercentiles:
    """Percentiles, or the mean alone for an engine without a histogram."""
    if totals.tpot is not None:
        return percentiles_of(totals.tpot)
    return LivePercentiles(mean=rounded(ratio(totals.decode_s, totals.tokens)))


def ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _added(buckets: Sequence[Buckets | None]) -> Buckets | None:
    present = [histogram for histogram in buckets if histogram is not None]
    # A server that was given other bounds is another server; the newest counts.
    alike = [histogram for histogram in present if histogram.bounds == present[-1].bounds]
    if not alike:
        return None
    counts = tuple(map(sum, zip(*(histogram.counts for histogram in alike), strict=True)))
    return Buckets(bounds=alike[-1].bounds, counts=counts, sum=_sum(histogram.sum for histogram in alike))


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


def _sum(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    present = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in present)
    if total <= 0:
        return present[-1][0] if present else None
    return sum(value * weight for value, weight in present) / total
