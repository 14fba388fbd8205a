"""The fake engine's server and the sender in threads of the tests: what is sent is the same, and no interpreter starts.

The processes themselves are tested where nothing of this is used: tests/contract, tests/client, tests/engines,
tests/test_kill_and_resume.py, tests/hostile/test_interrupts.py.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from speclift.client.frames import FrameReader, Setup
from speclift.client.processes import SendingProcess
from speclift.client.worker import Worker
from speclift.core.errors import OperatingError
from speclift.engines.process import ServerProcess
from speclift.testing.fake_server import DESCRIPTORS_MAX, FakeServer
from speclift.testing.fake_truth import Truth, parse_truth

UP_WITHIN_S = 20.0


def use_threads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("speclift.engines.fake.kind.ServerProcess", FakeServerThread)
    patch.setattr("speclift.client.client.SendingProcess", SendingThread)


class FakeServerThread(ServerProcess):
    """A fake engine that is to crash still gets a process of its own, which `start` gives it."""

    def __init__(self, truth: Truth, *, port: int, base_url: str, log: Path) -> None:
        self.base_url = base_url
        self.log = log
        self._truth, self._port = truth, port
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._over = asyncio.Event()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @classmethod
    async def start(
        cls, command: Sequence[str], *, base_url: str, log: Path, env: Mapping[str, str] | None = None
    ) -> ServerProcess:
        words = iter(command)
        truth = parse_truth([next(words) for word in words if word == "--truth"])
        if truth.crash_on_start or truth.crash_after:
            return await ServerProcess.start(command, base_url=base_url, log=log, env=env)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.touch(mode=0o600)
        server = cls(truth, port=int(base_url.rpartition(":")[2]), base_url=base_url, log=log)
        await asyncio.to_thread(server._is_up.wait, UP_WITHIN_S)
        return server

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def exit_code(self) -> int | None:
        return None if self._thread.is_alive() else 0

    async def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = FakeServer(self._truth).web_server()
        await server.listen("127.0.0.1", self._port, backlog=DESCRIPTORS_MAX)
        self._is_up.set()
        await self._over.wait()
        server.close()
        # Answers under way end here, and not when what is left of them is collected.
        answers = asyncio.all_tasks() - {asyncio.current_task()}
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)


class SendingThread(SendingProcess):
    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._link = ours
        self._frames = FrameReader()
        self._sending = asyncio.Lock()
        self._worker = Worker(theirs, setup)
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        self._thread.start()

    def _run(self, link: socket.socket) -> None:
        with link:
            self._worker.run()

    def _wait(self) -> None:
        self._thread.join()

    def _ended(self) -> OperatingError:
        return OperatingError("the load generator's thread ended by itself")
