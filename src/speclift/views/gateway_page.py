"""A gateway at one moment: as JSON, and as a web page made of that alone. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec

from speclift.core.address import shown
from speclift.core.answer import ShortAnswer, answered
from speclift.core.document import Document
from speclift.core.live import LivePercentiles
from speclift.core.quantities import duration, number, printable, seconds, share
from speclift.core.results import Bounds
from speclift.core.routing import PoolStates, RequestEnd, ServerPool, ServerState
from speclift.core.units import Seconds
from speclift.routing.learning import BLOCK_ROWS, BLOCK_S, LiveSegment, Shift, moment
from speclift.routing.tallies import Tallies, Tally
from speclift.views.charts import Forest, ratio_forest
from speclift.views.page_templates import page_template
from speclift.views.watch_page import PageFrame

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

SEGMENT_CHARACTERS = 40
SHIFTS_SHOWN = 12
# In a word each, as people say it.
REASONS = {
    "policy": "the policy",
    "canary": "the canary",
    "learned": "what live traffic taught",
    "load": "the load",
    "session": "a conversation's prefix",
    "down": "a pool that was down",
    "switched": "the switch",
    "counters-against": "the servers' own counters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBoard:
    """Everything that is shown of a gateway at one moment; times on the wall's clock."""

    version: str
    at_s: Seconds
    since_s: Seconds
    # On the clock of the tallies.
    now_s: Seconds
    tallies: Tallies
    pools: PoolStates
    # Where the policy is from; None without one.
    policy: str | None = None
    canary: float = 0.0
    learns: bool = False
    segments: Sequence[LiveSegment] = ()
    # The oldest first.
    shifts: Sequence[Shift] = ()
    shift_counts: Mapping[ServerPool, int] = field(default_factory=dict)


class GatewayServer(Document, frozen=True, kw_only=True):
    url: str
    pool: ServerPool
    up: bool
    running: int
    requests: int
    tokens_s: float


class SegmentInPool(Document, frozen=True, kw_only=True):
    segment: str
    pool: ServerPool
    requests: int
    failed: int
    # Of the last requests that went well; null where there were none, or the server does not say.
    ttft_s: LivePercentiles
    tpot_s: LivePercentiles
    e2e_s: LivePercentiles
    output_tokens: int
    acceptance_rate: Share | None


class GatewayDocument(Document, frozen=True, kw_only=True):
    """The document of /speclift/api/now."""

    schema: Literal[1] = 1
    at: str
    since: str
    answer: ShortAnswer
    # Of the generations that were answered since it began; null where there were none.
    spec_share: Share | None
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
    servers: tuple[GatewayServer, ...]
    segments: tuple[LiveSegment, ...]
    by_pool: tuple[SegmentInPool, ...]
    # The newest first.
    shifts: tuple[Shift, ...]


def gateway_document(board: GatewayBoard) -> GatewayDocument:
    tallies, pools = board.tallies, board.pools
    ends = sum((tally.ends for tally in tallies.classes.values()), Counter[RequestEnd]())
    names = sorted({key.segment for key in tallies.classes} | {live.segment for live in board.segments})
    return GatewayDocument(
        at=moment(board.at_s),
        since=moment(board.since_s),
        answer=gateway_answer(board),
        spec_share=spec_share(tallies),
        requests=ends.total(),
        failed=_failed(ends),
        plain_only=pools.is_plain_only,
        against_spec=pools.against_spec,
        policy=board.policy,
        canary=board.canary,
        learn=board.learns,
        retries=tallies.retries,
        reasons=dict(tallies.reasons),
        servers=tuple(_server(state, pool, board) for pool in ServerPool for state in pools.of(pool)),
        segments=tuple(sorted(board.segments, key=lambda live: live.segment)),
        by_pool=tuple(row for name in names for pool in ServerPool for row in _in_pool(name, pool, tallies)),
        shifts=tuple(reversed(board.shifts)),
    )


def gateway_answer(board: GatewayBoard) -> ShortAnswer:
    """The share of traffic on the speculative pool, and its gain there."""
    on_spec = spec_share(board.tallies)
    if not any(state.is_up for pool in ServerPool for state in board.pools.of(pool)):
        return answered("No server answers.", [])
    if board.pools.is_plain_only:
        sentence = "Everything goes to plain: the switch is on."
    elif board.pools.against_spec:
        sentence = "Everything goes to plain: speculation does not pay at present."
    elif on_spec is None:
        return answered("No request was answered yet.", [])
    else:
        sentence = f"{on_spec:.0%} of requests went to the speculative pool."
    return answered(sentence, [board.pools.against_spec, *_gains(board)])


def _gains(board: GatewayBoard) -> Iterator[str]:
    """The surest first: those whose interval lies furthest from 1."""
    speedups = [(live.segment, live.e2e) for live in board.segments if live.e2e is not None]
    decided = [(name, e2e) for name, e2e in speedups if e2e.excludes(1.0)]
    for name, e2e in sorted(decided, key=lambda each: -max(each[1].low, 1 / each[1].high)):
        word = "faster" if e2e.low > 1 else "slower"
        label = printable(name, limit=SEGMENT_CHARACTERS)
        yield f"{label}: spec is {word} end to end, {e2e.value:.2f}x [{e2e.low:.2f}, {e2e.high:.2f}] on live traffic"
    if not board.canary:
        yield "What it gains is not measured on live traffic: that needs a canary (--canary 5%)"
    elif not decided:
        yield "On live traffic no segment is shown faster or slower yet"


