"""Run a study: launch, warm up, take turns, keep every record, survive what engines do.

An engine that dies or hangs fails its arm and the rest goes on; only a lost baseline ends the study, because
nothing can be compared without it. Everything finished is on disk, so the same call resumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from speclift.core.arm import BASELINE, Arm
from speclift.core.errors import EngineError, SpecliftError
from speclift.core.records import Counters, Launch, Outcome, Phase, Place, Record
from speclift.core.results import Finding, Level
from speclift.core.traffic import Concurrency, Load, Request
from speclift.core.units import Seconds
from speclift.engine.protocol import Engine, Server
from speclift.measure.client import REQUEST_LIMIT_S, Client
from speclift.measure.clock import now_s
from speclift.measure.load import Order, run_turn
from speclift.pipeline.warmup import WARMUP_BLOCK, warmup_requests
from speclift.plan.budget import BlockLimiter
from speclift.plan.experiment import Item, StudyPlan, Turn, turns
from speclift.store.study import Done, Study

# An engine that lets this many requests in a row time out is hung.
TIMEOUTS_IN_A_ROW_MAX = 2
# The guardian looks at its engine every 0.05 s and takes a moment to tidy up.
DEATH_SHOWS_WITHIN_S = 0.5


class Progress(Protocol):
    """What a watcher of a running study is told."""

    def launching(self, arm: str, round_index: int) -> None: ...

    def turn_done(self, arm: str, *, done: int, total: int, left_s: Seconds) -> None: ...

    def noticed(self, finding: Finding) -> None: ...


class ArmFailed(Exception):
    """Internal: this arm takes no further turns in this run."""


@dataclass(slots=True)
class _LiveArm:
    """One arm while its server is up."""

    arm: Arm
    launch: int
    server: Server
    client: Client
    # Totals when the first turn began, and when the last one ended; None where the engine tells none.
    counters_first: Counters | None = None
    counters_last: Counters | None = None
    timeouts_in_a_row: int = 0


class StudyRun:
    """One run over whatever of the study is not finished yet."""

    def __init__(
        self,
        study: Study,
        engine: Engine,
        *,
        progress: Progress,
        budget_s: Seconds | None = None,
        workers: int = 1,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        self.study = study
        self.plan: StudyPlan = study.plan
        self._engine = engine
        self._progress = progress
        self._clock = clock
        self._started_s = clock()
        self._budget_s = budget_s
        self._workers = workers
        self._requests = {request.id: request for request in self.plan.requests}
        self._failed_arms: set[str] = set()
        # What earlier runs finished; this run never comes back to a turn, so it need not be kept up to date.
        self._done = study.done()
        self._limits = study.block_limits
        self._version = engine.version()
        self._turns_done = 0
        self._turns_total = 0
        self._launches_left = 0
        self._launch_s: list[Seconds] = []
        self._limit_s = min(REQUEST_LIMIT_S, budget_s) if budget_s else REQUEST_LIMIT_S

    async def run(self) -> None:
        todo = [self._pending(index) for index in range(self.plan.rounds)]
        self._turns_total = sum(len(pending) for pending in todo)
        self._launches_left = sum(len({turn.arm for turn in pending}) for pending in todo)
        for round_index, pending in enumerate(todo):
            if pending and not self._is_out_of_time():
                await self._round(round_index, pending)
        if self._failed_arms >= {arm.name for arm in self.plan.arms if not arm.is_baseline} != set():
            raise EngineError("every speculative arm failed", hint=f"see {self.study.path / 'logs'}")

    def _pending(self, round_index: int) -> list[Turn]:
        """The round's turns that still have something to measure."""
        pending = []
        for turn in turns(self.plan, round_index):
            items = turn.items[: self._limits.get(turn.block)]
            if any(self._key(turn, item) not in self._done for item in items):
                pending.append(replace(turn, items=items))
        return pending

    async def _round(self, round_index: int, pending: Sequence[Turn]) -> None:
        names = dict.fromkeys(turn.arm for turn in pending)
        groups = [set(names)] if self.plan.together else [{name} for name in names]
        round_share_s = self._round_share_s(round_index)
        for group in groups:
            own = [turn for turn in pending if turn.arm in group]
            arms = [arm for arm in self.plan.arms if arm.name in group - self._failed_arms]
            async with AsyncExitStack() as stack:
                live = await self._bring_all_up(arms, round_index, own, stack)
                share_s = None if round_share_s is None else round_share_s / len(groups)
                await self._take_turns(own, live, share_s)

    # Servers

    async def _bring_all_up(
        self, arms: Sequence[Arm], round_index: int, own: Sequence[Turn], stack: AsyncExitStack
    ) -> dict[str, _LiveArm]:
        """As many at a time as the engine can start; the first failure that ends the study ends the others."""
        starting = asyncio.Semaphore(self._engine.launches_at_once)

        async def bring_up(arm: Arm) -> _LiveArm | None:
            async with starting:
                begun_s = self._clock()
                up = await self._bring_up(arm, round_index, own, stack)
                self._launch_s.append((self._clock() - begun_s) / self._engine.launches_at_once)
                self._launches_left -= 1
                return up

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {arm.name: group.create_task(bring_up(arm)) for arm in arms}
        except ExceptionGroup as failures:
            operating = failures.subgroup(SpecliftError)
            raise operating.exceptions[0] if operating is not None else failures from None
        return {name: up for name, task in tasks.items() if (up := task.result()) is not None}

    async def _bring_up(
        self, arm: Arm, round_index: int, own: Sequence[Turn], stack: AsyncExitStack
    ) -> _LiveArm | None:
        self._progress.launching(arm.name, round_index)
        launch = self.study.next_launch_id()
        command = self._engine.command(arm, port=0)
        self.study.add_launch(
            Launch(
                id=launch,
                arm=arm.name,
                round=round_index,
                command=command,
                engine_version=self._version,
                started_s=now_s(),
            )
        )
        try:
            server = await self._engine.launch(arm, log=self.study.log_path(launch))
        except EngineError as error:
            self._fail(arm.name, launch, f"did not start: {error}", log_tail=error.log_tail, hint=error.hint)
            return None
        stack.push_async_callback(server.stop)
        self.study.launch_ready(
            launch,
            ready_s=now_s(),
            kv_tokens=server.kv_tokens,
            settings=server.settings,
            notices=server.notices,
        )
        client = await stack.enter_async_context(
            Client(server.endpoint, seed=self.plan.seed, limit_s=self._limit_s, workers=self._workers)
        )
        live = _LiveArm(arm=arm, launch=launch, server=server, client=client)
        stack.push_async_callback(self._close_counters, live)
        try:
            await self._warm_up(live, {turn.load for turn in own}, round_index)
        except ArmFailed:
            return None
        with contextlib.suppress(EngineError):  # an engine without /metrics has no totals to keep
            live.counters_first = live.counters_last = await server.counters()
        return live

    async def _close_counters(self, live: _LiveArm) -> None:
        if live.counters_first is not None and live.counters_last is not None:
            totals = live.counters_last.since(live.counters_first)
            self.study.launch_ended(live.launch, totals, usage=live.server.usage())

    async def _counted(self, live: _LiveArm) -> Counters:
        """What the engine counted since the turn before; read after the turn, when nobody waits for tokens."""
        if live.counters_last is None or live.server.death() is not None:
            return Counters()
        before = live.counters_last
        with contextlib.suppress(EngineError):
            live.counters_last = await live.server.counters()
        return live.counters_last.since(before)

    async def _warm_up(self, live: _LiveArm, loads: Iterable[Load], round_index: int) -> None:
        for load in loads:
            orders = [
                Order(
                    request=request,
                    place=_place(live, round_index, WARMUP_BLOCK, load, request, Phase.WARMUP),
                )
                for request in warmup_requests(load)
            ]
            shape = load if isinstance(load, Concurrency) else Concurrency(streams=2)
            await run_turn(live.client, orders, shape, seed=0, on_record=self.study.add_record)
        self._require_alive(live)

    # Turns

    async def _take_turns(
        self, own: Sequence[Turn], live: dict[str, _LiveArm], share_s: Seconds | None
    ) -> None:
        """A block that began is finished on every arm: half a block pairs with nothing. What was launched
        measures at least one."""
        limiter = BlockLimiter(own, share_s, self._clock)
        block: int | None = None
        for turn in own:
            self._turns_done += 1
            up = live.get(turn.arm)
            limit = limiter.limit_for(turn)
            if limit is not None:
                self.study.limit_block(turn.block, limit)
                self._limits[turn.block] = limit
            items = turn.items[: self._limits.get(turn.block)]
            if up is None or not items:
                continue
            if block not in (None, turn.block) and self._is_out_of_time():
                return
            block = turn.block
            try:
                await self._take(replace(turn, items=items), up)
            except ArmFailed:
                del live[turn.arm]
            self._report(turn)

    async def _take(self, turn: Turn, live: _LiveArm) -> None:
        orders = [order for item in turn.items if (order := self._order(turn, item, live)) is not None]
        broken_off = False

        def keep(record: Record) -> None:
            nonlocal broken_off
            self.study.add_record(record)
            broken_off = broken_off or record.outcome in (Outcome.CUT, Outcome.DISCONNECTED)
            hung = record.outcome is Outcome.TIMEOUT
            live.timeouts_in_a_row = live.timeouts_in_a_row + 1 if hung else 0

        health = await run_turn(
            live.client,
            orders,
            turn.load,
            seed=self._arrival_seed(turn),
            on_record=keep,
            together=self.study.together,
        )
        if broken_off:
            await self._let_death_show(live)
        self.study.add_turn(live.launch, turn.block, health, await self._counted(live))
        self._require_alive(live)

    def _order(self, turn: Turn, item: Item, live: _LiveArm) -> Order | None:
        """Finished requests of an interrupted turn are sent again only to hold the load, never re-measured."""
        key = self._key(turn, item)
        is_done = key in self._done
        if is_done and turn.load == Concurrency(streams=1):
            return None
        request = replace(self._requests[item.request_id], temperature=key.temperature)
        phase = Phase.FILLER if is_done else Phase.MEASURED
        return Order(request=request, place=_place(live, turn.round, turn.block, turn.load, request, phase))

    def _key(self, turn: Turn, item: Item) -> Done:
        request = self._requests[item.request_id]
        temperature = request.temperature if item.temperature is None else item.temperature
        return Done(turn.arm, turn.round, turn.block, item.request_id, temperature)

    def _arrival_seed(self, turn: Turn) -> int:
        # The same arrivals for every arm of a block, new ones each round.
        return hash((self.plan.seed, turn.round, turn.block))

    # Failures and time

    async def _let_death_show(self, live: _LiveArm) -> None:
        """A dying engine cuts its streams before its end is known; without this its last records would count
        as failures of a server that lived on."""
        for _ in range(20):
            if live.server.death() is not None:
                return
            await asyncio.sleep(DEATH_SHOWS_WITHIN_S / 20)

    def _require_alive(self, live: _LiveArm) -> None:
        death = live.server.death()
        if death is not None:
            cause, _, tail = death.partition("\n")
            self._fail(live.arm.name, live.launch, f"died: {cause}", log_tail=tail)
            raise ArmFailed
        if live.timeouts_in_a_row >= TIMEOUTS_IN_A_ROW_MAX:
            self._fail(
                live.arm.name,
                live.launch,
                f"hangs: {live.timeouts_in_a_row} requests in a row got no answer in {self._limit_s:.0f} s",
            )
            raise ArmFailed

    def _fail(self, arm: str, launch: int, cause: str, *, log_tail: str = "", hint: str = "") -> None:
        self.study.launch_failed(launch, failure=cause, log_tail=log_tail)
        self._failed_arms.add(arm)
        message = f"{arm} {cause}" + (f"\n{log_tail[-600:]}" if log_tail else "")
        finding = Finding(
            check="arm-failed",
            level=Level.FAIL,
            message=message,
            next_step=hint or self._where_to_look(launch),
            arm=arm,
        )
        self.study.add_finding(finding)
        self._progress.noticed(finding)
        if arm == BASELINE:
            raise EngineError(
                f"the baseline {cause}",
                hint=f"without it nothing can be compared; fix it, then add --resume --study {self.study.path}",
                log_tail=log_tail,
            )

    def _where_to_look(self, launch: int) -> str:
        log = self.study.log_path(launch)
        return f"its log: {log}" if log.exists() else "its log is with whoever started it"

    def _is_out_of_time(self) -> bool:
        return self._budget_s is not None and self._clock() - self._started_s >= self._budget_s

    def _round_share_s(self, round_index: int) -> Seconds | None:
        """Round 0 may take its share of the budget; what it reaches sets the blocks of all rounds."""
        if self._budget_s is None or round_index > 0:
            return None
        return self._budget_s / self.plan.rounds

    def _report(self, turn: Turn) -> None:
        """Launches and turns cost differently, so each is projected from its own mean."""
        elapsed_s = self._clock() - self._started_s
        launching_s = sum(self._launch_s)
        per_launch_s = launching_s / len(self._launch_s)
        per_turn_s = (elapsed_s - launching_s) / self._turns_done
        left_s = per_launch_s * self._launches_left + per_turn_s * (self._turns_total - self._turns_done)
        if self._budget_s is not None:
            left_s = min(left_s, max(0.0, self._budget_s - elapsed_s))
        self._progress.turn_done(turn.arm, done=self._turns_done, total=self._turns_total, left_s=left_s)


def _place(live: _LiveArm, round_index: int, block: int, load: Load, request: Request, phase: Phase) -> Place:
    return Place(
        arm=live.arm.name,
        launch=live.launch,
        round=round_index,
        block=block,
        load=load,
        request_id=request.id,
        segment=request.segment,
        temperature=request.temperature,
        phase=phase,
    )


async def run_until_signal(run: StudyRun) -> None:
    """SIGTERM ends a study as cleanly as Ctrl-C: servers stopped, records kept."""
    import signal

    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    await run.run()
