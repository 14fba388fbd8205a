"""Gateways as the page shows them: calm, without traffic, switched off, in trouble."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from routed import PLAIN_URL, SPEC_URL, routed
from speclift.core.results import Estimate
from speclift.core.routing import PoolStates, RequestEnd, RoutedRequest, ServerPool, ServerState
from speclift.live.gateway.tallies import Tallies
from speclift.routing.learning import LiveSpeedups, Shift
from speclift.views.gateway_document import GatewayBoard

NOW_S = 1_800_000_000.0
HOSTILE = "<script>alert(1)</script>\u202e\"'\\\n${x}"
POOLS = PoolStates(
    spec=(ServerState(url=SPEC_URL, running=7), ServerState(url="http://127.0.0.1:8003", running=6)),
    plain=(ServerState(url=PLAIN_URL, running=3),),
)


def estimate(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=120, method="m")


def live(low: float, value: float, high: float) -> LiveSpeedups:
    e2e = estimate(low, value, high)
    return LiveSpeedups(e2e=e2e, ttft=estimate(0.97, 1.0, 1.03), tpot=e2e, requests=4200)


NOTHING_LIVE = LiveSpeedups(e2e=None, ttft=None, tpot=None, requests=3)


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
        totals=tallies.totals(now_s=1000.0),
        pools=POOLS,
        policy="studies/mine",
        canary=0.05,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def calm() -> GatewayBoard:
    return board_of(
        *requests(),
        shares={"chat": 0.05, "rewrite": 0.95, "summarise": 0.95, "elsewhere": 0.0},
        live={
            "chat": live(0.82, 0.9, 0.98),
            "rewrite": live(1.35, 1.42, 1.5),
            "summarise": live(0.98, 1.06, 1.14),
            "elsewhere": NOTHING_LIVE,
        },
        shifts=(
            Shift(
                at_s=NOW_S - 4000,
                segment="chat",
                to=ServerPool.PLAIN,
                speedup=estimate(0.8, 0.89, 0.97),
                horizon_s=3600.0,
            ),
            Shift(
                at_s=NOW_S - 400,
                segment="rewrite",
                to=ServerPool.SPEC,
                speedup=estimate(1.1, 1.3, 1.5),
                horizon_s=3600.0,
            ),
        ),
        shift_counts={ServerPool.PLAIN: 1, ServerPool.SPEC: 1},
    )


def paying() -> GatewayBoard:
    return replace(calm(), live={"rewrite": live(1.35, 1.42, 1.5)}, shifts=())


def unmeasured() -> GatewayBoard:
    return replace(calm(), canary=0.0, live={"chat": NOTHING_LIVE}, shifts=(), policy=None)


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
    shift = replace(calm().shifts[0], segment=HOSTILE)
    return board_of(
        routed(segment=HOSTILE),
        live={HOSTILE: live(0.8, 0.9, 0.95)},
        shares={HOSTILE: 0.05},
        shifts=(shift,),
        policy=HOSTILE,
        pools=replace(POOLS, against_spec=HOSTILE),
    )


BOARDS: dict[str, Callable[[], GatewayBoard]] = {
    each.__name__: each
    for each in (calm, paying, unmeasured, untouched, switched, held_back, all_down, hostile)
}
