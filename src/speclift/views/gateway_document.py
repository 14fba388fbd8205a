"""What a gateway knows at one moment, and that as JSON: the answer, servers, segments, and what moved. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal, TypedDict

from speclift.core.address import shown
from speclift.core.answer import ShortAnswer, answered
from speclift.core.documents import AnswerDocument, BoundsDocument, answer_document
from speclift.core.gateway_totals import GatewayTotals, RecentTimes, TallyTotals
from speclift.core.quantities import printable
from speclift.core.results import Estimate, Percentiles
from speclift.core.routing import PoolStates, RequestEnd, ServerPool, ServerState
from speclift.core.typed_json import Keywords
from speclift.core.units import Seconds
from speclift.routing.learning import LiveSpeedups, Shift

SEGMENT_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBoard:
    """Everything that is shown of a gateway at one moment; times on the wall's clock."""

    version: str
    at_s: Seconds
    since_s: Seconds
    totals: GatewayTotals
    pools: PoolStates
    # Where the policy is from; None without one.
    policy: str | None = None
    canary: float = 0.0
    learns: bool = False
    # By segment: the share of its requests that goes to spec now, and what live traffic says of it.
    shares: Mapping[str, float] = field(default_factory=dict)
    live: Mapping[str, LiveSpeedups] = field(default_factory=dict)
    # The oldest first.
    shifts: Sequence[Shift] = ()
    shift_counts: Mapping[ServerPool, int] = field(default_factory=dict)


class GatewayTimesDocument(TypedDict):
    p50: float | None
    p95: float | None
    p99: float | None


class GatewayServerDocument(TypedDict):
    url: str
    pool: ServerPool
    up: bool
    running: int
    requests: int
    tokens_s: float


class SegmentInPoolDocument(TypedDict):
    segment: str
    pool: ServerPool
    requests: int
    failed: int
    # Of the last requests that went well; null where there were none, or the server does not say.
    ttft_s: GatewayTimesDocument
    tpot_s: GatewayTimesDocument
    e2e_s: GatewayTimesDocument
    output_tokens: int
    acceptance_rate: Annotated[float | None, Keywords(minimum=0, maximum=1)]


class LiveSegmentDocument(TypedDict):
    """Speedups are time in plain over time in spec, at any time; null where too little is known."""

    segment: str
    spec_share: Annotated[float | None, Keywords(minimum=0, maximum=1)]
    e2e: BoundsDocument | None
    ttft: BoundsDocument | None
    tpot: BoundsDocument | None
    # Requests that had a counterpart of their class in the other pool.
    compared: int


class ShiftDocument(TypedDict):
    at: str
    segment: str
    to: ServerPool
    speedup: BoundsDocument
    words: str


class GatewayDocument(TypedDict):
    schema: Literal[1]
    at: str
    since: str
    answer: AnswerDocument
    # Of the generations that were answered since it began; null where there were none.
    spec_share: Annotated[float | None, Keywords(minimum=0, maximum=1)]
    requests: int
    failed: int
    plain_only: bool
    # Why speculation is held back by what its servers count themselves; "" where it is not.
    against_spec: str
    policy: str | None
    canary: float
    learn: bool
    retries: int
    # By what decided.
    reasons: dict[str, int]
    servers: list[GatewayServerDocument]
    segments: list[LiveSegmentDocument]
    by_pool: list[SegmentInPoolDocument]
    # The newest first.
    shifts: list[ShiftDocument]


def gateway_document(board: GatewayBoard) -> GatewayDocument:
    totals, pools = board.totals, board.pools
    ends = _ends(totals)
    names = sorted({key.segment for key in totals.classes} | set(board.live))
    return {
        "schema": 1,
        "at": _moment(board.at_s),
        "since": _moment(board.since_s),
        "answer": answer_document(gateway_answer(board)),
        "spec_share": spec_share(totals),
        "requests": ends.total(),
        "failed": ends.total() - ends[RequestEnd.OK] - ends[RequestEnd.LEFT],
        "plain_only": pools.is_plain_only,
        "against_spec": pools.against_spec,
        "policy": board.policy,
        "canary": board.canary,
        "learn": board.learns,
        "retries": totals.retries,
        "reasons": dict(totals.reasons),
        "servers": [_server(state, pool, totals) for pool in ServerPool for state in pools.of(pool)],
        "segments": [_segment(name, board) for name in names if name in board.live],
        "by_pool": [row for name in names for pool in ServerPool for row in _in_pool(name, pool, totals)],
        "shifts": [_shift(shift) for shift in reversed(board.shifts)],
    }


