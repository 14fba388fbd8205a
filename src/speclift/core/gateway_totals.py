"""What a gateway has counted since it began, and what its last requests took. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from speclift.core.results import Percentiles
from speclift.core.routing import RequestEnd, ServerPool
from speclift.core.units import Tokens

# What a segment is called that is one too many: labels of a metric must be few, and callers may choose names.
OTHER_SEGMENT = "other"


class TallyKey(NamedTuple):
    """One class of requests; `pool` is None where nobody answered."""

    pool: ServerPool | None
    segment: str
    temperature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeHistogram:
    """Counts up to and with each edge, and above the last."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyTotals:
    """Of one class of requests."""

    ends: Mapping[RequestEnd, int]
    ttft_s: TimeHistogram
    tpot_s: TimeHistogram
    e2e_s: TimeHistogram
    prompt_tokens: Tokens
    output_tokens: Tokens
    drafted: Tokens
    accepted: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentTimes:
    """Of the last requests of a segment in a pool, so many of each at most."""

    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTotals:
    requests: int
    output_tokens: Tokens
    # Over the last minute.
    tokens_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTotals:
    classes: Mapping[TallyKey, TallyTotals]
    recent: Mapping[tuple[ServerPool, str], RecentTimes]
    servers: Mapping[str, ServerTotals]
    # Servers that were asked beyond each request's first.
    retries: int
    canaries: Mapping[ServerPool, int]
    # What decided where requests went, in a word each.
    reasons: Mapping[str, int]
