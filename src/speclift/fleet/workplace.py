"""The nodes of a fleet as a workplace (bench/workplace.py): studies on all of them, the lossless gate on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from speclift.bench.course import LookAt
from speclift.bench.gate_run import AskedAgain, GateAsk, ask_again, run_gate, settle_by_equality
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import FleetError
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.fleet.cluster import NodeLost
from speclift.fleet.fleet import Fleet
from speclift.fleet.mirror import StudyCall, Tell, TellingObserver
from speclift.fleet.node import JobEnded, NodeJob, deadline_in
from speclift.fleet.run import FleetRun, named
from speclift.lossless.gate import Gate
from speclift.lossless.recorded import Fresh
from speclift.studies.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class GateJob:
    ask: GateAsk
    left_s: Seconds | None

    async def run(self, folder: Path, tell: Tell) -> tuple[Gate, bool]:
        observer, deadline = TellingObserver(tell), deadline_in(self.left_s)
        return await run_gate(self.ask, logs=folder, observer=observer, deadline=deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleJob:
    gate: Gate
    ask: GateAsk
    left_s: Seconds | None

    async def run(self, folder: Path, tell: Tell) -> Gate:
        observer, deadline = TellingObserver(tell), deadline_in(self.left_s)
        return await settle_by_equality(
            self.gate, self.ask, logs=folder, observer=observer, deadline=deadline
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAgainJob:
    spec: EngineSpec
    asked: AskedAgain
    left_s: Seconds | None

    async def run(self, folder: Path, tell: Tell) -> Fresh:
        log = folder / "baseline.log"
        return await ask_again(
            build_engine(self.spec),
            self.asked,
            log=log,
            deadline=deadline_in(self.left_s),
        )


class OnFleet:
    """Workers on nodes; what takes one server at a time runs on the first node, and on the next where that is lost."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def run_study(
        self,
        study: Study,
        *,
        observer: Observer,
        deadline: Deadline,
        workers: int = 1,
        look: LookAt | None = None,
    ) -> None:
        run = FleetRun(study, self._fleet, observer=observer, deadline=deadline, workers=workers, look=look)
        run_until_signal(run.run())

    def run_gate(
        self, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline
    ) -> tuple[Gate, bool]:
        job = GateJob(ask=ask, left_s=_left_s(deadline))
        told = run_until_signal(self._on_one_node(job, observer))
        assert isinstance(told, tuple)
        return told

    def settle(self, gate: Gate, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline) -> Gate:
        job = SettleJob(gate=gate, ask=ask, left_s=_left_s(deadline))
        told = run_until_signal(self._on_one_node(job, observer))
        assert isinstance(told, Gate)
        return told

    def ask_again(self, spec: EngineSpec, asked: AskedAgain, *, log: Path, deadline: Deadline) -> Fresh:
        job = AskAgainJob(spec=spec, asked=asked, left_s=_left_s(deadline))
        told = run_until_signal(self._on_one_node(job, Observer()))
        assert isinstance(told, Fresh)
        return told

    async def _on_one_node(self, job: NodeJob, observer: Observer) -> object:
        lost: list[str] = []
        while self._fleet.workers:
            node = next(iter(self._fleet.workers))
            try:
                return await self._on(node, job, observer)
            except NodeLost as error:
                self._fleet.drop(node)
                lost.append(str(error))
                observer.say(f"{error}; trying another")
        raise FleetError(f"no node is left: {'; '.join(lost)}")

    async def _on(self, node: str, job: NodeJob, observer: Observer) -> object:
        async for batch in self._fleet.workers[node].stream("work", job):
            assert isinstance(batch, list)
            for event in batch:
                if isinstance(event, StudyCall) and event.method == "say":
                    observer.say(f"node {node}: {event.arguments[0]}")
                elif isinstance(event, JobEnded):
                    if event.error is not None:
                        raise named(node, event.error)
                    return event.result
        raise NodeLost(node, "its worker ended without a result")


def _left_s(deadline: Deadline) -> Seconds | None:
    return deadline.left_s if deadline.is_set else None
