"""A running server's own counts at one moment and between two, and the document of a look at it.

Engines count under names of their own; from here on a quantity has one name. None is what a server does not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from speclift.core.answer import ShortAnswer
from speclift.core.document import Document
from speclift.core.results import Finding
from speclift.core.units import Seconds

# Of a look whose answer is not worded yet.
NO_ANSWER = ShortAnswer(sentence="", because=())


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
    """Counters of a server since it started."""

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
    """An event between two readings, so that counters on both sides of it are not compared."""

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
    """Counts between two readings of the same process."""

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


class BreakEvenPoint(Document, frozen=True, kw_only=True):
    """Above this accepted length speculation is faster. `low` and `high` are its bounds where it is a guess."""

    accepted_length: float
    source: BreakEvenSource
    low: float
    # null where there is no bound: the load is beyond what was measured.
    high: float | None
    # Requests under way over the window; null where nobody says how many.
    running: float | None = None


class LivePercentiles(Document, frozen=True, kw_only=True):
    """Percentiles from buckets that are narrow enough, and the exact mean."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean: float | None = None


class LiveEstimate(Document, frozen=True, kw_only=True):
    """An accepted length with its interval; `level` says how sure the bounds are."""

    value: float
    low: float
    high: float
    level: float
    scrapes: int


class Watched(Document, frozen=True, kw_only=True):
    """The document of `watch --json`: one server after a look, over the window before it."""

    schema: Literal[1] = 1
    url: str
    engine: str | None = None
    version: str | None = None
    model: str | None = None
    at: str
    window_s: Seconds
    verdict: Payoff
    # When `verdict` began.
    since: str
    answer: ShortAnswer = NO_ANSWER
    accepted_length: LiveEstimate | None = None
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
    # Why the server could not be read; null where it was.
    unreachable: str | None = None

    @property
    def at_s(self) -> Seconds:
        return seconds_of(self.at)

    @property
    def since_s(self) -> Seconds:
        return seconds_of(self.since)


class KeptLook(Document, frozen=True, kw_only=True):
    """The part of a look that charts show later."""

    at: str
    verdict: Payoff
    since: str
    unreachable: bool
    # What happened there, as a chart marks it: events, and an answer that is another than before.
    marks: tuple[str, ...] = ()
    accepted_length: float | None = None
    low: float | None = None
    high: float | None = None
    break_even: float | None = None
    acceptance_rate: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p95_s: float | None = None
    tokens_s: float | None = None
    running: float | None = None
    waiting: float | None = None

    @property
    def at_s(self) -> Seconds:
        return seconds_of(self.at)

    @property
    def since_s(self) -> Seconds:
        return seconds_of(self.since)


def instant(wall_s: Seconds) -> str:
    """ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(wall_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(instant: str) -> Seconds:
    """The wall clock's seconds of such a text."""
    return datetime.fromisoformat(instant).timestamp()


def rounded(value: float | None, digits: int = 6) -> float | None:
    """The value with as many digits as documents have."""
    return None if value is None else round(value, digits)


def kept_look(watched: Watched, before: KeptLook | None) -> KeptLook:
    """`before` is the look before it, where there was one."""
    length, point = watched.accepted_length, watched.break_even
    return KeptLook(
        at=watched.at,
        verdict=watched.verdict,
        since=watched.since,
        unreachable=watched.unreachable is not None,
        marks=_marks(watched, before),
        accepted_length=None if length is None else length.value,
        low=None if length is None else length.low,
        high=None if length is None else length.high,
        break_even=None if point is None else point.accepted_length,
        acceptance_rate=watched.acceptance_rate,
        ttft_p50_s=watched.ttft_s.p50,
        ttft_p95_s=watched.ttft_s.p95,
        # An engine without a histogram has a mean, which is drawn where the median would be.
        tpot_p50_s=watched.tpot_s.p50 if watched.tpot_s.p50 is not None else watched.tpot_s.mean,
        tpot_p95_s=watched.tpot_s.p95,
        tokens_s=watched.tokens_s,
        running=watched.running,
        waiting=watched.waiting,
    )


def _marks(watched: Watched, before: KeptLook | None) -> tuple[str, ...]:
    """A server that stays away is marked once."""
    events = [event.value for event in watched.events if event is not Event.UNREACHABLE]
    is_gone = watched.unreachable is not None
    if before is None or before.unreachable != is_gone:
        if is_gone:
            return (*events, Event.UNREACHABLE.value)
        if before is not None:
            events.append("reachable again")
    if before is not None and before.verdict is not watched.verdict and not is_gone:
        events.append(watched.verdict.value)
    return tuple(events)
