"""What runs on a node: a worker that says what the machine is, and does one job after the other by the code of bench/.

A job's events stream back as they happen. The job runs in a thread with an event loop of its own, so that the worker
can be told to stop meanwhile; if the worker dies instead, the guardians end its servers (engines/guardian.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from speclift.bench.prepare import model_fingerprint
from speclift.client.provenance import host_facts
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError, ModelError, SpecliftError
from speclift.core.fleet import NodeFacts
from speclift.core.units import Seconds
from speclift.engines.aside import started
from speclift.engines.build import build_engine
from speclift.fleet.cluster import PULSE_S, HeadWatch, head_here
from speclift.fleet.mirror import StudyCall, Tell

# A record is some kilobytes; what fits in one message of Ray's arrives although its node is lost a moment later.
BATCH_MAX = 16
STOP_LIMIT_S: Seconds = 3.5


class NodeJob(Protocol):
    """What a node is asked to do, as a value that can be sent there."""

    async def run(self, folder: Path, tell: Tell) -> object:
        """The result has to travel back too."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The last of a job's events: what it returned, or which error of ours ended it."""

    result: object = None
    error: SpecliftError | None = None


class NodeWorker:
    """One per node, in a process of Ray's."""

    def __init__(self) -> None:
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[object]] | None = None
        self._is_stopped = False
        self._idle = threading.Event()
        self._idle.set()
        # Nobody can tell it to stop then: whoever would goes with the head, or cannot be reached without it.
        HeadWatch(head_here(), when_lost=self._leave).start()

    def facts(self, name: str, spec: EngineSpec, files: Sequence[str], folder: str) -> NodeFacts:
        """EngineError where this machine lacks the engine, ModelError where it lacks one of the model files. Names of
        files are those of whoever asks, in that folder where it is shared."""
        with contextlib.suppress(OSError):
            os.chdir(folder)
        try:
            version = build_engine(spec).version()
        except SpecliftError as error:
            raise EngineError(f"node {name} cannot run the engine: {error}", hint=error.hint) from error
        missing = [file for file in files if not Path(file).exists()]
        if missing:
            raise ModelError(
                f"node {name} has no {', '.join(missing)}",
                hint="models lie under the same path on every node: a shared volume, or a copy on each",
            )
        return NodeFacts(
            name=name,
            host=host_facts(),
            engine_version=version,
            model_sha256=model_fingerprint(spec.settings.model),
        )

    def work(self, job: NodeJob) -> Iterator[Sequence[StudyCall | JobEnded]]:
        events: queue.SimpleQueue[StudyCall | JobEnded] = queue.SimpleQueue()
        self._idle.clear()
        under_way = started(lambda: self._run(job, events.put))
        under_way.add_done_callback(lambda ended: self._end(ended, events.put))
        while True:
            batch = []
            # An empty one says that this worker is alive.
            with contextlib.suppress(queue.Empty):
                batch.append(events.get(timeout=PULSE_S))
            while len(batch) < BATCH_MAX and not events.empty():
                batch.append(events.get())
            yield batch
            if batch and isinstance(batch[-1], JobEnded):
                return

    def stop(self) -> bool:
        """Ends the job under way as Ctrl-C would; whether it ended in time."""
        self._is_stopped = True
        if self._running is not None:
            loop, task = self._running
            loop.call_soon_threadsafe(task.cancel)
        return self._idle.wait(STOP_LIMIT_S)

    def _leave(self) -> None:
        self.stop()
        os._exit(1)

    def _run(self, job: NodeJob, tell: Tell) -> object:
        with tempfile.TemporaryDirectory(prefix="speclift-node-", ignore_cleanup_errors=True) as folder:
            return asyncio.run(self._job(job, Path(folder), tell))

    def _end(self, ended: Future[object], tell: Callable[[JobEnded], None]) -> None:
        error = ended.exception()
        self._idle.set()
        if error is None:
            tell(JobEnded(result=ended.result()))
        elif isinstance(error, SpecliftError):
            tell(JobEnded(error=error))
        else:
            # A mistake of ours, or a stop: whoever asked is told the name of it and does not wait for ever.
            tell(JobEnded(error=EngineError(f"the job ended with {type(error).__name__}: {error}")))

    async def _job(self, job: NodeJob, folder: Path, tell: Tell) -> object:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        try:
            if self._is_stopped:
                raise asyncio.CancelledError
            return await job.run(folder, tell)
        finally:
            self._running = None


def deadline_in(left_s: Seconds | None) -> Deadline:
    """On a node's own clock."""
    return Deadline.after(left_s, clock=time.monotonic)
