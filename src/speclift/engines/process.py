"""One server process: start it under the guardian, wait until it answers, read its log, end it for sure."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from speclift.core.address import HIDDEN, revealed_within, without_secrets
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError, OperatingError
from speclift.core.records import Counters, Usage
from speclift.core.user_command import revealed_words
from speclift.engines.gpu_memory import family_of
from speclift.engines.metrics import parse_counters
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


# A server that the user starts with `docker run`, launched the same way at an address of ours


# Where the server listens inside its container.
INNER_PORT = 8000
# A container of ours ends with its study, has no terminal, and no name that could be taken.
DROPPED = ("-d", "--detach", "-it", "-ti", "-i", "-t", "--interactive", "--tty", "--rm")
DROPPED_WITH_VALUE = ("--name", "--restart", "-p", "--publish", "--cidfile", "--network-alias")
NETWORK = ("--network", "--net")


def container_start(start: Sequence[str], *, port: int) -> tuple[str, ...]:
    """`docker run … image` for one launch; the server inside listens as `listening` says."""
    program, run, *options = start[:-1]
    published = () if shares_network(start) else ("-p", f"127.0.0.1:{port}:{INNER_PORT}")
    return (program, run, "--rm", *published, *_kept(options), start[-1])


def listening(start: Sequence[str], *, port: int) -> tuple[str, ...]:
    if shares_network(start):
        return ("--host", "127.0.0.1", "--port", str(port))
    return ("--host", "0.0.0.0", "--port", str(INNER_PORT))


def shares_network(start: Sequence[str]) -> bool:
    """Whether it runs in the network of the machine, where ports are not published."""
    pairs = zip(start, [*start[1:], ""], strict=True)
    return any(
        word in [f"{flag}=host" for flag in NETWORK] or (word in NETWORK and value == "host")
        for word, value in pairs
    )


def _kept(options: Sequence[str]) -> Iterator[str]:
    words = iter(options)
    for word in words:
        name, equals, _ = word.partition("=")
        if word in DROPPED:
            continue
        if name in DROPPED_WITH_VALUE:
            if not equals:
                next(words, None)
            continue
        # A secret is handed on from the environment of this process, by its name alone.
        yield word.removesuffix(f"={HIDDEN}")


# A launched server, for whoever measures


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
