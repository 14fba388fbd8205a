"""Connections to the servers behind the gateway: opened when wanted, kept for a moment, one answer at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol, cast

from speclift.client.wire import ResponseReader, WireError
from speclift.core.address import Address, address_of
from speclift.core.routing import ServerPool, ServerState
from speclift.core.units import Seconds
from speclift.engines.kept_connection import trust

CONNECT_LIMIT_S = 3.0
# uvicorn, and so vLLM, closes an idle connection after 5 s, llama.cpp likewise: one about to be closed is no use.
KEPT_LIMIT_S = 4.0
KEPT_MAX = 256
JOINED_BYTES_MAX = 64 * 1024
# Sizes of chunks as servers write them. A token's chunk has some 250 bytes; what is written otherwise, or is longer, is
# read with more care.
_SIZES = {b"%x" % size: size for size in range(1, 4096)}
_SIZE_DIGITS = 4


class TakesAnswer(Protocol):
    """Whoever asked. `take` comes with every part of the body; then exactly one of the other two."""

    # Whether whole chunks can be passed on as they are.
    takes_chunks: bool

    def take(self, body: bytes) -> None: ...

    def take_chunk(self, chunk: bytes, body: bytes) -> None:
        """One whole chunk as it came, and the part of the body in it."""

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
        # A token is mostly one read and one chunk: then nothing of it has to be taken apart.
        self._is_between_chunks = False

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
        self._asker, self._is_head, self._is_between_chunks = asker, head.startswith(b"HEAD "), False
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
        self._asker = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        asker, reader = self._asker, self.reader
        if asker is None:
            self.abort()  # nobody asked: what came belongs to nothing
            return
        if self._is_between_chunks and asker.takes_chunks:
            edge = data.find(b"\r\n", 0, _SIZE_DIGITS + 1)
            size = _SIZES.get(data[:edge])
            if size is not None and len(data) == edge + size + 4 and data.endswith(b"\r\n"):
                asker.take_chunk(data, data[edge + 2 : -2])
                return
        try:
            body = reader.feed(data)
        except WireError as error:
            self.abort()
            asker.break_off(str(error))
            return
        if self._is_head and reader.status:
            reader.expect_no_body()
            body = b""
        self._is_between_chunks = reader.is_between_chunks
        if body:
            asker.take(body)
        # Whoever asked may have given up in the middle of it.
        if reader.is_done and self._asker is not None:
            self._asker = None
            asker.finish()

    def connection_lost(self, exc: Exception | None) -> None:
        asker, self._asker = self._asker, None
        self._transport = None
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
        tls = (
            trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")) if address.is_tls else None
        )
        async with asyncio.timeout(CONNECT_LIMIT_S):
            _, connection = await loop.create_connection(
                UpstreamConnection, address.host, address.port, ssl=tls
            )
        return connection

    def keep(self, connection: UpstreamConnection) -> None:
        """For the next request, where the server allows it."""
        is_clean = connection.is_open and connection.reader.keeps_alive and not connection.has_unsent
        if not is_clean or len(self._kept) >= KEPT_MAX:
            connection.abort()
            return
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
