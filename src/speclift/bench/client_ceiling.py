"""How true and how fast is the load generator on this machine? It measures a server that knows its own times."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from speclift.bench.interrupts import run_until_signal
from speclift.client.client import Client
from speclift.client.load import Order, run_turn
from speclift.core.arm import BASELINE, Endpoint
from speclift.core.errors import EngineError
from speclift.core.records import Place, Record, TurnHealth
from speclift.core.traffic import Concurrency, Load, Message, Rate, Request
from speclift.core.units import Seconds

TTFT_S, TPOT_S = 0.05, 0.01
# Load, answers and tokens per answer: alone, crowded, and many short requests at fixed times.
LEVELS: tuple[tuple[Load, int, int], ...] = (
    (Concurrency(streams=1), 6, 20),
    (Concurrency(streams=64), 256, 32),
    (Rate(per_s=1000.0, arrivals="constant"), 1500, 2),
)
REQUEST_LIMIT_S = 30.0
# A client that uses more of a core than this queues behind itself (statistics/checks.py).
CPU_SHARE = 0.8
PROMPT = "Say nothing in particular. " * 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsMs:
    """In milliseconds, of those that are known; None where none is."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLevel:
    """Errors at one load: measured minus true."""

    load: Load
    requests: int
    lost: int
    ttft: ErrorsMs
    tpot: ErrorsMs
    send_lag: ErrorsMs
    read_lag_p99_ms: float
    cpu_share: float
    cpu_us_per_token: float
    cpu_us_per_request: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCeiling:
    """Each level's errors against the truth, and what one sending process could do at most."""

    levels: tuple[ClientLevel, ...]
    tokens_per_s: int
    requests_per_s: int


def measure_client() -> ClientCeiling:
    with _tick_server() as url:
        levels = run_until_signal(_levels(url))
    crowded, short = levels[1], levels[2]
    return ClientCeiling(
        levels=tuple(levels),
        tokens_per_s=round(CPU_SHARE / (crowded.cpu_us_per_token * 1e-6)),
        requests_per_s=round(CPU_SHARE / (short.cpu_us_per_request * 1e-6)),
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
        ttft=_milliseconds([ttft for ttft, _ in errors]),
        tpot=_milliseconds([tpot for _, tpot in errors]),
        send_lag=_milliseconds([record.lag_s for record in good]),
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


def _milliseconds(seconds: Sequence[Seconds | None]) -> ErrorsMs:
    known = [value for value in seconds if value is not None]
    if not known:
        return ErrorsMs(p50=None, p99=None)
    p50, p99 = (round(float(np.percentile(known, rank)) * 1e3, 3) for rank in (50, 99))
    return ErrorsMs(p50=p50, p99=p99)
