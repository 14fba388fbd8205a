"""What a running server says of itself at one moment, and what it did between two of them.

Engines count under names of their own; from here on a quantity has one name. None is what a server does not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from speclift.core.results import Estimate, Finding
from speclift.core.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Observations by upper bound, cumulative as Prometheus has them; the last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    # Of all that was observed, where it is told: buckets are often too wide to say more than a mean does.
    sum: float | None = None

    @property
    def total(self) -> float:
        return self.counts[-1] if self.counts else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTotals:
    """What a server counted since it started."""

    # Of answers, the first token of each included, and how many answers began (or ended, where only that is told).
    tokens: float | None = None
    requests: float | None = None
    # Steps that verified a draft, tokens drafted and accepted; `accepted_at` by position.
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    accepted_at: tuple[float, ...] = ()
    # All decode steps of all requests, where the engine counts them.
    steps: float | None = None
    prompt_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    # Time spent decoding, where no histogram tells the time per token.
    decode_s: float | None = None
    ttft: Buckets | None = None
    tpot: Buckets | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReading:
    """One page of metrics."""

    # On a clock that never jumps, and on the wall's.
    at_s: Seconds
    wall_s: Seconds
    engine: str
    totals: LiveTotals
    version: str | None = None
    model: str | None = None
    # When the process began that wrote this page, where it says so: which of several it is, too.
    started_s: Seconds | None = None
    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    # Tokens per draft, where the engine says so; otherwise as many as there are positions.
    k: int | None = None
    # Of the last moments, from engines that count no steps.
    accepted_length: float | None = None


class Event(StrEnum):
    """What happened between two readings, so that counters on both sides of it are not compared."""

    RESTART = "restart"
    UPGRADE = "upgrade"
    COUNTER_RESET = "counter-reset"
    K_CHANGED = "k-changed"
    REPLICAS = "replicas"
    GAP = "gap"
    CLOCK_JUMP = "clock-jump"
    UNREACHABLE = "unreachable"
    IMPOSSIBLE = "impossible-counters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """What a server did between two readings of the same process."""

    from_s: Seconds
    to_s: Seconds
    totals: LiveTotals
    # Requests under way: the mean of both readings.
    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    # Decode steps, those without a draft included, and the tokens they gave; None where they cannot be known.
    steps: float | None = None
    step_tokens: float | None = None

    @property
    def seconds(self) -> Seconds:
        return self.to_s - self.from_s


class Payoff(StrEnum):
    """Does speculation pay on this server now?"""

    PAYS = "pays"
    DOES_NOT_PAY = "does-not-pay"
    UNSURE = "unsure"
    NO_TRAFFIC = "no-traffic"


class BreakEvenSource(StrEnum):
    STUDY = "study"
    GIVEN = "given"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEvenPoint:
    """Above this accepted length speculation is faster. `low` and `high` where it is a guess."""

    accepted_length: float
    low: float
    high: float
    source: BreakEvenSource
    # Requests under way over the window; None where nobody says how many.
    running: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePercentiles:
    """From a histogram's buckets where they are narrow enough to tell, and the mean, which is exact."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is known of one server after a reading, over the window before it."""

    url: str
    at_s: Seconds  # on the wall's clock
    window_s: Seconds
    payoff: Payoff
    since_s: Seconds  # when `payoff` began, on the wall's clock
    engine: str | None = None
    version: str | None = None
    model: str | None = None
    accepted_length: Estimate | None = None
    acceptance_rate: float | None = None
    per_position: tuple[float, ...] = ()
    drafts: float | None = None
    break_even: BreakEvenPoint | None = None
    ttft_s: LivePercentiles = LivePercentiles()
    tpot_s: LivePercentiles = LivePercentiles()
    tokens_s: float | None = None
    requests_s: float | None = None
    prompt_tokens_per_request: float | None = None
    tokens_per_request: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    prefix_hit_rate: float | None = None
    events: tuple[Event, ...] = ()
    findings: tuple[Finding, ...] = ()
    # Why the server could not be read; empty where it was.
    unreachable: str = ""
