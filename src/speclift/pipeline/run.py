"""Run a study: launch, warm up, take turns, keep every record, survive what engines do.

An engine that dies or hangs fails its arm and the rest goes on; only a lost baseline ends the study, because
nothing can be compared without it. Everything finished is on disk, so the same call resumes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Protocol, TypeVar

from speclift.core.arm import Arm
from speclift.core.errors import EngineError, SpecliftError
from speclift.core.records import Phase
from speclift.core.traffic import Concurrency
from speclift.core.units import Seconds
from speclift.engine.protocol import Engine
from speclift.measure.client import REQUEST_LIMIT_S
from speclift.measure.load import Order
from speclift.pipeline.live import ArmFailed, LiveArm, Servers, ServerWatcher
from speclift.plan.budget import BlockLimiter
from speclift.plan.experiment import Item, StudyPlan, Turn, control_turns, turns
from speclift.store.study import Done, Study
from speclift.workload.arrivals import again, period_s

Told = TypeVar("Told")


class Progress(ServerWatcher, Protocol):
    """What a watcher of a running study is told."""

    def turn_done(self, arm: str, *, done: int, total: int, left_s: Seconds) -> None: ...


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
        self._requests = {request.id: request for request in self.plan.requests}
        self._period_s = period_s(self.plan.requests)
        # What earlier runs finished; this run never comes back to a turn, so it need not be kept up to date.
        self._done = study.done()
        self._limits = study.block_limits
        self._turns_done = 0
        self._turns_total = 0
        self._launches_left = 0
        self._launch_s: list[Seconds] = []
        self._servers = Servers(
            study,
            engine,
            watcher=progress,
            seed=self.plan.seed,
            limit_s=request_limit_s(budget_s),
            workers=workers,
        )

    async def run(self) -> None:
        todo = [self._pending(turns(self.plan, index)) for index in range(self.plan.rounds)]
        self._turns_total = sum(len(pending) for pending in todo)
        self._launches_left = sum(len({turn.arm for turn in pending}) for pending in todo)
        for round_index, pending in enumerate(todo):
            if pending and not self._is_out_of_time():
                await self._round(round_index, pending)
        if self._servers.failures.keys() >= {arm.name for arm in self.plan.arms if arm.speculates} != set():
            raise EngineError("every speculative arm failed", hint=f"see {self.study.path / 'logs'}")
        await self._explain()

    async def _explain(self) -> None:
        """The control, where there is one, if there is time for it when everything that decides is measured."""
        pending = self._pending(control_turns(self.plan))
        if not pending or not self._has_time_for(pending):
            return
        self._turns_total += len(pending)
        self._launches_left += 1
        arms = [arm for arm in self.plan.arms if arm.is_control]
        async with AsyncExitStack() as stack:
            live = await self._bring_all_up(arms, pending[0].round, pending, stack)
            await self._take_turns(pending, live, None)

    def _pending(self, asked: Sequence[Turn]) -> list[Turn]:
        """The turns that still have something to measure."""
        pending = []
        for turn in asked:
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
            arms = [arm for arm in self.plan.arms if arm.name in group - self._servers.failures.keys()]
            async with AsyncExitStack() as stack:
                live = await self._bring_all_up(arms, round_index, own, stack)
                share_s = None if round_share_s is None else round_share_s / len(groups)
                await self._take_turns(own, live, share_s)

    async def _bring_all_up(
        self, arms: Sequence[Arm], round_index: int, own: Sequence[Turn], stack: AsyncExitStack
    ) -> dict[str, LiveArm]:
        """As many at a time as the engine can start; the first failure that ends the study ends the others."""
        starting = asyncio.Semaphore(self._engine.launches_at_once)

        async def bring_up(arm: Arm) -> LiveArm | None:
            async with starting:
                begun_s = self._clock()
                loads = {turn.load for turn in own}
                up = await self._servers.bring_up(arm, round_index=round_index, loads=loads, stack=stack)
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

    # Turns

    async def _take_turns(
        self, own: Sequence[Turn], live: dict[str, LiveArm], share_s: Seconds | None
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

    async def _take(self, turn: Turn, live: LiveArm) -> None:
        orders = [order for item in turn.items if (order := self._order(turn, item, live)) is not None]
        await self._servers.take(
            live,
            orders,
            turn.load,
            block=turn.block,
            seed=arrival_seed(self.plan.seed, turn.round, turn.block),
        )

    def _order(self, turn: Turn, item: Item, live: LiveArm) -> Order | None:
        """Finished requests of an interrupted turn are sent again only to hold the load, never re-measured."""
        key = self._key(turn, item)
        is_done = key in self._done
        if is_done and turn.load == Concurrency(streams=1):
            return None
        request = again(self._requests[item.request_id], repeat=item.repeat, period_s=self._period_s)
        request = replace(request, temperature=key.temperature)
        place = live.place(
            round_index=turn.round,
            block=turn.block,
            load=turn.load,
            request=request,
            phase=Phase.FILLER if is_done else Phase.MEASURED,
            repeat=item.repeat,
        )
        return Order(request=request, place=place)

    def _key(self, turn: Turn, item: Item) -> Done:
        request = self._requests[item.request_id]
        temperature = request.temperature if item.temperature is None else item.temperature
        return Done(turn.arm, turn.round, turn.block, item.request_id, temperature, item.repeat)

    # Time

    def _is_out_of_time(self) -> bool:
        return self._budget_s is not None and self._clock() - self._started_s >= self._budget_s

    def _has_time_for(self, pending: Sequence[Turn]) -> bool:
        """One more launch and these turns, by what those before took; unknown where nothing was measured yet."""
        if self._budget_s is None or not self._turns_done:
            return not self._is_out_of_time()
        elapsed_s, launching_s = self._clock() - self._started_s, sum(self._launch_s)
        per_turn_s = (elapsed_s - launching_s) / self._turns_done
        needed_s = launching_s / max(1, len(self._launch_s)) + per_turn_s * len(pending)
        return elapsed_s + needed_s <= self._budget_s

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


def request_limit_s(budget_s: Seconds | None) -> Seconds:
    """How long one request may take."""
    return min(REQUEST_LIMIT_S, budget_s) if budget_s else REQUEST_LIMIT_S


def arrival_seed(seed: int, round_index: int, block: int) -> int:
    """The same arrivals for every arm of a block, new ones each round."""
    return hash((seed, round_index, block))


async def until_signal(work: Awaitable[Told]) -> Told:
    """SIGTERM ends a study as cleanly as Ctrl-C: servers stopped, records kept."""
    import signal

    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    return await work
