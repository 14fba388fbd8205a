"""A gateway on this machine, the servers behind it, and callers that speak byte for byte."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from speclift.core.routing import PoolStates, RequestFeatures, Route, RoutedRequest, ServerPool
from speclift.http.message import HttpRequest
from speclift.live.gateway import caller
from speclift.live.gateway.service import GatewayService, GatewaySettings
from speclift.routing.router import Router

CHAT = "/v1/chat/completions"


def event(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()


ENDING = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
    b"data: [DONE]\n\n"
)


def tokens(count: int, *, of: str = "token") -> list[bytes]:
    return [event(f" {of}{number}") for number in range(count)]


@dataclass
class Asked:
    """What a backend was sent, and the way back."""

    head: bytes
    body: bytes
    writer: asyncio.StreamWriter

    async def begin(self, kind: str = "text/event-stream") -> None:
        self.writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def whole(self, data: bytes, *, status: int = 200, kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    def die(self) -> None:
        self.writer.transport.abort()


Behaviour = Callable[[Asked], Awaitable[None]]


async def streams_five(asked: Asked) -> None:
    await asked.begin()
    for part in tokens(5):
        await asked.chunk(part)
    await asked.chunk(ENDING)
    await asked.end()


@dataclass
class Backend:
    """A server that does as it is told; /health is always fine."""

    behave: Behaviour = streams_five
    asked: list[Asked] = field(default_factory=list)
    is_healthy: bool = True
    connections: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=1 << 27, backlog=2048
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._server = None
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(length_of(head))
                asked = Asked(head=head, body=body, writer=writer)
                if b" /health " in head.partition(b"\r\n")[0]:
                    await asked.whole(b"{}", status=200 if self.is_healthy else 503)
                    continue
                self.asked.append(asked)
                await self.behave(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()


def length_of(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


class SpecFirst(Router):
    """The speculative pool, then the plain one; those that are down come last."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[RoutedRequest] = []

    def route(self, features: RequestFeatures, pools: PoolStates, *, now_s: float) -> Route:
        order = [*pools.plain] if pools.is_plain_only else [*pools.spec, *pools.plain]
        servers = sorted(order, key=lambda server: not server.is_up)
        pool = ServerPool.PLAIN if pools.is_plain_only else ServerPool.SPEC
        return Route(pool=pool, servers=tuple(each.url for each in servers), segment="all", reasons=("test",))

    def note(self, request: RoutedRequest, *, now_s: float) -> None:
        self.noted.append(request)


@dataclass
class Running:
    service: GatewayService
    port: int
    reports: list[RoutedRequest]
    said: list[str]
    router: SpecFirst

    async def caller(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 27)

    async def said_to(self, data: bytes, *, limit_s: float = 30.0) -> bytes:
        """All that comes back until the gateway closes the connection."""
        reader, writer = await self.caller()
        try:
            writer.write(data)
            async with asyncio.timeout(limit_s):
                return await reader.read()
        finally:
            writer.transport.abort()

    async def reported(self, count: int) -> list[RoutedRequest]:
        async with asyncio.timeout(30):
            while len(self.reports) < count:
                await asyncio.sleep(0.005)
        return self.reports


@asynccontextmanager
async def gateway(
    spec: list[Backend], plain: list[Backend], *, token: str | None = None, api_key: str | None = None
) -> AsyncIterator[Running]:
    for backend in (*spec, *plain):
        if not backend.is_open:
            await backend.open()
    reports: list[RoutedRequest] = []
    said: list[str] = []
    router = SpecFirst()
    service = GatewayService(
        GatewaySettings(
            spec=tuple(each.url for each in spec),
            plain=tuple(each.url for each in plain),
            token=token,
            api_key=api_key,
        ),
        router,
        read_features=features_of,
        report=reports.append,
        say=said.append,
    )
    listening = await service.open("127.0.0.1", 0)
    # Refused callers are not waited for as long as those on a network.
    usual_s, caller.LINGER_S = caller.LINGER_S, 0.02
    try:
        yield Running(service, int(listening.rpartition(":")[2]), reports, said, router)
    finally:
        caller.LINGER_S = usual_s
        await service.close()
        for backend in (*spec, *plain):
            if backend.is_open:
                await backend.close()


@dataclass
class GatewayProcess:
    process: asyncio.subprocess.Process
    port: int

    @property
    def memory_bytes(self) -> int:
        """Its peak."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))

    async def said_to(self, data: bytes, *, limit_s: float = 60.0) -> bytes:
        return await said_by(self.port, data, limit_s=limit_s)


async def said_by(port: int, data: bytes, *, limit_s: float = 60.0) -> bytes:
    """All that comes back until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 27)
    try:
        writer.write(data)
        async with asyncio.timeout(limit_s):
            return await reader.read()
    finally:
        writer.transport.abort()


@asynccontextmanager
async def gateway_process(
    spec: str, plain: str, *flags: str | Path, port: int = 0, stderr: int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[GatewayProcess]:
    """The command line's own gateway in front of servers that are up."""
    words = ("--spec", spec, "--plain", plain, "--listen", f"127.0.0.1:{port}", "--json", *flags)
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "speclift", "gateway", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert started.stdout is not None
    try:
        async with asyncio.timeout(30):
            ready = json.loads(await started.stdout.readline())
        yield GatewayProcess(started, int(ready["listen"].rpartition(":")[2]))
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


def features_of(request: HttpRequest) -> RequestFeatures:
    return RequestFeatures(path=request.path, is_generation=request.path == CHAT, is_stream=True)


def post(body: bytes = b"{}", *, path: str = CHAT, fields: str = "", closes: bool = True) -> bytes:
    close = "connection: close\r\n" if closes else ""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{close}{fields}\r\n"
    return head.encode("latin-1") + body


def get(path: str, *, fields: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}\r\n".encode("latin-1")


def dechunked(answer: bytes) -> bytes:
    """The body of a whole answer; AssertionError where its framing is not whole."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        assert len(rest) == length_of(head + b"\r\n"), "the body is not whole"
        return rest
    parts: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert rest == b"\r\n", f"after the last chunk: {rest[:80]!r}"
            return b"".join(parts)
        assert rest[length : length + 2] == b"\r\n", "a chunk is not whole"
        parts.append(rest[:length])
        rest = rest[length + 2 :]
