"""Requests to one server, each of which becomes a record: a failed or timed-out request too, never a gap.

The sending itself happens in processes of their own (worker.py); this is the side that knows what a request
means and where its record belongs.

Moments are seconds since the Unix epoch that never step back: wall time at import, monotonic from there. The monotonic
clock is the machine's, so that moments taken by another process on it can be translated. Open loops stay open: a late
answer never delays the next request.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import math
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from speclift.client.frames import (
    Begin,
    End,
    Message,
    OrderRow,
    Orders,
    ProcessHealth,
    ResultRow,
    Results,
    Setup,
)
from speclift.client.processes import SendingProcess
from speclift.client.worker import DESCRIPTORS_MAX, OWN_DESCRIPTORS
from speclift.core.address import without_secrets
from speclift.core.arm import Endpoint
from speclift.core.errors import OperatingError, UsageError
from speclift.core.json_reading import as_whole
from speclift.core.records import Outcome, Phase, Place, Record, Refused, Step, TurnHealth
from speclift.core.traffic import Concurrency, Load, Rate, Request
from speclift.core.units import Seconds, Tokens
from speclift.http.client import completion_body, completion_path
from speclift.http.message import target_of
from speclift.workload.arrivals import arrival_offsets

_EPOCH = time.time() - time.perf_counter()


def now_s() -> Seconds:
    return _EPOCH + time.perf_counter()


def from_monotonic(moment: Seconds) -> Seconds:
    """A reading of time.perf_counter, of whichever process, on this clock."""
    return _EPOCH + moment


def to_monotonic(moment_s: Seconds) -> Seconds:
    return moment_s - _EPOCH


REQUEST_LIMIT_S = 300.0
# Orders that travel to a process together.
ORDERS_PER_MESSAGE = 64
SEEDS = 2**31
# What an answer may have: an event of a token has 250 to 700 bytes (vLLM 0.32, llama.cpp b11549 with its timings).
ANSWER_BYTES_MIN, TOKEN_BYTES_MAX = 4 << 20, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request to send and where its record belongs."""

    request: Request
    place: Place


