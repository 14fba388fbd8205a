"""The nodes of a fleet as a workplace (bench/workplace.py): studies on all of them, the lossless gate on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from speclift.bench.course import InterimCheck
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.workplace import T, Work, Workplace
from speclift.core.deadline import Deadline
from speclift.core.errors import FleetError
from speclift.core.units import Seconds
from speclift.fleet.cluster import NodeLost
from speclift.fleet.fleet import Fleet
from speclift.fleet.mirror import StudyCall, Tell, TellingObserver
from speclift.fleet.node import JobEnded, NodeJob, deadline_in
from speclift.fleet.run import FleetRun, named
from speclift.studies.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkJob:
    """Work that takes one server at a time, as a value that can be sent to a node."""

    work: Work[object]
    arguments: tuple[object, ...]
    left_s: Seconds | None

    async def run(self, folder: Path, tell: Tell) -> object:
        observer, deadline = TellingObserver(tell), deadline_in(self.left_s)
        return await self.work(*self.arguments, logs=folder, observer=observer, deadline=deadline)


class OnFleet(Workplace):
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
        look: InterimCheck | None = None,
    ) -> None:
        run = FleetRun(study, self._fleet, observer=observer, deadline=deadline, workers=workers, look=look)
        run_until_signal(run.run())

    def run(self, work: Work[T], *arguments: object, logs: Path, observer: Observer, deadline: Deadline) -> T:
        left_s = deadline.left_s if deadline.is_set else None
        job = WorkJob(work=work, arguments=arguments, left_s=left_s)
        return cast(T, run_until_signal(self._on_one_node(job, observer)))

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
