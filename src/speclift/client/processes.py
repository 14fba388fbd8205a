"""A sending process seen from the program that started it: orders in, results out, an end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict

from speclift.client.frames import FrameReader, Message, Setup, frame
from speclift.core.errors import OperatingError

READ_BYTES = 1 << 16
# How long an ended process may take to be gone.
GONE_WITHIN_S = 1.5


class SendingProcess:
    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "speclift.client.worker",
                    str(theirs.fileno()),
                    json.dumps(asdict(setup)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal reaches the whole group; this process goes when its parent says so.
                process_group=0,
            )
        ours.setblocking(False)
        self._link = ours
        self._frames = FrameReader()
        self._sending = asyncio.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def tell(self, *messages: Message) -> None:
        """Waits while the process has as much to do as it takes."""
        data = b"".join(frame(message) for message in messages)
        async with self._sending:
            try:
                await asyncio.get_running_loop().sock_sendall(self._link, data)
            except OSError as error:
                raise self._ended() from error

    async def messages(self) -> AsyncIterator[Message]:
        """What it says, until it ends, which is always an error: `stop` is called by whoever reads no more."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.sock_recv(self._link, READ_BYTES)
            except OSError as error:
                raise self._ended() from error
            if not data:
                raise self._ended()
            for message in self._frames.feed(data):
                yield message

    async def stop(self) -> None:
        """Closing the socket is enough; a process that does not heed it is killed."""
        self._link.close()
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        try:
            self._process.wait(GONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> OperatingError:
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(GONE_WITHIN_S)
        return OperatingError(
            f"the load generator's process ended unexpectedly (status {status})",
            hint="out of memory? use less concurrency or more --workers; measured data is kept",
        )
