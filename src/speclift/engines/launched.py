"""A server that speclift started: what every launched engine has in common."""

from __future__ import annotations

from speclift.core.arm import Endpoint
from speclift.core.records import Counters, Usage
from speclift.engines.gpu_memory import family_of
from speclift.engines.metrics import parse_counters
from speclift.engines.process import ServerProcess


class LaunchedServer:
    """Implements Server over one process; an engine with habits of its own overrides what differs."""

    def __init__(
        self,
        process: ServerProcess,
        *,
        endpoint: Endpoint,
        command: tuple[str, ...],
        kv_tokens: int | None = None,
        settings: dict[str, str] | None = None,
        notices: tuple[str, ...] = (),
    ) -> None:
        self._process = process
        self.endpoint = endpoint
        self.command = command
        self.kv_tokens = kv_tokens
        self.settings = settings or {}
        self.notices = notices

    async def counters(self) -> Counters:
        return parse_counters(await self._process.get("/metrics"))

    def death(self) -> str | None:
        code = self._process.exit_code
        return None if code is None else f"ended with code {code}; log ends:\n{self._process.log_tail()}"

    def usage(self) -> tuple[Usage, ...]:
        return ()

    async def sample(self) -> Usage | None:
        return None

    def process_ids(self) -> frozenset[int]:
        return family_of(self._process.pid)

    async def stop(self) -> None:
        await self._process.stop()
