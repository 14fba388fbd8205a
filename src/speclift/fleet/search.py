"""The search's jobs on the nodes of a fleet: as many at a time as there are nodes, each with a baseline beside it.

A job runs by the code that runs here (`LocalRunner`), on a study of its node's own. Where two servers fit side by side
a baseline answers beside the arm, and its pace takes the machine out of what is compared. Where they do not, only nodes
that are alike take part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import structs

from speclift.bench.live import Servers
from speclift.bench.observer import Observer
from speclift.bench.search_plan import SIZES
from speclift.bench.search_run import (
    NO_LAUNCH,
    JobEntry,
    LocalRunner,
    finished_jobs,
    keep_jobs,
    stored_result,
)
from speclift.bench.search_study import RunnerNeeds, SearchRunner
from speclift.core.arm import Arm
from speclift.core.errors import FleetError
from speclift.core.traffic import Request
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.fleet.cluster import NodeLost
from speclift.fleet.fleet import Fleet
from speclift.fleet.mirror import Mirrored, StudyOutline, Tell, TellingObserver, mirror, outline_of
from speclift.fleet.node import JobEnded
from speclift.fleet.run import named
from speclift.search.problem import JobResult, SearchJob


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchNodeJob:
    """One job of a search on one node; returns what is kept of it, and how many requests its cells had."""

    outline: StudyOutline
    job: SearchJob
    arm: Arm
    requests: tuple[Request, ...]
    sizes: Mapping[str, int]
    limit_s: Seconds
    cell_limit_s: Seconds | None
    workers: int
    is_paced: bool

    async def run(self, folder: Path, tell: Tell) -> tuple[JobEntry, dict[str, int]]:
        with mirror(folder / "study", self.outline, frozenset(), tell) as study:
            study.keep(SIZES, self.sizes)
            servers = Servers(
                study,
                build_engine(study.engine),
                observer=TellingObserver(tell),
                seed=study.plan.seed,
                limit_s=self.limit_s,
                workers=self.workers,
            )
            runner = LocalRunner(study, servers, cell_limit_s=self.cell_limit_s, is_paced=self.is_paced)
            async with runner:
                await runner.run(self.job, self.arm, self.requests)
            (entry,) = finished_jobs(study)
            return entry, study.kept(SIZES) or {}


class FleetRunner:
    """Gives each job to a node that is free; one whose node is lost starts again on another."""

    def __init__(self, fleet: Fleet, needs: RunnerNeeds) -> None:
        self._fleet, self._needs, self._study = fleet, needs, needs.study
        self._outline = outline_of(needs.study)
        self._free: asyncio.Queue[str] = asyncio.Queue()
        self.doing = "searching on the nodes of the fleet"

    async def __aenter__(self) -> Self:
        for name in self._fleet.workers:
            self._free.put_nowait(name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The workers end with their fleet."""

    async def expect(self, jobs: Sequence[tuple[SearchJob, Arm]]) -> None:
        """They start together anyway, each on its node."""

    async def run(self, job: SearchJob, arm: Arm, requests: Sequence[Request]) -> JobResult:
        while self._fleet.workers:
            node = await self._free.get()
            try:
                entry, sizes = await self._on(node, job, arm, requests)
            except NodeLost as error:
                self._fleet.drop(node)
                self._needs.observer.say(f"{error}; {arm.name} starts again on another node")
                continue
            self._free.put_nowait(node)
            self._study.keep(SIZES, {**sizes, **(self._study.kept(SIZES) or {})})
            keep_jobs(self._study, (*finished_jobs(self._study), entry))
            return stored_result(job, entry, self._study, is_baseline=arm.is_baseline)
        raise FleetError(
            f"no node is left to run {arm.name}",
            hint=f"what was measured is kept; continue with --resume --study {self._needs.resumed_as}",
        )

    async def _on(
        self, node: str, job: SearchJob, arm: Arm, requests: Sequence[Request]
    ) -> tuple[JobEntry, dict[str, int]]:
        """With the launch as this study numbers it."""
        needs = self._needs
        asked = SearchNodeJob(
            outline=self._outline,
            job=job,
            arm=arm,
            requests=tuple(requests),
            sizes=self._study.kept(SIZES) or {},
            limit_s=needs.limit_s,
            cell_limit_s=needs.plan.cell_limit_s,
            workers=needs.workers,
            is_paced=needs.is_paced,
        )
        kept = Mirrored(self._study, node, Observer())
        async for batch in self._fleet.workers[node].stream("work", asked):
            assert isinstance(batch, list)
            kept.keep([event for event in batch if not isinstance(event, JobEnded)])
            ended = batch[-1]
            if isinstance(ended, JobEnded):
                if ended.error is not None:
                    raise named(node, ended.error)
                assert isinstance(ended.result, tuple)
                entry: JobEntry = ended.result[0]
                launch = kept.launches.get(entry.launch, NO_LAUNCH)
                return structs.replace(entry, launch=launch), ended.result[1]
        raise NodeLost(node, "its worker ended without a result")


class SearchOnFleet:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.at_once = len(fleet.workers)

    def runner(self, needs: RunnerNeeds) -> SearchRunner:
        needs.study.add_nodes(self._fleet.facts.values())
        return FleetRunner(self._fleet, needs)
