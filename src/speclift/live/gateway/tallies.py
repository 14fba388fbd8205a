"""What a gateway counts of the requests that ended: by pool, segment and temperature, within bounds whatever callers
send."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable

import numpy as np

from speclift.core.gateway_totals import (
    OTHER_SEGMENT,
    GatewayTotals,
    RecentTimes,
    ServerTotals,
    TallyKey,
    TallyTotals,
    TimeHistogram,
)
from speclift.core.results import Percentiles
from speclift.core.routing import RequestEnd, RoutedRequest, ServerPool
from speclift.core.units import Seconds, Tokens
from speclift.statistics.cells import P99_REQUESTS_MIN
from speclift.statistics.temperatures import temperature_bucket

# vLLM's own edges (0.32, recorded in tests/recorded), so that both can be laid over one another; beside them smaller
# ones per token, which small models and accepted drafts need.
TTFT_EDGES_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TPOT_EDGES_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_EDGES_S = (
    *(0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
# A policy has a handful of segments. With both pools and six temperatures, so many make some 25,000 series.
SEGMENTS_MAX = 30
SERVERS_MAX = 500
# Of a segment in a pool, for percentiles of the moment.
RECENT_MAX = 500
TOKENS_WINDOW_S = 60
# What a reason of a route begins with, and what it is called in metrics. The last one that holds decided.
REASON_WORDS = (
    ("switched", "switched"),
    ("spec does not pay", "counters-against"),
    ("live traffic taught", "learned"),
    ("canary", "canary"),
    ("load", "load"),
    ("session: its prefix", "session"),
    ("no server", "down"),
)
POLICY_REASON = "policy"


class Tallies:
    def __init__(self) -> None:
        self._classes: dict[TallyKey, _Tally] = {}
        self._segments: set[str] = set()
        self._recent: dict[tuple[ServerPool, str], _Recent] = {}
        self._servers: dict[str, _ServerTally] = {}
        self._retries = 0
        self._canaries: Counter[ServerPool] = Counter(dict.fromkeys(ServerPool, 0))
        self._reasons: Counter[str] = Counter()

    def note(self, request: RoutedRequest, *, now_s: Seconds) -> None:
        """A request that ended. What is passed on unread is counted by its end alone."""
        segment = self._segment(request.route.segment)
        key = TallyKey(request.pool, segment, temperature_bucket(request.features.temperature))
        self._classes.setdefault(key, _Tally()).note(request)
        self._retries += max(request.attempts - 1, 0)
        self._reasons[reason_word(request)] += 1
        if request.route.is_canary:
            self._canaries[request.route.pool] += 1
        if request.pool is not None and request.features.is_generation and request.end is RequestEnd.OK:
            self._recent.setdefault((request.pool, segment), _Recent()).note(request)
        if request.server is not None and (
            request.server in self._servers or len(self._servers) < SERVERS_MAX
        ):
            tally = self._servers.setdefault(request.server, _ServerTally())
            tally.note(request.output_tokens or 0, now_s=now_s)

    def totals(self, *, now_s: Seconds) -> GatewayTotals:
        return GatewayTotals(
            classes={key: tally.totals() for key, tally in self._classes.items()},
            recent={key: recent.times() for key, recent in self._recent.items()},
            servers={url: tally.totals(now_s=now_s) for url, tally in self._servers.items()},
            retries=self._retries,
            canaries=dict(self._canaries),
            reasons=dict(self._reasons),
        )

    def _segment(self, name: str) -> str:
        if name not in self._segments:
            if len(self._segments) >= SEGMENTS_MAX:
                return OTHER_SEGMENT
            self._segments.add(name)
        return name


def reason_word(request: RoutedRequest) -> str:
    for reason in reversed(request.route.reasons):
        for start, word in REASON_WORDS:
            # A load that was looked at and found light decided nothing.
            if reason.startswith(start) and (word != "load" or reason.endswith(ServerPool.PLAIN)):
                return word
    return POLICY_REASON


class _Histogram:
    __slots__ = ("_counts", "_edges", "_sum_s")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum_s = 0.0

    def add(self, value_s: Seconds | None) -> None:
        if value_s is not None and value_s >= 0:
            self._counts[bisect_left(self._edges, value_s)] += 1
            self._sum_s += value_s

    def read(self) -> TimeHistogram:
        return TimeHistogram(edges=self._edges, counts=tuple(self._counts), sum_s=self._sum_s)


class _Tally:
    def __init__(self) -> None:
        self._ends: Counter[RequestEnd] = Counter()
        self._ttft, self._tpot, self._e2e = map(_Histogram, (TTFT_EDGES_S, TPOT_EDGES_S, E2E_EDGES_S))
        self._tokens: Counter[str] = Counter()

    def note(self, request: RoutedRequest) -> None:
        self._ends[request.end] += 1
        self._tokens["prompt"] += request.prompt_tokens or 0
        self._tokens["output"] += request.output_tokens or 0
        self._tokens["drafted"] += request.drafted or 0
        self._tokens["accepted"] += request.accepted or 0
        if request.features.is_generation and request.end is RequestEnd.OK:
            self._ttft.add(request.ttft_s)
            self._tpot.add(request.tpot_s)
            self._e2e.add(request.e2e_s)

    def totals(self) -> TallyTotals:
        return TallyTotals(
            ends=dict(self._ends),
            ttft_s=self._ttft.read(),
            tpot_s=self._tpot.read(),
            e2e_s=self._e2e.read(),
            prompt_tokens=self._tokens["prompt"],
            output_tokens=self._tokens["output"],
            drafted=self._tokens["drafted"],
            accepted=self._tokens["accepted"],
        )


class _Recent:
    def __init__(self) -> None:
        self._ttft, self._tpot, self._e2e = (deque[Seconds](maxlen=RECENT_MAX) for _ in range(3))

    def note(self, request: RoutedRequest) -> None:
        if request.ttft_s is not None:
            self._ttft.append(request.ttft_s)
        if request.tpot_s is not None:
            self._tpot.append(request.tpot_s)
        self._e2e.append(request.e2e_s)

    def times(self) -> RecentTimes:
        return RecentTimes(
            ttft_s=_percentiles(self._ttft),
            tpot_s=_percentiles(self._tpot),
            e2e_s=_percentiles(self._e2e),
        )


def _percentiles(values: Collection[Seconds]) -> Percentiles:
    if not values:
        return Percentiles(p50=None, p95=None, p99=None)
    p50, p95, p99 = (float(value) for value in np.percentile(list(values), (50, 95, 99)))
    return Percentiles(p50=p50, p95=p95, p99=p99 if len(values) >= P99_REQUESTS_MIN else None)


class _ServerTally:
    """Output tokens by the second, for the last minute."""

    def __init__(self) -> None:
        self._requests, self._tokens = 0, 0
        self._seconds: deque[tuple[int, Tokens]] = deque(maxlen=TOKENS_WINDOW_S)

    def note(self, tokens: Tokens, *, now_s: Seconds) -> None:
        self._requests += 1
        self._tokens += tokens
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] >= second:
            last, so_far = self._seconds.pop()
            self._seconds.append((last, so_far + tokens))
        else:
            self._seconds.append((second, tokens))

    def totals(self, *, now_s: Seconds) -> ServerTotals:
        recent: Iterable[Tokens] = (
            tokens for second, tokens in self._seconds if second > now_s - TOKENS_WINDOW_S - 1
        )
        return ServerTotals(
            requests=self._requests, output_tokens=self._tokens, tokens_s=sum(recent) / TOKENS_WINDOW_S
        )
