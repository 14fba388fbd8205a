"""One server of a study while it is up: started, warmed up, sent its turns, and found out when it dies.

A server that dies or hangs fails its arm and nothing else; only a lost baseline is raised, because nothing can be
compared without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from speclift.bench.observer import Observer
from speclift.bench.sampling import Sampler
from speclift.bench.time_limit import to_the_end
from speclift.bench.warmup import WARMUP_BLOCK, warmup_requests
from speclift.client.client import Client, Order, now_s, run_turn
from speclift.core.arm import BASELINE, Arm
from speclift.core.engine_totals import counted_between
from speclift.core.errors import EngineError, without_tracebacks
from speclift.core.records import Counters, Launch, Outcome, Phase, Place, Record, Refused
from speclift.core.results import Finding, fail, warn
from speclift.core.speculation import draft_limit
from speclift.core.traffic import Concurrency, Load, Request
from speclift.core.units import Seconds
from speclift.engines.aside import aside
from speclift.engines.gpu_memory import GpuMemory, has_gpus
from speclift.engines.kind import engine_kind
from speclift.engines.protocol import Engine, Server
from speclift.studies.study import Study

# An engine that lets this many requests in a row time out is hung.
TIMEOUTS_IN_A_ROW_MAX = 2
# The guardian looks at its engine every 0.05 s and takes a moment to tidy up.
DEATH_SHOWS_WITHIN_S = 0.5


@asynccontextmanager
async def ended_together() -> AsyncIterator[Callable[[], AsyncExitStack]]:
    """Gives out stacks and unwinds them at the same time: servers that take seconds to stop take them together."""
    stacks: list[AsyncExitStack] = []

    def another() -> AsyncExitStack:
        stacks.append(AsyncExitStack())
        return stacks[-1]

    async def end() -> list[BaseException | None]:
        return await asyncio.gather(*(stack.aclose() for stack in stacks), return_exceptions=True)

    try:
        yield another
    finally:
        for error in await to_the_end(end()):
            if error is not None:
                raise error


class ArmFailed(Exception):
    """Internal: this arm takes no further turns in this run."""


@dataclass(slots=True)
class LiveArm:
    """One arm while its server is up."""

    arm: Arm
    launch: int
    server: Server
    client: Client
    sampler: Sampler
    # Totals when the first turn began, and when the last one ended; None where the engine tells none.
    counters_first: Counters | None = None
    counters_last: Counters | None = None
    # What its totals said and cannot mean.
    refused: dict[Refused, None] = field(default_factory=dict)
    timeouts_in_a_row: int = 0
    # What came of the request that timed out last.
    last_timeout: str = ""

    def note(self, record: Record) -> None:
        is_timeout = record.outcome is Outcome.TIMEOUT
        self.timeouts_in_a_row = self.timeouts_in_a_row + 1 if is_timeout else 0
        self.last_timeout = record.error if is_timeout else self.last_timeout

    def place(
        self,
        *,
        round_index: int,
        block: int,
        load: Load,
        request: Request,
        phase: Phase = Phase.MEASURED,
        repeat: int = 0,
    ) -> Place:
        return Place(
            arm=self.arm.name,
            launch=self.launch,
            round=round_index,
            block=block,
            load=load,
            request_id=request.id,
            segment=request.segment,
            temperature=request.temperature,
            phase=phase,
            repeat=repeat,
        )


def impossible_totals(arm: str, refused: Refused) -> Finding:
    """No arm's alone: a study in which a server counts what cannot be supports no verdict."""
    return fail(
        "impossible-totals",
        f"{arm}: the server's metrics are impossible: {refused.said}; its totals are not used",
        then="did the server restart, or do several servers share its /metrics page? measure one server, or "
        "give its own page with --baseline-metrics-url and --spec-metrics-url",
    )