class Client:
    """Connections to one server, kept alive. `workers` processes share the sending; one is enough for most.

    `draft_max`: the most tokens that one of its steps drafts; None where nobody knows."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        seed: int,
        limit_s: Seconds = REQUEST_LIMIT_S,
        workers: int = 1,
        draft_max: Tokens | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._draft_max = draft_max
        self._seed = seed
        self._target = target_of(endpoint.base_url, api_key=endpoint.api_key)
        where = self._target.address
        self._setup = Setup(where.host, where.port, where.is_tls, limit_s)
        self._workers = workers
        self._processes: list[SendingProcess] = []
        self._readers: list[asyncio.Task[None]] = []
        self._ids = itertools.count()
        self._expected: dict[int, tuple[Place, Inbox]] = {}
        self._turn_ids = itertools.count(1)
        self._turn: tuple[int, Inbox] | None = None
        # Of the turn before.
        self._phase: Phase | None = None

    async def __aenter__(self) -> Self:
        self._processes = [SendingProcess(self._setup) for _ in range(self._workers)]
        self._readers = [asyncio.create_task(self._read(process)) for process in self._processes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await asyncio.gather(*(process.stop() for process in self._processes))
        self._processes = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that send."""
        return tuple(process.pid for process in self._processes)

    async def send(self, request: Request, place: Place, *, intended_s: Seconds) -> Record:
        """One request, at once or when it is due."""
        inbox = Inbox()
        order = Order(request=request, place=place)
        await self._processes[0].tell(Orders([self._row(order, to_monotonic(intended_s), inbox)]))
        while not inbox.records:
            await inbox.wait()
        return inbox.records[0]

    async def play(
        self,
        orders: Sequence[Order],
        *,
        streams: int | None = None,
        due_s: Sequence[Seconds] | None = None,
        on_record: Callable[[Record], None],
        together: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> tuple[ProcessHealth, ...]:
        """Every order, `streams` at a time or each when it is due; returns how each process fared.

        One such turn at a time and no `send` beside it. Orders go to the processes in rotation, streams are shared
        out among them.
        """
        shares = self._shares(streams)
        used = self._processes[: len(shares)]
        inbox = Inbox()
        turn = next(self._turn_ids)
        self._turn = (turn, inbox)
        phase = orders[0].place.phase if orders else self._phase
        is_other_work, self._phase = phase is not self._phase, phase
        feeders = [
            asyncio.create_task(
                self._feed(
                    process,
                    inbox,
                    Begin(turn, share, is_other_work),
                    orders[place :: len(used)],
                    (due_s or ())[place :: len(used)],
                )
            )
            for place, (process, share) in enumerate(zip(used, shares, strict=True))
        ]
        try:
            while len(inbox.done) < len(used):
                await inbox.wait()
                with together():
                    for record in inbox.take():
                        on_record(record)
        finally:
            self._turn = None
            for feeder in feeders:
                feeder.cancel()
            await asyncio.gather(*feeders, return_exceptions=True)
            if len(inbox.done) < len(used):
                await self._start_anew(inbox, used)
        return tuple(inbox.done)

    def _shares(self, streams: int | None) -> list[int]:
        """Streams for each process; no process without any."""
        if streams is None:
            return [1] * len(self._processes)
        require_descriptors(streams, len(self._processes))
        each, more = divmod(streams, len(self._processes))
        return [each + (place < more) for place in range(min(streams, len(self._processes)))]

    async def _feed(
        self,
        process: SendingProcess,
        inbox: Inbox,
        begin: Begin,
        orders: Sequence[Order],
        due_s: Sequence[Seconds],
    ) -> None:
        """Hands the orders over as fast as the process takes them, which bounds what waits there."""
        messages: list[Message] = [begin]
        try:
            for start in range(0, len(orders), ORDERS_PER_MESSAGE):
                rows = [
                    self._row(orders[place], to_monotonic(due_s[place]) if due_s else None, inbox)
                    for place in range(start, min(start + ORDERS_PER_MESSAGE, len(orders)))
                ]
                await process.tell(*messages, Orders(rows))
                messages = []
            await process.tell(*messages, End())
        except OperatingError as error:
            inbox.fail(error)

    def _row(self, order: Order, due: Seconds | None, inbox: Inbox) -> OrderRow:
        id = next(self._ids)
        self._expected[id] = order.place, inbox
        body = self.body(order.request, order.place.temperature, repeat=order.place.repeat)
        data = self._target.request(completion_path(order.request), _json_bytes(body))
        answer_bytes_max = ANSWER_BYTES_MIN + TOKEN_BYTES_MAX * order.request.max_tokens
        return id, due, data, answer_bytes_max, as_whole(body["max_tokens"]), self._draft_max

    async def _start_anew(self, inbox: Inbox, used: Sequence[SendingProcess]) -> None:
        """Whoever asked is gone, and a process may be deep in what was asked: others take their place."""
        self._expected = {id: entry for id, entry in self._expected.items() if entry[1] is not inbox}
        for place, process in enumerate(used):
            self._readers[place].cancel()
            await asyncio.gather(self._readers[place], return_exceptions=True)
            self._processes[place] = SendingProcess(self._setup)
            self._readers[place] = asyncio.create_task(self._read(self._processes[place]))
            await process.stop()

    async def _read(self, process: SendingProcess) -> None:
        try:
            async for message in process.messages():
                match message:
                    case Results(rows=rows):
                        for row in rows:
                            entry = self._expected.pop(row[0], None)
                            if entry is not None:
                                entry[1].add(record_of(row, entry[0]))
                    case ProcessHealth(turn=turn) if self._turn is not None and self._turn[0] == turn:
                        self._turn[1].add_done(message)
        except OperatingError as error:
            concerned = [inbox for _, inbox in self._expected.values()]
            for inbox in [*concerned, *(() if self._turn is None else (self._turn[1],))]:
                inbox.fail(error)

    def body(self, request: Request, temperature: float | None, *, repeat: int = 0) -> dict[str, object]:
        """The same request gets the same seed on every arm, so that engines that honour it say the same."""
        body = completion_body(
            self.endpoint,
            request,
            seed=request_seed(self._seed, request.id, repeat=repeat),
            temperature=temperature,
            top_p=request.top_p,
        )
        return body | request.answer_settings


class Inbox:
    """What came back for one caller."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.done: list[ProcessHealth] = []
        self._failure: OperatingError | None = None
        self._news = asyncio.Event()

    def add(self, record: Record) -> None:
        self.records.append(record)
        self._news.set()

    def add_done(self, message: ProcessHealth) -> None:
        self.done.append(message)
        self._news.set()

    def fail(self, error: OperatingError) -> None:
        self._failure = error
        self._news.set()

    def take(self) -> list[Record]:
        taken, self.records = self.records, []
        return taken

    async def wait(self) -> None:
        """Until something came; raises where nothing more can come."""
        await self._news.wait()
        self._news.clear()
        if self._failure is not None and not self.records:
            raise self._failure


def request_seed(study_seed: int, request_id: str, *, repeat: int = 0) -> int:
    """31 bits, which every engine takes; a repeat has the request's own seed plus its number."""
    text = f"{study_seed}:{request_id}".encode("utf-8", "surrogatepass")
    own = int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1
    return (own + repeat) % SEEDS


def record_of(row: ResultRow, place: Place) -> Record:
    """The moments of another process on our clock."""
    _, intended, sent, end, outcome, error, first, last = row[:8]
    prompt_tokens, output_tokens, finish_reason, text, drafted, accepted, steps, refused = row[8:]
    return Record(
        place=place,
        outcome=Outcome(outcome),
        # A server may repeat the key that it was sent.
        error=without_secrets(error),
        intended_s=from_monotonic(intended),
        sent_s=from_monotonic(sent),
        end_s=from_monotonic(end),
        first_token_s=None if first is None else from_monotonic(first),
        last_token_s=None if last is None else from_monotonic(last),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        finish_reason=finish_reason,
        text=text,
        drafted=drafted,
        accepted=accepted,
        steps=None if steps is None else tuple(Step(drafted=d, accepted=a) for d, a in steps),
        refused=tuple(Refused(rule=rule, said=said) for rule, said in refused),
    )


def _json_bytes(body: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError):  # lone surrogates, numbers beyond 64 bits
        return json.dumps(body).encode()


def require_descriptors(streams: int, processes: int) -> None:
    """UsageError where this system does not let `processes` processes hold so many connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    needed = math.ceil(streams / processes) + OWN_DESCRIPTORS
    if needed > allowed:
        raise UsageError(
            f"{streams:,} streams need {needed:,} open files in one process; this system allows {allowed:,}",
            hint="raise the limit (ulimit -Hn), or use more --workers",
        )


# A little time between handing over the orders and the first intended send, so that the first is not late.
OPEN_LOOP_LEAD_S = 0.05


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
