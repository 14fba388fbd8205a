"""Drive requests at a load. Open loops stay open: a late answer never delays the next request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from speclift.core.records import Place, Record, TurnHealth
from speclift.core.traffic import Concurrency, Load, Rate, Request
from speclift.core.units import Seconds
from speclift.measure.client import Client, sleep_until
from speclift.measure.clock import now_s
from speclift.workload.arrivals import arrival_offsets

LOOP_PROBE_S = 0.01
# A little time between building the tasks and the first intended send, so that the first is not late.
OPEN_LOOP_LEAD_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request to send and where its record belongs."""

    request: Request
    place: Place


async def run_turn(
    client: Client, orders: Sequence[Order], load: Load, *, seed: int, on_record: Callable[[Record], None]
) -> TurnHealth:
    """Send every order at `load`; `on_record` gets each record the moment it is complete."""
    lags: list[Seconds] = []
    probe = asyncio.create_task(_probe_loop(lags))
    cpu_before, wall_before = time.process_time(), time.perf_counter()
    try:
        match load:
            case Concurrency(streams=streams):
                await _closed_loop(client, orders, streams, on_record)
            case Rate():
                await _open_loop(client, orders, load, seed, on_record)
    finally:
        probe.cancel()
    return TurnHealth(
        load=load,
        loop_lag_p99_s=float(np.percentile(lags, 99)) if lags else 0.0,
        cpu_s=time.process_time() - cpu_before,
        wall_s=time.perf_counter() - wall_before,
    )


async def _closed_loop(
    client: Client, orders: Sequence[Order], streams: int, on_record: Callable[[Record], None]
) -> None:
    waiting = iter(orders)

    async def stream() -> None:
        for order in waiting:
            on_record(await client.send(order.request, order.place, intended_s=now_s()))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(streams, len(orders))):
            group.create_task(stream())


async def _open_loop(
    client: Client, orders: Sequence[Order], load: Rate, seed: int, on_record: Callable[[Record], None]
) -> None:
    offsets = arrival_offsets(load, [order.request for order in orders], seed=seed)
    start_s = now_s() + OPEN_LOOP_LEAD_S

    async def one(order: Order, intended_s: Seconds) -> None:
        on_record(await client.send(order.request, order.place, intended_s=intended_s))

    async with asyncio.TaskGroup() as group:
        for order, offset_s in sorted(zip(orders, offsets, strict=True), key=lambda pair: pair[1]):
            await sleep_until(start_s + offset_s)
            group.create_task(one(order, start_s + offset_s))


async def _probe_loop(lags: list[Seconds]) -> None:
    """How much later than asked the event loop wakes us: the floor of every time stamp's error."""
    while True:
        due = time.perf_counter() + LOOP_PROBE_S
        await asyncio.sleep(LOOP_PROBE_S)
        lags.append(time.perf_counter() - due)
