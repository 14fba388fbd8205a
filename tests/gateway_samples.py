"""Gateways as the page shows them: calm, without traffic, switched off, in trouble."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from routed import PLAIN_URL, SPEC_URL, routed
from speclift.core.results import Estimate
from speclift.core.routing import PoolStates, RequestEnd, RoutedRequest, ServerPool, ServerState
from speclift.routing.learning import LiveSegment, Shift, shift_of
from speclift.routing.tallies import Tallies
from speclift.views.gateway_page import GatewayBoard

NOW_S = 1_800_000_000.0
HOSTILE = "<script>alert(1)</script>\u202e\"'\\\n${x}"
POOLS = PoolStates(
    spec=(ServerState(url=SPEC_URL, running=7), ServerState(url="http://127.0.0.1:8003", running=6)),
    plain=(ServerState(url=PLAIN_URL, running=3),),
)


def estimate(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=120, method="m")


def live(segment: str, spec_share: float, low: float, value: float, high: float) -> LiveSegment:
    e2e = estimate(low, value, high)
    ttft = estimate(0.97, 1.0, 1.03)
    return LiveSegment(segment=segment, spec_share=spec_share, e2e=e2e, ttft=ttft, tpot=e2e, compared=4200)


def shift(ago_s: float, segment: str, to: ServerPool, speedup: Estimate) -> Shift:
    return shift_of(segment, to, speedup, wall_s=NOW_S - ago_s, horizon_s=3600.0)


def requests() -> list[RoutedRequest]:
    chance = random.Random(1)
    made = []
    for segment, share in (("chat", 0.05), ("rewrite", 0.95), ("summarise", 0.95), ("elsewhere", 0.0)):
        for _ in range(200):
            pool = ServerPool.SPEC if chance.random() < share else ServerPool.PLAIN
            end = RequestEnd.OK if chance.random() < 0.99 else RequestEnd.CUT
            taken_s = chance.lognormvariate(0.5, 0.6)
            made.append(
                replace(
                    routed(pool=pool, segment=segment, e2e_s=taken_s, end=end),
                    drafted=40 if pool is ServerPool.SPEC else None,
                    accepted=int(40 * chance.random()) if pool is ServerPool.SPEC else None,
                )
            )
    return made


def board_of(*seen: RoutedRequest, **fields: object) -> GatewayBoard:
    tallies = Tallies()
    for request in seen:
        tallies.note(request, now_s=1000.0)
    made = GatewayBoard(
        version="0.2.0",
        at_s=NOW_S,
        since_s=NOW_S - 7200.0,
        now_s=1000.0,
        tallies=tallies,
        pools=POOLS,
        policy="studies/mine",
        canary=0.05,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def calm() -> GatewayBoard:
    return board_of(
        *requests(),
        segments=(
            live("chat", 0.05, 0.82, 0.9, 0.98),
            live("rewrite", 0.95, 1.35, 1.42, 1.5),
            live("summarise", 0.95, 0.98, 1.06, 1.14),
            LiveSegment(segment="elsewhere", spec_share=0.0, compared=3),
        ),
        shifts=(
            shift(4000, "chat", ServerPool.PLAIN, estimate(0.8, 0.89, 0.97)),
            shift(400, "rewrite", ServerPool.SPEC, estimate(1.1, 1.3, 1.5)),
        ),
        shift_counts={ServerPool.PLAIN: 1, ServerPool.SPEC: 1},
    )


def paying() -> GatewayBoard:
    return replace(calm(), segments=(live("rewrite", 0.95, 1.35, 1.42, 1.5),), shifts=())


def unmeasured() -> GatewayBoard:
    return replace(
        calm(),
        canary=0.0,
        segments=(LiveSegment(segment="chat", spec_share=0.05, compared=3),),
        shifts=(),
        policy=None,
    )


def untouched() -> GatewayBoard:
    return board_of()


def switched() -> GatewayBoard:
    return replace(calm(), pools=replace(POOLS, is_plain_only=True))


def held_back() -> GatewayBoard:
    return replace(
        calm(), pools=replace(POOLS, against_spec="accepted length 1.21 [1.15, 1.28], break-even 1.6")
    )


def all_down() -> GatewayBoard:
    down = tuple(replace(state, is_up=False) for state in POOLS.spec)
    return replace(calm(), pools=PoolStates(spec=down, plain=(ServerState(url=PLAIN_URL, is_up=False),)))


def hostile() -> GatewayBoard:
    moved = shift(4000, HOSTILE, ServerPool.PLAIN, estimate(0.8, 0.89, 0.97))
    return board_of(
        routed(segment=HOSTILE),
        segments=(live(HOSTILE, 0.05, 0.8, 0.9, 0.95),),
        shifts=(moved,),
        policy=HOSTILE,
        pools=replace(POOLS, against_spec=HOSTILE),
    )


BOARDS: dict[str, Callable[[], GatewayBoard]] = {
    each.__name__: each
    for each in (calm, paying, unmeasured, untouched, switched, held_back, all_down, hostile)
}
