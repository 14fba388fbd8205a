"""Drive requests at a load. Open loops stay open: a late answer never delays the next request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from speclift.client.client import Client, Order
from speclift.client.clock import now_s
from speclift.core.records import Record, TurnHealth
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.workload.arrivals import arrival_offsets

# A little time between handing over the orders and the first intended send, so that the first is not late.
OPEN_LOOP_LEAD_S = 0.05

__all__ = ["Order", "run_turn"]


async def run_turn(
    client: Client,
    orders: Sequence[Order],
    load: Load,
    *,
    seed: int,
    on_record: Callable[[Record], None],
    together: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> TurnHealth:
    """Send every order at `load`; `on_record` gets each record as it completes, those that come together inside
    `together`.

    Where several processes share the sending, the health is that of the busiest and of the latest.
    """
    started = time.perf_counter()
    match load:
        case Concurrency(streams=streams):
            fared = await client.play(orders, streams=streams, on_record=on_record, together=together)
        case Rate():
            offsets = arrival_offsets(load, [order.request for order in orders], seed=seed)
            start_s = now_s() + OPEN_LOOP_LEAD_S
            by_time = sorted(range(len(orders)), key=offsets.__getitem__)
            fared = await client.play(
                [orders[place] for place in by_time],
                due_s=[start_s + offsets[place] for place in by_time],
                on_record=on_record,
                together=together,
            )
    return TurnHealth(
        load=load,
        loop_lag_p99_s=max(done.lag_p99_s for done in fared),
        cpu_s=max(done.cpu_s for done in fared),
        wall_s=time.perf_counter() - started,
        stamp_blur_p99_s=max(done.blur_p99_s for done in fared),
    )
