"""What a server takes while it is measured: how full its KV cache is, and how much GPU memory it holds.

At most one look every few seconds, during a turn, from this process: those that send and take times are others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from speclift.core.errors import EngineError
from speclift.core.records import Usage
from speclift.core.units import Bytes, Seconds
from speclift.engines.aside import aside
from speclift.engines.gpu_memory import BeforeLaunch, GpuMemory
from speclift.engines.protocol import Server

SAMPLE_EVERY_S = 5.0
# A turn that has just begun is not yet under load.
SETTLED_AFTER_S = 0.25


class Sampler:
    """Of one server. `gpus` is None where there is none, or the server is somebody else's."""

    def __init__(self, server: Server, gpus: GpuMemory | None, before: BeforeLaunch | None) -> None:
        self._server = server
        self._gpus, self._before = gpus, before
        self._asks_server = True
        self._next_s: Seconds = 0.0
        self.usage: tuple[Usage, ...] = ()
        self.gpu_memory_peak_bytes: Bytes | None = None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Looks while the body runs, and is forgotten where the body ends first."""
        task = asyncio.create_task(self._watch()) if self._has_any else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def look_at_memory(self) -> None:
        gpus, before = self._gpus, self._before
        if gpus is None or before is None:
            return
        held = await aside(lambda: gpus.held(before, self._server.process_ids()))
        if held is not None:
            self.gpu_memory_peak_bytes = max(held, self.gpu_memory_peak_bytes or 0)

    @property
    def _has_any(self) -> bool:
        return self._asks_server or self._gpus is not None

    async def _watch(self) -> None:
        while self._has_any:
            await asyncio.sleep(max(SETTLED_AFTER_S, self._next_s - time.monotonic()))
            self._next_s = time.monotonic() + SAMPLE_EVERY_S
            await self._look_at_usage()
            await self.look_at_memory()

    async def _look_at_usage(self) -> None:
        if not self._asks_server:
            return
        try:
            seen = await self._server.sample()
        except EngineError:
            seen = None
        if seen is None:
            # It does not say, and would not the next time.
            self._asks_server = False
        else:
            self.usage += (seen,)