def gateway_answer(board: GatewayBoard) -> ShortAnswer:
    """What share of the traffic is on the speculative pool, and what it gains there."""
    share = spec_share(board.totals)
    if not any(state.is_up for pool in ServerPool for state in board.pools.of(pool)):
        return answered("No server answers.", [])
    if board.pools.is_plain_only:
        sentence = "Everything goes to plain: the switch is on."
    elif board.pools.against_spec:
        sentence = "Everything goes to plain: speculation does not pay at present."
    elif share is None:
        return answered("No request was answered yet.", [])
    else:
        sentence = f"{share:.0%} of requests went to the speculative pool."
    return answered(sentence, [board.pools.against_spec, *_gains(board)])


def _gains(board: GatewayBoard) -> Iterator[str]:
    """The surest first: those whose interval lies furthest from 1."""
    known = [(name, live.e2e) for name, live in board.live.items() if live.e2e is not None]
    decided = [(name, e2e) for name, e2e in known if e2e.excludes(1.0)]
    for name, e2e in sorted(decided, key=lambda each: -max(each[1].low, 1 / each[1].high)):
        word = "faster" if e2e.low > 1 else "slower"
        label = printable(name, limit=SEGMENT_CHARACTERS)
        yield f"{label}: spec is {word} end to end, {e2e.value:.2f}x [{e2e.low:.2f}, {e2e.high:.2f}] on live traffic"
    if not board.canary:
        yield "What it gains is not measured on live traffic: that needs a canary (--canary 5%)"
    elif not decided:
        yield "On live traffic no segment is shown faster or slower yet"


def spec_share(totals: GatewayTotals) -> float | None:
    answered_by: Counter[ServerPool | None] = Counter()
    for key, tally in totals.classes.items():
        answered_by[key.pool] += tally.e2e_s.count
    both = answered_by[ServerPool.SPEC] + answered_by[ServerPool.PLAIN]
    return answered_by[ServerPool.SPEC] / both if both else None


def _ends(totals: GatewayTotals) -> Counter[RequestEnd]:
    ends: Counter[RequestEnd] = Counter()
    for tally in totals.classes.values():
        ends.update(tally.ends)
    return ends


def _server(state: ServerState, pool: ServerPool, totals: GatewayTotals) -> GatewayServerDocument:
    counted = totals.servers.get(state.url)
    return {
        "url": shown(state.url),
        "pool": pool,
        "up": state.is_up,
        "running": state.running,
        "requests": 0 if counted is None else counted.requests,
        "tokens_s": 0.0 if counted is None else counted.tokens_s,
    }


def _segment(name: str, board: GatewayBoard) -> LiveSegmentDocument:
    live = board.live[name]
    return {
        "segment": name,
        "spec_share": board.shares.get(name),
        "e2e": _bounds(live.e2e),
        "ttft": _bounds(live.ttft),
        "tpot": _bounds(live.tpot),
        "compared": live.requests,
    }


def _in_pool(name: str, pool: ServerPool, totals: GatewayTotals) -> Iterator[SegmentInPoolDocument]:
    """Nothing where the pool saw none of it."""
    tallies = [tally for key, tally in totals.classes.items() if key.segment == name and key.pool is pool]
    if not tallies:
        return
    ends: Counter[RequestEnd] = sum((Counter(tally.ends) for tally in tallies), Counter())
    unknown = Percentiles(p50=None, p95=None, p99=None)
    recent = totals.recent.get((pool, name)) or RecentTimes(ttft_s=unknown, tpot_s=unknown, e2e_s=unknown)
    yield {
        "segment": name,
        "pool": pool,
        "requests": ends.total(),
        "failed": ends.total() - ends[RequestEnd.OK] - ends[RequestEnd.LEFT],
        "ttft_s": _times(recent.ttft_s),
        "tpot_s": _times(recent.tpot_s),
        "e2e_s": _times(recent.e2e_s),
        "output_tokens": sum(tally.output_tokens for tally in tallies),
        "acceptance_rate": _acceptance(tallies),
    }


def _acceptance(tallies: Sequence[TallyTotals]) -> float | None:
    drafted = sum(tally.drafted for tally in tallies)
    return sum(tally.accepted for tally in tallies) / drafted if drafted else None


def _shift(shift: Shift) -> ShiftDocument:
    speedup = shift.speedup
    return {
        "at": _moment(shift.at_s),
        "segment": shift.segment,
        "to": shift.to,
        "speedup": {"value": speedup.value, "low": speedup.low, "high": speedup.high},
        "words": shift.words,
    }


def _bounds(estimate: Estimate | None) -> BoundsDocument | None:
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _times(times: Percentiles) -> GatewayTimesDocument:
    return {"p50": times.p50, "p95": times.p95, "p99": times.p99}


def _moment(at_s: Seconds) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
