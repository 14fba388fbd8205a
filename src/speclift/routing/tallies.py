"""Counts of the requests that a gateway ended, by pool, segment and temperature, within bounds whatever callers
send. Pure: times come in."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from speclift.core.live import LivePercentiles
from speclift.core.routing import RequestEnd, RoutedRequest, ServerPool
from speclift.core.units import Seconds, Tokens
from speclift.statistics.cells import P99_REQUESTS_MIN
from speclift.statistics.temperatures import temperature_bucket

# What a segment is called that is one too many: labels of a metric must be few, and callers may choose names.
OTHER_SEGMENT = "other"
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


class TallyKey(NamedTuple):
    """One class of requests; `pool` is None where nobody answered."""

    pool: ServerPool | None
    segment: str
    temperature: str


class TimeHistogram:
    """Counts up to and with each edge, and above the last."""

    __slots__ = ("counts", "edges", "sum_s")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum_s = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value_s: Seconds | None) -> None:
        if value_s is not None and value_s >= 0:
            self.counts[bisect_left(self.edges, value_s)] += 1
            self.sum_s += value_s


class Tally:
    """One class of requests; times are those of generations that went well."""

    def __init__(self) -> None:
        self.ends: Counter[RequestEnd] = Counter()
        self.ttft_s, self.tpot_s, self.e2e_s = map(TimeHistogram, (TTFT_EDGES_S, TPOT_EDGES_S, E2E_EDGES_S))
        self.prompt_tokens = self.output_tokens = self.drafted = self.accepted = 0

    def note(self, request: RoutedRequest) -> None:
        self.ends[request.end] += 1
        self.prompt_tokens += request.prompt_tokens or 0
        self.output_tokens += request.output_tokens or 0
        self.drafted += request.drafted or 0
        self.accepted += request.accepted or 0
        if request.features.is_generation and request.end is RequestEnd.OK:
            self.ttft_s.add(request.ttft_s)
            self.tpot_s.add(request.tpot_s)
            self.e2e_s.add(request.e2e_s)


class RecentTimes:
    """Times of the last requests of a segment in a pool."""

    def __init__(self) -> None:
        self._ttft, self._tpot, self._e2e = (deque[Seconds](maxlen=RECENT_MAX) for _ in range(3))

    def note(self, request: RoutedRequest) -> None:
        if request.ttft_s is not None:
            self._ttft.append(request.ttft_s)
        if request.tpot_s is not None:
            self._tpot.append(request.tpot_s)
        self._e2e.append(request.e2e_s)

    @property
    def ttft_s(self) -> LivePercentiles:
        return _percentiles(self._ttft)

    @property
    def tpot_s(self) -> LivePercentiles:
        return _percentiles(self._tpot)

    @property
    def e2e_s(self) -> LivePercentiles:
        return _percentiles(self._e2e)


class ServerTally:
    """Requests, and output tokens by the second for the last minute."""

    def __init__(self) -> None:
        self.requests = self.output_tokens = 0
        self._seconds: deque[tuple[int, Tokens]] = deque(maxlen=TOKENS_WINDOW_S)

    def note(self, tokens: Tokens, *, now_s: Seconds) -> None:
        self.requests += 1
        self.output_tokens += tokens
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] >= second:
            last, so_far = self._seconds.pop()
            self._seconds.append((last, so_far + tokens))
        else:
            self._seconds.append((second, tokens))

    def tokens_s(self, *, now_s: Seconds) -> float:
        recent = (tokens for second, tokens in self._seconds if second > now_s - TOKENS_WINDOW_S - 1)
        return sum(recent) / TOKENS_WINDOW_S


class Tallies:
    def __init__(self) -> None:
        self.classes: dict[TallyKey, Tally] = {}
        self.recent: dict[tuple[ServerPool, str], RecentTimes] = {}
        self.servers: dict[str, ServerTally] = {}
        # Servers that were asked beyond each request's first.
        self.retries = 0
        self.canaries: Counter[ServerPool] = Counter(dict.fromkeys(ServerPool, 0))
        # What decided where requests went, in a word each.
        self.reasons: Counter[str] = Counter()
        self._segments: set[str] = set()

    def note(self, request: RoutedRequest, *, now_s: Seconds) -> None:
        """A request that ended. What is passed on unread is counted by its end alone."""
        segment = self._segment(request.route.segment)
        key = TallyKey(request.pool, segment, temperature_bucket(request.features.temperature))
        self.classes.setdefault(key, Tally()).note(request)
        self.retries += max(request.attempts - 1, 0)
        self.reasons[reason_word(request)] += 1
        if request.route.is_canary:
            self.canaries[request.route.pool] += 1
        if request.pool is not None and request.features.is_generation and request.end is RequestEnd.OK:
            self.recent.setdefault((request.pool, segment), RecentTimes()).note(request)
        if request.server is not None and (request.server in self.servers or len(self.servers) < SERVERS_MAX):
            tally = self.servers.setdefault(request.server, ServerTally())
            tally.note(request.output_tokens or 0, now_s=now_s)

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


def _percentiles(values: Collection[Seconds]) -> LivePercentiles:
    if not values:
        return LivePercentiles()
    p50, p95, p99 = (float(value) for value in np.percentile(list(values), (50, 95, 99)))
    return LivePercentiles(
        p50=p50,
        p95=p95,
        p99=p99 if len(values) >= P99_REQUESTS_MIN else None,
        mean=sum(values) / len(values),
    )
