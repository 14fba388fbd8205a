"""Connections to the servers behind the gateway: opened when wanted, kept for a moment, one answer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from speclift.core.address import Address, address_of
from speclift.core.routing import ServerPool, ServerState
from speclift.core.units import Seconds
from speclift.http.client import trusted_for
from speclift.http.message import HttpError, ResponseReader
from speclift.live.gateway.loop import read_little

CONNECT_LIMIT_S = 3.0
# uvicorn, and so vLLM, closes an idle connection after 5 s, llama.cpp likewise: one about to be closed is no use.
KEPT_LIMIT_S = 4.0
KEPT_MAX = 256
JOINED_BYTES_MAX = 64 * 1024


class TakesAnswer(Protocol):
    """Whoever asked. `take` comes with every part of the body; then exactly one of the other two."""

    # Takes whole chunks as they came, instead of `take`, and says whether they were that; None where they cannot be
    # passed on as they are.
    pass_on: Callable[[bytes], bool] | None

    def take(self, body: bytes) -> None: ...

    def finish(self) -> None: ...

    def break_off(self, words: str) -> None: ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to one server."""

    def __init__(self) -> None:
        self.reader = ResponseReader(passes_on=True)
        self.kept_since_s: Seconds = 0.0
        # Whether it answered before: then its end may only mean that it was kept too long.
        self.was_kept = False
        self._transport: asyncio.Transport | None = None
        self._asker: TakesAnswer | None = None
        self._is_head = False
        # A token is mostly one read and one chunk: between two of them this is where they go.
        self._pass_on: Callable[[bytes], bool] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_unsent(self) -> bool:
        """An answer may come before the whole question was taken."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def ask(self, head: bytes, body: bytes, asker: TakesAnswer) -> None:
        assert self._transport is not None
        self.reader = ResponseReader(passes_on=True)
        self._asker, self._is_head, self._pass_on = asker, head.startswith(b"HEAD "), None
        # Two writes of a long one: joining them would hold it twice.
        if len(body) > JOINED_BYTES_MAX:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Nobody wants the rest: the server sees that at once, and stops."""
        self._asker = self._pass_on = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        read_little(transport)

    def data_received(self, data: bytes) -> None:
        pass_on = self._pass_on
        if pass_on is not None and pass_on(data):
            return
        asker, reader = self._asker, self.reader
        if asker is None:
            self.abort()  # nobody asked: what came belongs to nothing
            return
        try:
            body = reader.feed(data)
        except HttpError as error:
            self.abort()
            asker.break_off(str(error))
            return
        if self._is_head and reader.status:
            reader.expect_no_body()
            body = b""
        if body:
            asker.take(body)
        # Whoever asked may have given up in the middle of it.
        if self._asker is None:
            return
        self._pass_on = asker.pass_on if reader.is_between_chunks else None
        if reader.is_done:
            self._asker = None
            asker.finish()

    def connection_lost(self, exc: Exception | None) -> None:
        asker, self._asker = self._asker, None
        self._transport = self._pass_on = None
        if asker is None:
            return
        # Torn down, and not ended: what has no length may have been longer.
        if exc is None and self.reader.end():
            asker.finish()
        else:
            asker.break_off("closed the connection" if exc is None else (str(exc) or "broke the connection"))


class PoolMember:
    """One server behind the gateway, with the connections that are kept to it."""

    def __init__(self, url: str, pool: ServerPool, *, clock: Callable[[], Seconds]) -> None:
        self.url, self.pool = url, pool
        self.address: Address = address_of(url)
        self.running = 0
        self.is_up = True
        # Whether it did when it was last probed, whatever became of a caller's request meanwhile.
        self.answers = True
        # Why it is not, in words.
        self.trouble = ""
        self._clock = clock
        self._kept: list[UpstreamConnection] = []

    @property
    def state(self) -> ServerState:
        return ServerState(url=self.url, running=self.running, is_up=self.is_up)

    async def connect(self, *, is_fresh: bool = False) -> UpstreamConnection:
        """OSError or TimeoutError where it does not answer."""
        while self._kept and not is_fresh:
            kept = self._kept.pop()
            if kept.is_open and self._clock() - kept.kept_since_s < KEPT_LIMIT_S:
                return kept
            kept.abort()
        loop, address = asyncio.get_running_loop(), self.address
        async with asyncio.timeout(CONNECT_LIMIT_S):
            _, connection = await loop.create_connection(
                UpstreamConnection, address.host, address.port, ssl=trusted_for(address)
            )
        return connection

    def keep(self, connection: UpstreamConnection) -> None:
        """For the next request, where the server allows it."""
        is_clean = connection.is_open and connection.reader.keeps_alive and not connection.has_unsent
        if not is_clean or len(self._kept) >= KEPT_MAX:
            connection.abort()
            return
        # Its last caller may have been slow: nobody else is to wait for that one.
        connection.resume()
        connection.kept_since_s, connection.was_kept = self._clock(), True
        self._kept.append(connection)

    def drop_old(self) -> None:
        now_s = self._clock()
        old = [each for each in self._kept if now_s - each.kept_since_s >= KEPT_LIMIT_S or not each.is_open]
        for connection in old:
            self._kept.remove(connection)
            connection.abort()

    def close(self) -> None:
        for connection in self._kept:
            connection.abort()
        self._kept.clear()