class Servers:
    """Brings a study's arms up and keeps in the study what they do."""

    def __init__(
        self,
        study: Study,
        engine: Engine,
        *,
        observer: Observer,
        seed: int,
        limit_s: Seconds,
        workers: int = 1,
        resumed_as: Path | None = None,
    ) -> None:
        self._study = study
        self._resumed_as = resumed_as or study.path
        self._engine = engine
        self._observer = observer
        self._seed = seed
        self._limit_s = limit_s
        self._workers = workers
        self._version: str | None = None
        is_ours = engine_kind(study.engine.kind).launches
        self._gpus = GpuMemory() if is_ours and has_gpus() else None
        # Cause of the last failure by arm.
        self.failures: dict[str, str] = {}
        # What is under way, for whoever has to say where the time ended.
        self.doing = "detecting the servers' engines"

    async def identify(self) -> str:
        """Which engine it is; asked once."""
        if self._version is None:
            self._version = await aside(self._engine.version)
        return self._version

    async def bring_up(
        self, arm: Arm, *, round_index: int, loads: Iterable[Load], stack: AsyncExitStack
    ) -> LiveArm | None:
        """Ready and warm at every load, or None where it failed; `stack` stops it."""
        version = await self.identify()
        self.doing = f"launching {arm.name}"
        self._observer.launching(arm.name, round_index)
        launch = self._study.next_launch_id()
        self._study.add_launch(
            Launch(
                id=launch,
                arm=arm.name,
                round=round_index,
                command=self._engine.command(arm, port=0),
                engine_version=version,
                started_s=now_s(),
            )
        )
        before = None if self._gpus is None else await aside(self._gpus.before_launch)
        try:
            server = await self._engine.launch(arm, log=self._study.log_path(launch))
        except EngineError as error:
            self._fail(arm.name, launch, f"did not start: {error}", log_tail=error.log_tail, hint=error.hint)
            return None
        if self._gpus is not None:
            stack.callback(self._gpus.after_stop)
        stack.push_async_callback(server.stop)
        self._study.launch_ready(
            launch,
            ready_s=now_s(),
            kv_tokens=server.kv_tokens,
            settings=server.settings,
            notices=server.notices,
        )
        client = await stack.enter_async_context(
            Client(
                server.endpoint,
                seed=self._seed,
                limit_s=self._limit_s,
                workers=self._workers,
                draft_max=draft_limit(arm.speculation),
            )
        )
        sampler = Sampler(server, self._gpus, before)
        live = LiveArm(arm=arm, launch=launch, server=server, client=client, sampler=sampler)
        stack.push_async_callback(self._close_counters, live)
        try:
            await self._warm_up(live, loads, round_index)
        except ArmFailed:
            return None
        await sampler.look_at_memory()
        with contextlib.suppress(EngineError):  # an engine without /metrics has no totals to keep
            live.counters_first = live.counters_last = await server.counters()
        return live

    async def take(
        self, live: LiveArm, orders: Sequence[Order], load: Load, *, block: int, seed: int
    ) -> list[Record]:
        """One turn, every record kept as it arrives; ArmFailed where the server did not live through it."""
        self.doing = f"measuring {live.arm.name} at {load.label}"
        broken_off = False
        records: list[Record] = []

        def keep(record: Record) -> None:
            nonlocal broken_off
            self._study.add_record(record)
            records.append(record)
            broken_off = broken_off or record.outcome in (Outcome.CUT, Outcome.DISCONNECTED)
            live.note(record)

        async with live.sampler.watching():
            health = await run_turn(
                live.client, orders, load, seed=seed, on_record=keep, together=self._study.together
            )
        if broken_off:
            await self._let_death_show(live)
        self._study.add_turn(live.launch, block, health, await self._counted(live))
        self._require_alive(live)
        return records

    async def _warm_up(self, live: LiveArm, loads: Iterable[Load], round_index: int) -> None:
        def keep(record: Record) -> None:
            self._study.add_record(record)
            live.note(record)

        for load in loads:
            self.doing = f"warming {live.arm.name} up at {load.label}"
            orders = [
                Order(
                    request=request,
                    place=live.place(
                        round_index=round_index,
                        block=WARMUP_BLOCK,
                        load=load,
                        request=request,
                        phase=Phase.WARMUP,
                    ),
                )
                for request in warmup_requests(load)
            ]
            shape = load if isinstance(load, Concurrency) else Concurrency(streams=2)
            await run_turn(live.client, orders, shape, seed=0, on_record=keep)
            self._require_alive(live)

    async def _close_counters(self, live: LiveArm) -> None:
        totals = Counters()
        if live.counters_first is not None and live.counters_last is not None:
            counted = self._between(live, live.counters_first, live.counters_last)
            # A total that fell and rose again is no better for it.
            totals = totals if live.refused else counted
        self._study.launch_ended(
            live.launch,
            totals,
            usage=(*live.server.usage(), *live.sampler.usage),
            gpu_memory_peak_bytes=live.sampler.gpu_memory_peak_bytes,
        )

    async def _counted(self, live: LiveArm) -> Counters:
        """What the engine counted since the turn before; read after the turn, when nobody waits for tokens."""
        if live.counters_last is None or live.server.death() is not None:
            return Counters()
        before = live.counters_last
        try:
            live.counters_last = await live.server.counters()
        except EngineError as error:
            # The next difference would hold two turns, and a page that hangs would cost every turn its limit.
            live.counters_last = None
            self._notice_lost_counters(live.arm.name, error)
            return Counters()
        return self._between(live, before, live.counters_last)

    def _between(self, live: LiveArm, before: Counters, after: Counters) -> Counters:
        """What was counted between two readings; what cannot be true of it is told and left out."""
        counted, refused = counted_between(before, after)
        for each in refused:
            if each.rule not in {known.rule for known in live.refused}:
                finding = impossible_totals(live.arm.name, each)
                self._study.add_finding(finding)
                self._observer.noticed(finding)
            live.refused[each] = None
        return counted

    def _notice_lost_counters(self, arm: str, error: EngineError) -> None:
        finding = warn(
            "metrics-lost",
            f"{arm}: its metrics can no longer be read: {error}",
            then="draft and preemption counts are incomplete from here on",
            arm=arm,
        )
        self._study.add_finding(finding)
        self._observer.noticed(finding)

    async def _let_death_show(self, live: LiveArm) -> None:
        """A dying engine cuts its streams before its end is known; without this its last records would count
        as failures of a server that lived on."""
        for _ in range(20):
            if live.server.death() is not None:
                return
            await asyncio.sleep(DEATH_SHOWS_WITHIN_S / 20)

    def _require_alive(self, live: LiveArm) -> None:
        death = live.server.death()
        if death is not None:
            cause, _, tail = death.partition("\n")
            self._fail(live.arm.name, live.launch, f"died: {cause}", log_tail=without_tracebacks(tail))
            raise ArmFailed
        if live.timeouts_in_a_row >= TIMEOUTS_IN_A_ROW_MAX:
            self._fail(
                live.arm.name,
                live.launch,
                f"hangs: {live.timeouts_in_a_row} requests in a row got no complete answer in {self._limit_s:.0f} s; "
                f"the last one: {live.last_timeout}",
            )
            raise ArmFailed

    def _fail(self, arm: str, launch: int, cause: str, *, log_tail: str = "", hint: str = "") -> None:
        self._study.launch_failed(launch, failure=cause, log_tail=log_tail)
        self.failures[arm] = cause
        message = f"{arm} {cause}" + (f"\n{log_tail[-600:]}" if log_tail else "")
        finding = fail("arm-failed", message, then=hint or self._where_to_look(launch), arm=arm)
        self._study.add_finding(finding)
        self._observer.noticed(finding)
        if arm == BASELINE:
            raise EngineError(
                f"the baseline {cause}",
                hint=f"fix it, then continue with --resume --study {self._resumed_as}",
                log_tail=log_tail,
            )

    def _where_to_look(self, launch: int) -> str:
        log = self._study.log_path(launch)
        if not self._study.keeps_text:
            return "its log was not stored (--no-text); run again without --no-text to read it"
        return f"its log: {log}" if log.exists() else "see the server's own log; speclift did not start it"
