"""A study on a fleet: whole rounds go to nodes, records come back as they are measured, a lost node's round goes on
elsewhere.

Every node runs a launch of every arm by the code that runs here (bench/run.py), its turns interleaved on that node. The
looks on the way are taken here, after a wave: as many laps as there are nodes.

A round belongs to the node that began it, because only records of one node form a pair. Where that node is gone, blocks
that it finished on every arm stay as they are, and the others are measured anew, whole, on another node: half a block
pairs with nothing. What was measured of it stays in the study.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from speclift.bench.course import LAPS, InterimCheck, lap_rounds
from speclift.bench.observer import Observer
from speclift.bench.run import StudyRun
from speclift.bench.time_limit import to_the_end
from speclift.core.arm import BASELINE
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError, FleetError, SpecliftError, StudyError
from speclift.core.interim import at_everything
from speclift.core.json_reading import need_list, need_whole
from speclift.core.results import inform
from speclift.core.traffic import Request
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.fleet.cluster import NodeLost
from speclift.fleet.fleet import Fleet
from speclift.fleet.mirror import Mirrored, StudyOutline, Tell, TellingObserver, mirror, outline_of
from speclift.fleet.node import JobEnded, deadline_in
from speclift.studies.study import Done, Study
from speclift.studies.texts import budget_finding
from speclift.workload.budget import cut_short
from speclift.workload.experiment import Item, Turn, turns
from speclift.workload.laps import control_turns, lap_turns, laps

# In a study: how many laps were measured between two looks.
WAVES = "waves"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundJob:
    """One round on one node."""

    outline: StudyOutline
    asked: tuple[Turn, ...]
    explains: tuple[Turn, ...]
    known: frozenset[Done]
    left_s: Seconds | None
    workers: int

    async def run(self, folder: Path, tell: Tell) -> tuple[str, ...]:
        """What the time left out, in words."""
        with mirror(folder / "study", self.outline, self.known, tell) as study:
            run = StudyRun(
                study,
                build_engine(study.engine),
                observer=TellingObserver(tell),
                deadline=deadline_in(self.left_s),
                workers=self.workers,
            )
            return await run.run_round(self.asked, explains=self.explains)


class FleetRun:
    """One run over whatever of the study is not finished yet."""

    def __init__(
        self,
        study: Study,
        fleet: Fleet,
        *,
        observer: Observer,
        deadline: Deadline,
        workers: int = 1,
        look: InterimCheck | None = None,
    ) -> None:
        self._study, self._fleet, self._observer = study, fleet, observer
        self._deadline, self._workers = deadline, workers
        self._look = look or (lambda _: at_everything(arm.name for arm in study.plan.arms))
        self._plan = study.plan
        self._outline = outline_of(study)
        self._left_out: list[str] = []
        self._turns_done, self._turns_total = 0, 0
        self._started_s = deadline.clock()

    async def run(self) -> None:
        self._study.add_nodes(self._fleet.facts.values())
        if self._plan.looks is None:
            await self._wave({index: turns(self._plan, index) for index in range(self._plan.rounds)})
        else:
            await self._waves()
        self._left_out += self._cut_short()
        if self._left_out:
            self._observer.noticed(budget_finding(self._left_out))
        self._study.set_left_out(self._left_out)
        self._require_an_arm()

    async def _waves(self) -> None:
        """As many laps at a time as there are nodes, and a look after each wave, until nothing more is wanted."""
        sizes = kept_waves(self._study)
        number, done = 0, 0
        while wanted := self._look(done).wanted:
            if number == len(sizes):
                size = min(len(self._fleet.workers), self._plan.rounds - done)
                if size < 1 or self._deadline.is_over:
                    return
                sizes.append(size)
                self._study.keep(LAPS, {"rounds": list(range(done + size))})
                self._study.keep(WAVES, {"sizes": sizes})
            own = list(laps(self._plan, lap_rounds(self._study)))[done : done + sizes[number]]
            await self._wave({lap.round: lap_turns(self._plan, lap, wanted) for lap in own if lap.blocks})
            done += sizes[number]
            number += 1

    async def _wave(self, asked: dict[int, tuple[Turn, ...]]) -> None:
        """These rounds, on whichever nodes are free; the first error of ours ends all of them."""
        progress = Progress(self._study)
        waiting = [index for index, own in asked.items() if own and not progress.is_finished(own)]
        self._turns_total += sum(len(asked[index]) for index in waiting)
        homes = {index: progress.home(index) for index in waiting}
        running: dict[asyncio.Task[None], tuple[int, str]] = {}
        try:
            while waiting or running:
                self._start_rounds(waiting, homes, running, asked)
                if not running:
                    raise self._nobody_left(waiting)
                finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    index, node = running.pop(task)
                    error = task.exception()
                    if isinstance(error, NodeLost):
                        self._lose(node, index, error)
                        waiting.insert(0, index)
                        homes[index] = None
                    elif error is not None:
                        raise error
        finally:
            for task in running:
                task.cancel()
            if running:
                await to_the_end(asyncio.wait(running))

    def _start_rounds(
        self,
        waiting: list[int],
        homes: dict[int, str | None],
        running: dict[asyncio.Task[None], tuple[int, str]],
        asked: dict[int, tuple[Turn, ...]],
    ) -> None:
        busy = {node for _, node in running.values()}
        for node in [name for name in self._fleet.workers if name not in busy]:
            index = next_round(node, waiting, homes, self._fleet.workers)
            if index is not None:
                waiting.remove(index)
                task = asyncio.create_task(self._round(node, index, asked[index]))
                running[task] = (index, node)

    async def _round(self, node: str, index: int, asked: tuple[Turn, ...]) -> None:
        job = RoundJob(
            outline=self._outline,
            asked=asked,
            explains=self._control(index),
            known=Progress(self._study).known_to(node, asked),
            left_s=self._deadline.left_s if self._deadline.is_set else None,
            workers=self._workers,
        )
        kept = Mirrored(self._study, node, self._observer)
        async for batch in self._fleet.workers[node].stream("work", job):
            assert isinstance(batch, list)
            events = [event for event in batch if not isinstance(event, JobEnded)]
            kept.keep(events)
            for event in events:
                if event.method == "add_turn":
                    self._report(f"launch {index + 1} on {node}")
            for event in batch:
                if isinstance(event, JobEnded):
                    self._end(node, event)

    def _control(self, index: int) -> tuple[Turn, ...]:
        """It pairs with the last round, and so runs where that does."""
        if index != self._plan.rounds - 1:
            return ()
        last = None if self._plan.looks is None else list(laps(self._plan, range(index + 1)))[-1]
        return control_turns(self._plan, last)

    def _end(self, node: str, ended: JobEnded) -> None:
        if ended.error is not None:
            raise named(node, ended.error)
        assert isinstance(ended.result, tuple)
        self._left_out += [f"node {node}: {words}" for words in ended.result]

    def _lose(self, node: str, index: int, error: NodeLost) -> None:
        self._fleet.drop(node)
        finding = inform(
            "node-lost",
            f"{error}; launch {index + 1} goes on elsewhere, and what the node had sent is kept",
            then="nothing was measured twice; see the node's own log if it should have stayed",
        )
        self._study.add_finding(finding)
        self._observer.noticed(finding)

    def _nobody_left(self, waiting: Sequence[int]) -> FleetError:
        return FleetError(
            f"no node is left for {len(waiting)} launches that are not finished",
            hint=f"what was measured is kept; continue with --resume --study {self._study.path}",
        )

    def _report(self, where: str) -> None:
        self._turns_done += 1
        elapsed_s = self._deadline.clock() - self._started_s
        left = max(0, self._turns_total - self._turns_done)
        left_s = self._deadline.within(elapsed_s / self._turns_done * left)
        total = max(self._turns_total, self._turns_done)
        self._observer.turn_done(where, done=self._turns_done, total=total, left_s=left_s)

    def _cut_short(self) -> Iterator[str]:
        if not self._left_out:
            return
        done = self._study.done()
        requests = {request.id: request for request in self._plan.requests}
        own = (turn for turn in self._asked() if turn.arm == BASELINE)

        def is_done(turn: Turn, item: Item) -> bool:
            temperature = (
                requests[item.request_id].temperature if item.temperature is None else item.temperature
            )
            return Done(turn.arm, turn.round, turn.block, item.request_id, temperature, item.repeat) in done

        yield from cut_short(own, is_done)

    def _asked(self) -> Iterator[Turn]:
        if self._plan.looks is None:
            for index in range(self._plan.rounds):
                yield from turns(self._plan, index)
            return
        done, found = 0, list(laps(self._plan, lap_rounds(self._study)))
        for size in kept_waves(self._study):
            wanted = self._look(done).wanted
            for lap in found[done : done + size]:
                yield from lap_turns(self._plan, lap, wanted)
            done += size

    def _require_an_arm(self) -> None:
        speculative = {arm.name for arm in self._plan.arms if arm.speculates}
        ready = {launch.arm for launch, _ in self._study.launches() if not launch.failure}
        if speculative and not speculative & ready:
            raise EngineError("every speculative arm failed", hint=f"see {self._study.logs}")


def named(node: str, error: SpecliftError) -> SpecliftError:
    """With the node it happened on in front."""
    error.args = (f"node {node}: {error}", *error.args[1:])
    return error


def kept_waves(study: Study) -> list[int]:
    kept = study.kept(WAVES) or {}
    sizes = [need_whole(size) for size in need_list(kept.get("sizes", []))]
    if sum(sizes) != len(lap_rounds(study)):
        raise StudyError(
            f"{study.path}: its laps were not measured on a fleet", hint="resume it without --on"
        )
    return sizes


class Progress:
    """What the study holds of each round, by node."""

    def __init__(self, study: Study) -> None:
        self._requests: Mapping[str, Request] = {request.id: request for request in study.plan.requests}
        self._done = study.done_by_node()
        # The latest launch of each round is the one that is gone on with.
        self._homes: dict[int, str] = {}
        self._failed: dict[tuple[int, str], set[str]] = defaultdict(set)
        for launch, _ in study.launches():
            self._homes[launch.round] = launch.node
            failed = self._failed[launch.round, launch.node]
            (failed.add if launch.failure else failed.discard)(launch.arm)

    def home(self, round_index: int) -> str | None:
        return self._homes.get(round_index)

    def known_to(self, node: str, asked: Sequence[Turn]) -> frozenset[Done]:
        """What need not be measured of these turns on this node: what it did itself, and whole blocks of others."""
        blocks: dict[int, list[Turn]] = defaultdict(list)
        for turn in asked:
            blocks[turn.block].append(turn)
        known = set(self._done.get(node, ()))
        for others in self._done.keys() - {node}:
            for block in blocks.values():
                if self._is_whole(block, others):
                    known |= self._places(block)
        return frozenset(known)

    def is_finished(self, asked: Sequence[Turn]) -> bool:
        """On whichever nodes."""
        known = self.known_to(self.home(asked[0].round) or "", asked) if asked else frozenset()
        return self._places(asked) <= known

    def _is_whole(self, block: Sequence[Turn], node: str) -> bool:
        """Arms that failed on the node have no part in it."""
        failed = self._failed.get((block[0].round, node), set())
        standing = [turn for turn in block if turn.arm not in failed]
        return bool(standing) and self._places(standing) <= self._done[node]

    def _places(self, turns: Iterable[Turn]) -> set[Done]:
        return {self._place(turn, item) for turn in turns for item in turn.items}

    def _place(self, turn: Turn, item: Item) -> Done:
        request = self._requests[item.request_id]
        temperature = request.temperature if item.temperature is None else item.temperature
        return Done(turn.arm, turn.round, turn.block, item.request_id, temperature, item.repeat)


def next_round(
    node: str, waiting: Sequence[int], homes: Mapping[int, str | None], working: Collection[str]
) -> int | None:
    """Of the rounds that wait, the first that this node began, else the first whose node is none of those that work;
    None where every one of them waits for another node."""
    own = [index for index in waiting if homes.get(index) == node]
    free = [index for index in waiting if homes.get(index) not in working]
    return next(iter([*own, *free]), None)
