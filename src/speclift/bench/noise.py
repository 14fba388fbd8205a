"""Two identical baseline servers side by side, the same few prompts in turn: what this machine adds by itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from speclift.bench.warmup import WARMUP_BLOCK, warmup_requests
from speclift.client.client import Client
from speclift.client.load import Order, run_turn
from speclift.core.arm import Arm
from speclift.core.errors import EngineError
from speclift.core.records import Phase, Place, Record
from speclift.core.speculation import Off
from speclift.core.traffic import Concurrency, Request
from speclift.core.units import Seconds
from speclift.engines.protocol import Engine
from speclift.statistics.noise import PAIRS_MIN
from speclift.studies.prompt_files import bundled_workload
from speclift.workload.prompts import select

NOISE_BUDGET_S = 20.0
NOISE_TOKENS = 32
NOISE_PROMPTS = 4
# Free text does not end before its cap, so that every answer is the same work.
NOISE_SEGMENT = "creative"
REQUEST_LIMIT_S = 30.0
ARMS = tuple(Arm(name=name, speculation=Off()) for name in ("first", "second"))
ALONE = Concurrency(streams=1)


def noise_requests() -> tuple[Request, ...]:
    chosen = select(
        bundled_workload(), segments=(NOISE_SEGMENT,), limit=NOISE_PROMPTS, max_tokens=NOISE_TOKENS
    )
    return chosen.requests


async def measure_noise(
    engine: Engine,
    requests: Sequence[Request],
    *,
    logs: Path,
    budget_s: Seconds = NOISE_BUDGET_S,
    clock: Callable[[], Seconds] = time.monotonic,
) -> tuple[Record, ...]:
    """Pairs until the budget, launches included, is spent; on a slow machine at least PAIRS_MIN of them."""
    deadline_s = clock() + budget_s
    if not engine.fits_together(ARMS):
        raise EngineError("not enough free memory for two servers at once")
    records: list[Record] = []

    async def take(client: Client, orders: Sequence[Order]) -> None:
        await run_turn(client, orders, ALONE, seed=0, on_record=records.append)
        failed = next((record for record in records if not record.is_ok), None)
        if failed is not None:
            raise EngineError(f"a request failed: {failed.outcome}, {failed.error}")

    async with AsyncExitStack() as stack:
        clients = {}
        for arm in ARMS:
            server = await engine.launch(arm, log=logs / f"{arm.name}.log")
            stack.push_async_callback(server.stop)
            client = Client(server.endpoint, seed=0, limit_s=REQUEST_LIMIT_S)
            clients[arm.name] = await stack.enter_async_context(client)
            warmups = [_order(arm.name, WARMUP_BLOCK, request) for request in warmup_requests(ALONE)]
            await take(clients[arm.name], warmups)
        for pair in itertools.count():
            if pair >= PAIRS_MIN and clock() >= deadline_s:
                break
            pass_index, index = divmod(pair, len(requests))
            # Mirrored from pair to pair and, for each prompt, from pass to pass.
            for name in list(clients)[:: 1 if (pass_index + index) % 2 == 0 else -1]:
                await take(clients[name], [_order(name, pair, requests[index])])
    return tuple(records)


def _order(arm: str, block: int, request: Request) -> Order:
    place = Place(
        arm=arm,
        launch=0,
        round=0,
        block=block,
        load=ALONE,
        request_id=request.id,
        segment=request.segment,
        temperature=0.0,  # both servers then write the same text
        phase=Phase.WARMUP if block == WARMUP_BLOCK else Phase.MEASURED,
    )
    return Order(request=request, place=place)
