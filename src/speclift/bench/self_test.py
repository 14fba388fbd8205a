"""What this machine and our own load generator add to every figure.

Two identical servers are asked the same prompts in turn, and one server knows its own times.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import numpy as np

from speclift.bench.interrupts import run_until_signal
from speclift.bench.warmup import WARMUP_BLOCK, warmup_requests
from speclift.client.client import Client, Order, run_turn
from speclift.core.arm import BASELINE, Arm, Endpoint
from speclift.core.doctor import ClientCeiling, ClientLevel, LoadGenerator, Milliseconds
from speclift.core.errors import EngineError
from speclift.core.records import Phase, Place, Record, TurnHealth
from speclift.core.speculation import Off
from speclift.core.traffic import Concurrency, Load, Message, Rate, Request
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


TTFT_S, TPOT_S = 0.05, 0.01
# Load, answers and tokens per answer: alone, crowded, and many short requests at fixed times.
LEVELS: tuple[tuple[Load, int, int], ...] = (
    (Concurrency(streams=1), 6, 20),
    (Concurrency(streams=64), 256, 32),
    (Rate(per_s=1000.0, arrivals="constant"), 1500, 2),
)
# A client that uses more of a core than this queues behind itself (statistics/checks.py).
CPU_SHARE = 0.8
PROMPT = "Say nothing in particular. " * 20


def measure_client() -> LoadGenerator:
    started_s = time.monotonic()
    with _tick_server() as url:
        levels = run_until_signal(_levels(url))
    crowded, short = levels[1], levels[2]
    return LoadGenerator(
        measured=True,
        wall_s=round(time.monotonic() - started_s, 1),
        levels=tuple(levels),
        ceiling=ClientCeiling(
            tokens_per_s=round(CPU_SHARE / (crowded.cpu_us_per_token * 1e-6)),
            requests_per_s=round(CPU_SHARE / (short.cpu_us_per_request * 1e-6)),
        ),
    )


@contextmanager
def _tick_server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "speclift.testing.tick_server", str(TTFT_S), str(TPOT_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().decode().strip()
        if not port:
            raise EngineError("the server that the load generator is measured with did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


async def _levels(url: str) -> list[ClientLevel]:
    levels = []
    async with Client(Endpoint(base_url=url, model="tick"), seed=0, limit_s=REQUEST_LIMIT_S) as client:
        # The first requests find caches cold and connections closed; they are not the machine's ceiling.
        await run_turn(
            client, _orders(Concurrency(streams=8), 16, 4), Concurrency(streams=8), seed=0, on_record=_drop
        )
        for load, requests, tokens in LEVELS:
            records: list[Record] = []
            health = await run_turn(
                client, _orders(load, requests, tokens), load, seed=0, on_record=records.append
            )
            levels.append(_level(load, records, health, tokens))
    return levels


def _drop(_: Record) -> None:
    return None


def _orders(load: Load, requests: int, tokens: int) -> list[Order]:
    return [
        Order(
            request=Request(
                id=f"{index}", messages=(Message(role="user", content=PROMPT),), max_tokens=tokens
            ),
            place=Place(
                arm=BASELINE, launch=0, round=0, block=0, load=load, request_id=f"{index}", segment="tick",
                temperature=None,
            ),
        )
        for index in range(requests)
    ]  # fmt: skip


def _level(load: Load, records: Sequence[Record], health: TurnHealth, tokens: int) -> ClientLevel:
    good = [record for record in records if record.is_ok]
    if not good:
        raise EngineError(f"no request at {load.label} succeeded: {records[0].error if records else 'none'}")
    errors = [_errors_s(record) for record in good]
    return ClientLevel(
        load=load,
        requests=len(records),
        lost=len(records) - len(good),
        ttft_error_ms=_milliseconds([ttft for ttft, _ in errors]),
        tpot_error_ms=_milliseconds([tpot for _, tpot in errors]),
        send_lag_ms=_milliseconds([record.lag_s for record in good]),
        read_lag_p99_ms=round(health.loop_lag_p99_s * 1e3, 3),
        cpu_share=round(health.cpu_s / health.wall_s, 4),
        cpu_us_per_token=round(health.cpu_s / (len(records) * tokens) * 1e6, 1),
        cpu_us_per_request=round(health.cpu_s / len(records) * 1e6, 1),
    )


def _errors_s(record: Record) -> tuple[Seconds, Seconds | None]:
    """Measured minus true: TTFT from the intended moment, and time per token; None of an answer that came at once."""
    ttft_s, span_s = map(float, record.text.split()[-2:])
    assert record.output_tokens is not None
    tpot_s = None if record.tpot_s is None else record.tpot_s - span_s / (record.output_tokens - 1)
    return (record.ttft_s or 0.0) - ttft_s, tpot_s


def _milliseconds(seconds: Sequence[Seconds | None]) -> Milliseconds:
    known = [value for value in seconds if value is not None]
    if not known:
        return Milliseconds(p50=None, p99=None)
    p50, p99 = (round(float(np.percentile(known, rank)) * 1e3, 3) for rank in (50, 99))
    return Milliseconds(p50=p50, p99=p99)
