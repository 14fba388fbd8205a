"""A relay of asyncio protocols on both sides: python protocol_relay.py LOOP PARSER PORT PORT

LOOP is asyncio or uvloop, PARSER is hand or httptools.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Protocol, cast

from forwarding import HandAnswer, HandRequests, Observed, Request, Upstreams, announce, forwarded, marked


class Requests(Protocol):
    def feed(self, data: bytes) -> Request | None: ...


class Answer(Protocol):
    keeps_alive: bool

    @property
    def is_done(self) -> bool: ...

    def feed(self, data: bytes) -> object: ...


class Relay:
    def __init__(
        self, ports: tuple[int, ...], requests: Callable[[], Requests], answer: Callable[[], Answer]
    ) -> None:
        self.upstreams = Upstreams(ports)
        self.requests = requests
        self.answer = answer
        self.idle: list[list[Upstream]] = [[] for _ in ports]

    async def connect(self, caller: Caller, pool: int, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(
            lambda: Upstream(self, pool), "127.0.0.1", self.upstreams.ports[pool]
        )
        upstream.carry(caller, data)


class Caller(asyncio.Protocol):
    __slots__ = ("_relay", "_requests", "_task", "transport", "upstream")

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._requests = relay.requests()
        self._task: asyncio.Task[None] | None = None
        self.upstream: Upstream | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        request = self._requests.feed(data)
        if request is None:
            return
        relay = self._relay
        pool = relay.upstreams.choose(request.body)
        out = forwarded(request, relay.upstreams.ports[pool])
        if relay.idle[pool]:
            relay.idle[pool].pop().carry(self, out)
        else:
            self._task = asyncio.ensure_future(relay.connect(self, pool, out))

    def pause_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upstream is not None:
            self.upstream.transport.abort()


class Upstream(asyncio.Protocol):
    __slots__ = ("_answer", "_caller", "_observed", "_pool", "_relay", "transport")

    def __init__(self, relay: Relay, pool: int) -> None:
        self._relay = relay
        self._pool = pool
        self._caller: Caller | None = None
        self._answer: Answer
        self._observed: Observed
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance

    def carry(self, caller: Caller, data: bytes) -> None:
        self._caller, caller.upstream = caller, self
        self._answer = self._relay.answer()
        self._observed = Observed()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        caller, answer = self._caller, self._answer
        if caller is None:
            return
        answer.feed(data)
        if not self._observed.bytes_total:
            data = marked(data, self._pool)
        self._observed.note(len(data))
        caller.transport.write(data)
        if answer.is_done:
            self._caller = caller.upstream = None
            self._relay.upstreams.settle(self._pool, self._observed)
            if answer.keeps_alive:
                self._relay.idle[self._pool].append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._relay.idle[self._pool]:
            self._relay.idle[self._pool].remove(self)
        if self._caller is not None:
            self._caller.upstream = None
            self._caller.transport.abort()


async def serve(relay: Relay) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Caller(relay), "127.0.0.1", 0, backlog=4096
    )
    announce(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def main(loop: str, parser: str, *ports: str) -> None:
    requests: Callable[[], Requests] = HandRequests
    answer: Callable[[], Answer] = HandAnswer
    if parser == "httptools":
        from parsed_by_httptools import HttptoolsAnswer, HttptoolsRequests

        requests, answer = HttptoolsRequests, HttptoolsAnswer
    relay = Relay(tuple(int(port) for port in ports), requests, answer)
    if loop == "uvloop":
        import uvloop

        uvloop.run(serve(relay))
    else:
        asyncio.run(serve(relay))


if __name__ == "__main__":
    main(*sys.argv[1:])
