"""Run a study: launch, warm up, take turns, keep every record, survive what engines do.

An engine that dies or hangs fails its arm and the rest goes on; only a lost baseline ends the study, because
nothing can be compared without it. Everything finished is on disk, so the same call resumes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from speclift.bench.course import InterimCheck, LapCourse, Up, lap_rounds, last_lap
from speclift.bench.interrupts import run_until_signal
from speclift.bench.live import ArmFailed, LiveArm, Servers, ended_together
from speclift.bench.observer import Observer
from speclift.bench.time_limit import BudgetSpent, ends_at
from speclift.client.client import REQUEST_LIMIT_S, Order
from speclift.core.arm import BASELINE, Arm
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError, SpecliftError
from speclift.core.interim import InterimDecision, Wanted, at_everything
from speclift.core.quantities import duration
from speclift.core.records import Phase
from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.engines.protocol import Engine
from speclift.studies.study import Done, Study
from speclift.studies.texts import budget_finding
from speclift.workload.arrivals import again, period_s
from speclift.workload.budget import BlockLimiter, cut_short
from speclift.workload.experiment import Item, StudyPlan, Turn, turns
from speclift.workload.laps import Lap, control_turns, lap_turns, laps

# Of a budget, at the most.
REQUEST_SHARE = 1 / 3
# Of the time left in round 0; launches of further rounds may take so much of it.
LAUNCHING_SHARE_MAX = 0.5


class StudyRun:
    """One run over whatever of the study is not finished yet."""

    def __init__(
        self,
        study: Study,
        engine: Engine,
        *,
        observer: Observer,
        deadline: Deadline | None = None,
        workers: int = 1,
        look: InterimCheck | None = None,
    ) -> None:
        """`look` says after each lap what is still wanted; without one everything is measured."""
        self.study = study
        self._look = look or (lambda _: at_everything(arm.name for arm in study.plan.arms))
        self.plan: StudyPlan = study.plan
        self._engine = engine
        self._observer = observer
        self._deadline = deadline or Deadline(clock=time.monotonic)
        self._clock = self._deadline.clock
        self._started_s = self._clock()
        self._requests = {request.id: request for request in self.plan.requests}
        self._period_s = period_s(self.plan.requests)
        # What earlier runs finished; this run never comes back to a turn, so it need not be kept up to date.
        self._done = study.done()
        self._limits = study.block_limits
        self._turns_done = 0
        self._turns_total = 0
        self._launches_left = 0
        # Each launch's share of the time in which several start at once, and what one takes from start to warm.
        self._launch_s: list[Seconds] = []
        self._ready_s = launches_took(study)
        # The longest turn of each load.
        self._turn_s: dict[Load, Seconds] = {}
        # What the budget left out, in words, and whether it ended a round before its last block.
        self._left_out: list[str] = []
        self._is_cut = False
        self._servers = Servers(
            study,
            engine,
            observer=observer,
            seed=self.plan.seed,
            limit_s=request_limit_s(self._deadline),
            workers=workers,
        )

    async def run(self) -> None:
        try:
            async with ends_at(self._deadline, lambda: self._servers.doing):
                await self._servers.identify()
                await (self._all_rounds() if self.plan.looks is None else self._laps())
                if not self._has_only_failures():
                    await self._explain()
        except BudgetSpent as spent:
            self._left_out.append(str(spent))
        self._left_out += self._cut_short()
        if self._left_out:
            self._observer.noticed(budget_finding(self._left_out))
        self.study.set_left_out(self._left_out)
        if self._has_only_failures():
            raise EngineError("every speculative arm failed", hint=self._where_to_look())

    async def run_round(self, asked: Sequence[Turn], *, explains: Sequence[Turn] = ()) -> tuple[str, ...]:
        """One round of several that run on other machines meanwhile, `explains` the control's turns after it. Returns
        what the time left out, in words, for whoever shared the rounds out."""
        pending = self._pending(asked)
        self._turns_total = len(pending)
        self._launches_left = len({turn.arm for turn in pending})
        try:
            async with ends_at(self._deadline, lambda: self._servers.doing):
                await self._servers.identify()
                if pending and self._has_time_for(pending[0].round, pending):
                    await self._round(pending[0].round, pending, is_all=True)
                if not self._has_only_failures():
                    await self._take_control(explains)
        except BudgetSpent as spent:
            self._left_out.append(str(spent))
        return tuple(self._left_out)

    async def _all_rounds(self) -> None:
        todo = [self._pending(turns(self.plan, index)) for index in range(self.plan.rounds)]
        self._turns_total = sum(len(pending) for pending in todo)
        self._launches_left = sum(len({turn.arm for turn in pending}) for pending in todo)
        for round_index, pending in enumerate(todo):
            if pending and self._has_time_for(round_index, pending):
                await self._round(round_index, pending)

    async def _laps(self) -> None:
        """Laps with a look after each, until nothing more is wanted. Servers stay up for the next lap where launches
        hardly differ, or starting them anew would take longer than they have measured."""
        course, up = LapCourse(self.study), Up()
        async with AsyncExitStack() as servers:
            while wanted := self._still_wanted(look := self._look(course.number)):
                lap = course.next_lap(starts_anew=self._starts_anew(look, up))
                if lap is None:
                    return
                pending = self._pending(lap_turns(self.plan, lap, wanted))
                self._expect(lap, pending)
                if not pending:
                    continue
                if lap.round != up.round:
                    await servers.aclose()
                    if not self._has_time_for(lap.round, pending):
                        return
                    up = await self._brought_up(lap.round, pending, servers)
                begun_s = self._clock()
                if self.plan.together:
                    await self._take_turns(pending, up.live, self._lap_share_s(lap))
                else:
                    await self._round(lap.round, pending)
                up.measured_s += self._clock() - begun_s

    def _still_wanted(self, look: InterimDecision) -> Wanted:
        """An arm that failed is done with in this run; a run that resumes the study tries it again."""
        return {arm: scopes for arm, scopes in look.wanted.items() if arm not in self._servers.failures}

    def _starts_anew(self, look: InterimDecision, up: Up) -> bool:
        """Arms that are up one at a time start anew for every lap, whatever it is called. Within a budget the second
        launch comes with the second lap: one launch ships nothing, and later there may be no time for another."""
        starting_s = self._starting_s(len(up.live))
        has_paid_off = up.measured_s >= starting_s
        is_due = up.round == 0 and self._deadline.is_set and self._deadline.has(starting_s + up.measured_s)
        return not self.plan.together or (look.needs_launch and (has_paid_off or is_due))

    async def _brought_up(self, round_index: int, pending: Sequence[Turn], servers: AsyncExitStack) -> Up:
        """All that take turns; none yet where they are up one at a time."""
        if not self.plan.together:
            return Up(round=round_index)
        another_stack = await servers.enter_async_context(ended_together())
        arms = self._standing({turn.arm for turn in pending})
        return Up(round=round_index, live=await self._bring_all_up(arms, round_index, pending, another_stack))

    def _standing(self, names: set[str]) -> list[Arm]:
        return [arm for arm in self.plan.arms if arm.name in names - self._servers.failures.keys()]

    def _cut_short(self) -> Iterator[str]:
        """Fewer requests than were asked for are never sent without a word."""
        if not self._left_out and not self._limits and not self._is_cut:
            return
        done = self.study.done()
        own = (turn for turn in self._asked() if turn.arm == BASELINE)
        yield from cut_short(own, lambda turn, item: self._key(turn, item) in done)

    def _asked(self) -> Iterator[Turn]:
        """All that was to be measured: what looks on the way had no use for was not."""
        if self.plan.looks is None:
            for index in range(self.plan.rounds):
                yield from turns(self.plan, index)
            return
        for lap in laps(self.plan, lap_rounds(self.study)):
            yield from lap_turns(self.plan, lap, self._look(lap.number).wanted)

    def _has_only_failures(self) -> bool:
        return (
            self._servers.failures.keys() >= {arm.name for arm in self.plan.arms if arm.speculates} != set()
        )

    def _where_to_look(self) -> str:
        return f"see {self.study.logs}" if self.study.keeps_text else "logs are not stored with --no-text"

    async def _explain(self) -> None:
        """The control, where there is one, if there is time for it when everything that decides is measured."""
        await self._take_control(control_turns(self.plan, last_lap(self.study)))

    async def _take_control(self, asked: Sequence[Turn]) -> None:
        pending = self._pending(asked)
        if not pending or not self._has_time_to_explain(pending):
            return
        self._turns_total += len(pending)
        self._launches_left += 1
        arms = [arm for arm in self.plan.arms if arm.is_control]
        async with ended_together() as another_stack:
            live = await self._bring_all_up(arms, pending[0].round, pending, another_stack)
            await self._take_turns(pending, live, None)

    def _pending(self, asked: Sequence[Turn]) -> list[Turn]:
        """The turns that still have something to measure."""
        pending = []
        for turn in asked:
            items = turn.items[: self._limits.get(turn.block)]
            if any(self._key(turn, item) not in self._done for item in items):
                pending.append(replace(turn, items=items))
        return pending

    async def _round(self, round_index: int, pending: Sequence[Turn], *, is_all: bool = False) -> None:
        """`is_all`: nothing comes after it, so that it may take all the time there is."""
        names = dict.fromkeys(turn.arm for turn in pending)
        groups = [set(names)] if self.plan.together else [{name} for name in names]
        for place, group in enumerate(groups):
            own = [turn for turn in pending if turn.arm in group]
            arms = self._standing(group)
            async with ended_together() as another_stack:
                live = await self._bring_all_up(arms, round_index, own, another_stack)
                if is_all:
                    left_s = max(0.0, self._deadline.left_s)
                    share_s = left_s / (len(groups) - place) if self._deadline.is_set else None
                else:
                    share_s = self._share_s(round_index, arms=len(group), groups=len(groups), done=place)
                await self._take_turns(own, live, share_s)

    async def _bring_all_up(
        self,
        arms: Sequence[Arm],
        round_index: int,
        own: Sequence[Turn],
        another_stack: Callable[[], AsyncExitStack],
    ) -> dict[str, LiveArm]:
        """As many at a time as the engine can start; the first failure that ends the study ends the others."""
        at_once = min(self._engine.launches_at_once, len(arms))
        starting = asyncio.Semaphore(at_once)

        async def bring_up(arm: Arm) -> LiveArm | None:
            async with starting:
                self._launches_left -= 1
                if not self._deadline.has(max(self._ready_s, default=0.0)):
                    self._leave_out(f"launch {round_index + 1} of {arm.name}", max(self._ready_s))
                    return None
                begun_s = self._clock()
                loads = {turn.load for turn in own}
                up = await self._servers.bring_up(
                    arm, round_index=round_index, loads=loads, stack=another_stack()
                )
                took_s = self._clock() - begun_s
                self._ready_s.append(took_s)
                self._launch_s.append(took_s / at_once)
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
        """A block that began is finished on every arm, for half a block pairs with nothing; so none begins that the
        budget would cut."""
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
            if block not in (None, turn.block) and not self._has_time_for_block(turn, len(live)):
                self._is_cut = True
                return
            block = turn.block
            begun_s = self._clock()
            try:
                await self._take(replace(turn, items=items), up)
            except ArmFailed:
                del live[turn.arm]
            self._turn_s[turn.load] = max(self._turn_s.get(turn.load, 0.0), self._clock() - begun_s)
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

    def _has_time_for(self, round_index: int, pending: Sequence[Turn]) -> bool:
        """Every launch of the round and a block on each arm: a round that lacks arms compares nothing."""
        arms = {turn.arm for turn in pending} - self._servers.failures.keys()
        launching_s = max(self._launch_s, default=0.0) * len(arms)
        needed_s = launching_s + self._turn_s.get(pending[0].load, 0.0) * len(arms)
        if self._deadline.has(needed_s) and not self._deadline.is_over:
            return True
        self._leave_out(f"launch {round_index + 1} of {', '.join(sorted(arms))}", needed_s)
        return False

    def _has_time_to_explain(self, pending: Sequence[Turn]) -> bool:
        """One more launch and these turns, by what those before took; it never decides, so it is not missed."""
        launch_s = max(self._launch_s, default=0.0)
        return self._deadline.has(launch_s + sum(self._turn_s.get(turn.load, 0.0) for turn in pending))

    def _has_time_for_block(self, turn: Turn, arms: int) -> bool:
        return self._deadline.has(self._turn_s.get(turn.load, 0.0) * arms) and not self._deadline.is_over

    def _leave_out(self, what: str, needed_s: Seconds) -> None:
        left_s = max(0.0, self._deadline.left_s)
        self._left_out.append(
            f"{what} was skipped: it takes about {duration(needed_s)}, only {duration(left_s)} were left"
        )

    def _share_s(self, round_index: int, *, arms: int, groups: int, done: int) -> Seconds | None:
        """What the turns of this group may take. Round 0 may use its share of the time that launching leaves, and
        what it reaches sets the blocks of all rounds. Where launching again would take most of the time, fewer
        rounds share it."""
        if not self._deadline.is_set:
            return None
        left_s = max(0.0, self._deadline.left_s)
        if self.plan.looks is not None:
            return left_s / (groups - done) / (2.0 if round_index == 0 else 1.0)
        if round_index > 0:
            return None
        group_s = self._starting_s(arms)
        for rounds in range(self.plan.rounds, 0, -1):
            groups_left = (rounds - 1) * groups + groups - done
            launching_s = (groups_left - 1) * group_s
            if rounds == 1 or launching_s <= left_s * LAUNCHING_SHARE_MAX:
                return max(0.0, left_s - launching_s) / groups_left
        raise AssertionError("unreachable: one round always takes what there is")

    def _lap_share_s(self, lap: Lap) -> Seconds | None:
        """What the turns of a lap may take: the first leaves as much for a second launch: one ships nothing."""
        if not self._deadline.is_set:
            return None
        left_s = max(0.0, self._deadline.left_s)
        if lap.number > 0 or self.plan.rounds == 1:
            return left_s
        return max(0.0, left_s - self._starting_s(len(self.plan.arms))) / 2.0

    def _starting_s(self, arms: int) -> Seconds:
        return arms * sum(self._launch_s) / len(self._launch_s) if self._launch_s else 0.0

    def _expect(self, lap: Lap, pending: Sequence[Turn]) -> None:
        """How much there is to do if nothing is settled on the way."""
        sizes = self.plan.looks.sizes if self.plan.looks is not None else ()
        later = sum(sizes[lap.number + 1 :]) / sizes[lap.number]
        self._turns_total = self._turns_done + math.ceil(len(pending) * (1.0 + later))
        arms = len({turn.arm for turn in pending})
        self._launches_left = arms * (len(sizes) - lap.number)

    def _report(self, turn: Turn) -> None:
        """Launches and turns cost differently, so each is projected from its own mean."""
        elapsed_s = self._clock() - self._started_s
        launching_s = sum(self._launch_s)
        per_launch_s = launching_s / len(self._launch_s)
        per_turn_s = (elapsed_s - launching_s) / self._turns_done
        left_s = per_launch_s * self._launches_left + per_turn_s * (self._turns_total - self._turns_done)
        left_s = self._deadline.within(left_s)
        self._observer.turn_done(turn.arm, done=self._turns_done, total=self._turns_total, left_s=left_s)


def request_limit_s(deadline: Deadline) -> Seconds:
    """How long one request may take: a server that hangs is found out by two of them before the time is up, and
    where one takes more than this of a budget, there is none left to compare."""
    return min(REQUEST_LIMIT_S, deadline.budget_s * REQUEST_SHARE)


def launches_took(study: Study) -> list[Seconds]:
    """From start to ready, of the launches of the last round: what the next one will take. Those before it filled the
    caches that an engine keeps for its next start."""
    took: dict[int, list[Seconds]] = {}
    for launch, _ in study.launches():
        if launch.ready_s is not None:
            took.setdefault(launch.round, []).append(launch.ready_s - launch.started_s)
    return took[max(took)] if took else []


def arrival_seed(seed: int, round_index: int, block: int) -> int:
    """The same arrivals for every arm of a block, new ones each round."""
    return hash((seed, round_index, block))


def run_study(
    study: Study,
    *,
    observer: Observer,
    deadline: Deadline,
    workers: int = 1,
    look: InterimCheck | None = None,
) -> None:
    engine = build_engine(study.engine)
    run = StudyRun(study, engine, observer=observer, deadline=deadline, workers=workers, look=look)
    run_until_signal(run.run())
