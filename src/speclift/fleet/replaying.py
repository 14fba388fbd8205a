"""Parts of a log counted on the nodes of a cluster, and merged here into what one machine would have counted.

A worker takes one CPU and one part at a time, so its memory is that of a batch and of one part's counts, however large
the log is. A part that cannot be read, or whose worker is lost, is tried again elsewhere; one that no worker can read
is named with the last node that tried, and the rest is counted all the same.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from speclift.bench.ask import ReplayAsk
from speclift.bench.log_counting import Progress, ShardCounter, ShardTotals
from speclift.core.errors import FleetError, OperatingError, UsageError
from speclift.core.fleet import FleetAddress
from speclift.core.quantities import printable
from speclift.core.units import Seconds
from speclift.fleet.cluster import (
    WORKER_LIMIT_S,
    Cluster,
    HeadWatch,
    NodeLost,
    RemoteWorker,
    joined,
    require_alike,
)
from speclift.replayer.methods import DrafterSetting
from speclift.studies.log_files import shown_address

ATTEMPTS = 3
# Between two looks at whether workers are still there.
LOOKED_EVERY_S: Seconds = 0.1


@dataclass(slots=True)
class ShardJob:
    """Parts that one worker counts one after the other, by these drafters. `is_log`: whether what the log holds is
    taken from it."""

    shards: tuple[tuple[int, str], ...]
    drafters: tuple[int, ...]
    is_log: bool
    # Where it failed, once for each time.
    failed_on: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        if len(self.shards) == 1:
            return shown_address(self.shards[0][1])
        return f"all {len(self.shards)} parts in their order, for a drafter that remembers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """`fault` where the job failed for good."""

    job: ShardJob
    counted: ShardTotals | None = None
    fault: str = ""

    @property
    def words(self) -> str:
        return f"{self.job.name}: {self.fault}"


class CountingWorker:
    """On a node."""

    def __init__(self) -> None:
        self._counters: dict[tuple[int, ...], ShardCounter] = {}

    def ready(self, folder: str) -> None:
        """Answers as soon as it has its CPU. Names of files are those of whoever asks, where that folder is shared."""
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def alive(self) -> None:
        """Answers while it counts, too."""

    def count(self, ask: ReplayAsk, job: ShardJob) -> ShardTotals:
        """OperatingError where a part cannot be read there."""
        try:
            if not job.is_log:
                # A drafter that remembers begins anew, should it have been here before.
                return _merged(ShardCounter(ask, job.drafters), job.shards)
            if job.drafters not in self._counters:
                self._counters[job.drafters] = ShardCounter(ask, job.drafters)
            return _merged(self._counters[job.drafters], job.shards)
        except UsageError as error:
            raise OperatingError(str(error)) from None


def _merged(counter: ShardCounter, shards: Sequence[tuple[int, str]]) -> ShardTotals:
    found = ShardTotals()
    for number, shard in shards:
        found.merge(counter.count(shard, number))
    return found


Workers = Sequence[RemoteWorker[CountingWorker]]


def counted_on_nodes(
    address: FleetAddress,
    shards: Sequence[str],
    ask: ReplayAsk,
    *,
    drafters: Sequence[DrafterSetting],
    progress: Progress | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[ShardTotals, tuple[str, ...]]:
    """What was counted, and what of the log was not, in words."""
    remembering = tuple(number for number, each in enumerate(drafters) if each.drafter.remembers)
    alone = tuple(number for number in range(len(drafters)) if number not in remembering)
    parts = [ShardJob(shards=(part,), drafters=alone, is_log=True) for part in enumerate(shards)]
    most = max(len(parts), len(remembering))
    with joined(address, say) as cluster, _staffed(cluster, most=most) as workers:
        found, unread = _counted_parts(workers, parts, ask, progress)
        lost = {outcome.job.shards[0] for outcome in unread}
        if len(lost) == len(shards):
            raise FleetError(f"no part of the log could be read: {unread[0].words}")
        readable = tuple(part for part in enumerate(shards) if part not in lost)
        walks = [ShardJob(shards=readable, drafters=(number,), is_log=False) for number in remembering]
        for outcome in _outcomes(workers, walks, ask):
            if outcome.counted is None:
                raise FleetError(outcome.words)
            found.merge(ShardTotals(totals=outcome.counted.totals))
    return found, tuple(outcome.words for outcome in unread)


def _counted_parts(
    workers: Workers, parts: Sequence[ShardJob], ask: ReplayAsk, progress: Progress | None
) -> tuple[ShardTotals, list[_Outcome]]:
    """What was counted, and what failed for good, in the order of the log."""
    found, unread = ShardTotals(), []
    for outcome in _outcomes(workers, parts, ask):
        if outcome.counted is None:
            unread.append(outcome)
            continue
        found.merge(outcome.counted)
        if progress is not None:
            progress(found.log)
    return found, sorted(unread, key=lambda outcome: outcome.job.shards)


@contextmanager
def _staffed(cluster: Cluster, *, most: int) -> Iterator[Workers]:
    """One worker for each CPU that nodes have, at most so many, spread over the nodes; they end with the block."""
    nodes = [node for node in cluster.nodes() if node.cpus >= 1]
    if not nodes:
        raise FleetError(
            f"no node of the cluster at {cluster.address} has a CPU to give",
            hint="declare what nodes have with `ray start --num-cpus N`",
        )
    require_alike(cluster, nodes)
    places = sorted(
        ((turn, place) for place, node in enumerate(nodes) for turn in range(int(node.cpus))),
    )
    workers = [
        cluster.worker(CountingWorker, nodes[place], cpus=1, gpus=0, at_once=2) for _, place in places[:most]
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def _outcomes(workers: Workers, jobs: Sequence[ShardJob], ask: ReplayAsk) -> Iterator[_Outcome]:
    """Of every job, as it ends. A thread waits for each worker; none of them counts."""
    if not jobs:
        return
    desk = _Desk(jobs)
    with ThreadPoolExecutor(max_workers=len(workers)) as threads:
        begun_s = time.monotonic()
        working = [threads.submit(_work, worker, desk, ask) for worker in workers]
        left = len(jobs)
        try:
            while left:
                outcome = _next_outcome(desk, working, begun_s, workers[0].head)
                left -= 1
                yield outcome
        finally:
            desk.close()
            if left:
                # Threads wait for answers that nobody wants any more.
                for worker in workers:
                    worker.kill()


def _next_outcome(desk: _Desk, working: Sequence[Future[str]], begun_s: Seconds, head: HeadWatch) -> _Outcome:
    while True:
        head.require()
        with contextlib.suppress(queue.Empty):
            return desk.outcomes.get(timeout=LOOKED_EVERY_S)
        ended = [thread.result() for thread in working if thread.done()]
        if len(ended) == len(working):
            raise FleetError(f"no worker is left: {ended[-1]}")
        if not desk.is_staffed and time.monotonic() - begun_s > WORKER_LIMIT_S:
            raise FleetError(
                f"no CPU of the cluster was free within {WORKER_LIMIT_S:.0f} s",
                hint="is other work running on it? see `ray status`",
            )


def _work(worker: RemoteWorker[CountingWorker], desk: _Desk, ask: ReplayAsk) -> str:
    """Until there is nothing left to do, or the worker is lost: then it says why."""
    node = worker.node.name
    try:
        worker.call("ready", str(Path.cwd()))
        desk.is_staffed = True
        while (job := desk.take(node)) is not None:
            try:
                counted = worker.call_patiently("count", ask, job)
            except NodeLost as error:
                desk.fail(job, node, str(error))
                raise
            except OperatingError as error:
                desk.fail(job, node, f"node {node}: {error}")
                continue
            assert isinstance(counted, ShardTotals)
            desk.outcomes.put(_Outcome(job=job, counted=counted))
    except NodeLost as error:
        return str(error)
    return ""


class _Desk:
    """Where jobs wait to be taken, and come back to when they fail."""

    def __init__(self, jobs: Sequence[ShardJob]) -> None:
        self._waiting = list(jobs)
        self._changed = threading.Condition()
        self._is_open = True
        self.outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self.is_staffed = False

    def take(self, node: str) -> ShardJob | None:
        """The next; rather one that did not fail on this node. None when the work is over."""
        with self._changed:
            while self._is_open and not self._waiting:
                self._changed.wait()
            if not self._is_open:
                return None
            fresh = (place for place, job in enumerate(self._waiting) if node not in job.failed_on)
            return self._waiting.pop(next(fresh, 0))

    def fail(self, job: ShardJob, node: str, why: str) -> None:
        """Back among those that wait, or for good."""
        job.failed_on.append(node)
        if len(job.failed_on) >= ATTEMPTS:
            self.outcomes.put(_Outcome(job=job, fault=f"{printable(why, limit=400)} ({ATTEMPTS} tries)"))
            return
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
