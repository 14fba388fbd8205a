"""A relay as an ASGI application that granian serves, with asyncio protocols to the upstreams.

GATEWAY_PORTS=PORT,PORT granian --interface asgi granian_relay:app
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TypedDict, cast

from forwarding import POOLS, HandAnswer, Observed, Request, Upstreams, forwarded

Message = MutableMapping[str, object]


class Scope(TypedDict):
    type: str
    method: str
    path: str
    headers: list[tuple[bytes, bytes]]


class Received(TypedDict, total=False):
    body: bytes
    more_body: bool


class Upstream(asyncio.Protocol):
    """One kept connection; what comes is waited for by one reader."""

    __slots__ = ("_waiter", "answer", "parts", "pool", "transport")

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.parts: list[bytes] = []
        self.answer = HandAnswer()
        self._waiter: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance

    def ask(self, data: bytes) -> None:
        self.answer = HandAnswer()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.parts.append(self.answer.feed(data))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next_part(self) -> bytes:
        if not self.parts:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data, self.parts = b"".join(self.parts), []
        return data


_upstreams = Upstreams(tuple(int(port) for port in os.environ.get("GATEWAY_PORTS", "1,2").split(",")))
_idle: list[list[Upstream]] = [[] for _ in _upstreams.ports]


async def app(
    scope: Scope, receive: Callable[[], Awaitable[Received]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        return
    body = await _body(receive)
    pool = _upstreams.choose(body)
    observed = Observed()
    port = _upstreams.ports[pool]
    if _idle[pool]:
        upstream = _idle[pool].pop()
    else:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: Upstream(pool), "127.0.0.1", port)
    line = f"{scope['method']} {scope['path']} HTTP/1.1".encode()
    upstream.ask(forwarded(Request(line, list(scope["headers"]), body), port))
    has_begun = False
    while not upstream.answer.is_done or upstream.parts:
        data = await upstream.next_part()
        if not has_begun:
            fields = [(b"content-type", b"text/event-stream"), (b"x-speclift-pool", POOLS[pool])]
            await send({"type": "http.response.start", "status": upstream.answer.status, "headers": fields})
            has_begun = True
        observed.note(len(data))
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    _upstreams.settle(pool, observed)
    _idle[pool].append(upstream)


async def _body(receive: Callable[[], Awaitable[Received]]) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