def spec_share(tallies: Tallies) -> float | None:
    answered_by: Counter[ServerPool | None] = Counter()
    for key, tally in tallies.classes.items():
        answered_by[key.pool] += tally.e2e_s.count
    both = answered_by[ServerPool.SPEC] + answered_by[ServerPool.PLAIN]
    return answered_by[ServerPool.SPEC] / both if both else None


def _failed(ends: Counter[RequestEnd]) -> int:
    return ends.total() - ends[RequestEnd.OK] - ends[RequestEnd.LEFT]


def _server(state: ServerState, pool: ServerPool, board: GatewayBoard) -> GatewayServer:
    tally = board.tallies.servers.get(state.url)
    return GatewayServer(
        url=shown(state.url),
        pool=pool,
        up=state.is_up,
        running=state.running,
        requests=0 if tally is None else tally.requests,
        tokens_s=0.0 if tally is None else tally.tokens_s(now_s=board.now_s),
    )


def _in_pool(name: str, pool: ServerPool, tallies: Tallies) -> Iterator[SegmentInPool]:
    """Nothing where the pool saw none of it."""
    classes = [tally for key, tally in tallies.classes.items() if key.segment == name and key.pool is pool]
    if not classes:
        return
    ends = sum((tally.ends for tally in classes), Counter[RequestEnd]())
    recent, nothing = tallies.recent.get((pool, name)), LivePercentiles()
    yield SegmentInPool(
        segment=name,
        pool=pool,
        requests=ends.total(),
        failed=_failed(ends),
        ttft_s=nothing if recent is None else recent.ttft_s,
        tpot_s=nothing if recent is None else recent.tpot_s,
        e2e_s=nothing if recent is None else recent.e2e_s,
        output_tokens=sum(tally.output_tokens for tally in classes),
        acceptance_rate=_acceptance(classes),
    )


def _acceptance(classes: Sequence[Tally]) -> float | None:
    drafted = sum(tally.drafted for tally in classes)
    return sum(tally.accepted for tally in classes) / drafted if drafted else None


def gateway_page(document: GatewayDocument, frame: PageFrame, *, up_s: Seconds) -> str:
    return page_template("gateway.html").render(
        frame=frame,
        d=document,
        tone=gateway_tone(document),
        facts=_facts(document, up_s),
        forest=_forest(document),
        compared_every=(f"{BLOCK_S / 60:.0f} minutes", f"{BLOCK_ROWS:,}"),
        unknown=[segment.segment for segment in document.segments if segment.e2e is None],
        rows=[_row(segment) for segment in document.by_pool],
        shifts=document.shifts[:SHIFTS_SHOWN],
        reasons=[
            (REASONS.get(word, word), count)
            for word, count in sorted(document.reasons.items(), key=lambda pair: -pair[1])
        ],
    )


def gateway_tone(document: GatewayDocument) -> str:
    """The page's tone, by the watch's names of answers."""
    if not any(server.up for server in document.servers):
        return "unreachable"
    if document.plain_only or document.against_spec:
        return "does-not-pay"
    if document.spec_share is None:
        return "no-traffic"
    decided = {
        _judged(segment.e2e.low, segment.e2e.high) for segment in document.segments if segment.e2e is not None
    }
    is_paying = "pays" in decided and "loses" not in decided
    return "pays" if is_paying else "unsure"


def _judged(low: float | None, high: float | None) -> str:
    if low is not None and low > 1:
        return "pays"
    return "loses" if high is not None and high < 1 else "unclear"


def _forest(document: GatewayDocument) -> Forest | None:
    rows: list[tuple[str, str, Bounds]] = []
    for live in document.segments:
        if live.e2e is not None:
            label = f"{live.segment}, {share(live.spec_share)} to spec"
            high = live.e2e.high if math.isfinite(live.e2e.high) else None
            bounds = Bounds(value=live.e2e.value, low=live.e2e.low, high=high)
            rows.append((label, f", {live.compared} compared", bounds))
    forest = ratio_forest(rows, 1.0, lambda bounds, _bar: _judged(bounds.low, bounds.high))
    # What is required is equal speed, which has a line of its own.
    return None if forest is None else replace(forest, bar=None)


def _facts(document: GatewayDocument, up_s: Seconds) -> list[tuple[str, str]]:
    switch = "everything to plain" if document.plain_only else "routing"
    canary = share(document.canary) if document.canary else "none"
    return [
        ("on the speculative pool", share(document.spec_share)),
        ("requests", f"{document.requests}, {document.failed} failed"),
        ("switch", switch),
        ("policy", document.policy or "none: everything to spec"),
        ("canary", canary + (", may leave the policy" if document.learn else "")),
        ("retries", str(document.retries)),
        ("up for", duration(up_s)),
        ("seen", f"{document.at[:10]} {document.at[11:19]} UTC"),
    ]


def _row(each: SegmentInPool) -> tuple[str, str, tuple[str, ...]]:
    return each.segment, each.pool.value, _cells(each)


def _cells(each: SegmentInPool) -> tuple[str, ...]:
    return (
        str(each.requests),
        str(each.failed),
        *(_times(each.ttft_s), _times(each.tpot_s), _times(each.e2e_s)),
        share(each.acceptance_rate) if each.pool is ServerPool.SPEC else "–",
        number(each.output_tokens / each.requests, 0) if each.requests else "–",
    )


def _times(times: LivePercentiles) -> str:
    if times.p50 is None:
        return "–"
    half, most = seconds(times.p50), seconds(times.p95)
    value, _, unit = half.partition(" ")
    return f"{value} / {most}" if most.endswith(f" {unit}") else f"{half} / {most}"
