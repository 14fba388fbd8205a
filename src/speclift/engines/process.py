"""One server process: start it under the guardian, wait until it answers, read its log, end it for sure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from speclift.core.address import revealed_within, without_secrets
from speclift.core.errors import EngineError, OperatingError
from speclift.core.user_command import revealed_words
from speclift.http.client import LIMIT_S, fetched, posted_json

GUARDIAN = Path(__file__).with_name("guardian.py")
# Within this and a little more an engine is gone for sure; Ctrl-C promises five seconds for everything.
STOP_GRACE_S = 2.0
HEALTH_POLL_S = 0.05
HEALTH_ANSWER_S = 2.0
LOG_TAIL_BYTES = 4000


class ServerProcess:
    """A running engine. `stop` is safe to call at any time, any number of times."""

    def __init__(self, guardian: asyncio.subprocess.Process, *, base_url: str, log: Path) -> None:
        self._guardian = guardian
        self.base_url = base_url
        self.log = log

    @classmethod
    async def start(
        cls, command: Sequence[str], *, base_url: str, log: Path, env: Mapping[str, str] | None = None
    ) -> ServerProcess:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Engines may log what they are asked; that is for the user alone.
        with open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as sink:
            guardian = await asyncio.create_subprocess_exec(
                sys.executable,
                "-IS",
                str(GUARDIAN),
                str(STOP_GRACE_S),
                *revealed_words(command),
                stdin=asyncio.subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **{name: revealed_within(value) for name, value in (env or {}).items()}},
                start_new_session=True,  # Ctrl-C reaches speclift alone, which then ends its engines in order
            )
        return cls(guardian, base_url=base_url, log=log)

    @property
    def pid(self) -> int:
        """Of the guardian, whose child the engine is."""
        return self._guardian.pid

    @property
    def exit_code(self) -> int | None:
        return self._guardian.returncode

    def log_tail(self, limit_bytes: int = LOG_TAIL_BYTES) -> str:
        with contextlib.suppress(OSError), self.log.open("rb") as stream:
            stream.seek(max(0, self.log.stat().st_size - limit_bytes))
            return without_secrets(stream.read().decode("utf-8", "replace").strip())
        return ""

    async def wait_until_ready(self, *, path: str, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self.exit_code is not None:
                raise EngineError(
                    f"the engine ended with code {self.exit_code} before it was ready",
                    hint=f"its log: {self.log}",
                    log_tail=self.log_tail(),
                )
            try:
                # Whoever takes the connection and never answers (another program on our port, too) must not
                # keep us from seeing that the engine ended or that time is up.
                await self.get(path, limit_s=HEALTH_ANSWER_S)
            except OperatingError:
                await asyncio.sleep(HEALTH_POLL_S)
            else:
                return
        tail = self.log_tail()
        await self.stop()
        raise EngineError(
            f"the engine was not ready after {limit_s:.0f} s",
            hint=f"its log: {self.log}",
            log_tail=tail,
        )

    async def get(self, path: str, *, limit_s: float = LIMIT_S) -> str:
        return await fetched(self.base_url + path, limit_s=limit_s)

    async def post(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        return await posted_json(self.base_url + path, body)

    async def stop(self) -> None:
        stdin = self._guardian.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.close()
        # The guardian needs its grace time; after that it is ended itself, and its engine dies with it.
        try:
            await asyncio.wait_for(self._guardian.wait(), STOP_GRACE_S + 5.0)
        except TimeoutError:
            self._guardian.kill()
            await self._guardian.wait()
        self._blot_log()

    def _blot_log(self) -> None:
        """Engines log their flags; the secrets in them do not stay in the study."""
        with contextlib.suppress(OSError):
            said = self.log.read_bytes()
            kept = without_secrets(said.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            if kept != said:
                self.log.write_bytes(kept)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
