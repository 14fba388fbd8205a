"""As much of HTTP/1.1 as a server for tests needs: bodies with a length, answers whole or in chunks, connections that
are kept, and requests that end when their client leaves.

On asyncio alone: a server is started for every arm of every launch, and a library for the whole of HTTP takes longer to
import than everything else it does. Loopback only; nothing here is meant for clients that one does not know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

BODY_BYTES_MAX = 64 * 2**20
JSON, TEXT, EVENTS = "application/json", "text/plain; charset=utf-8", "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole answer."""

    body: bytes
    status: int = 200
    kind: str = JSON


def json_page(payload: object, *, status: int = 200) -> Page:
    return Page(body=json.dumps(payload).encode(), status=status)


class Caller:
    """Whoever sent one request: what is asked, and the way back."""

    def __init__(
        self, *, route: tuple[str, str], body: bytes, is_last: bool, writer: asyncio.StreamWriter
    ) -> None:
        # Method and path.
        self.route = route
        self.body = body
        # Of its connection, by the client's wish.
        self.is_last = is_last
        self._writer = writer

    def begin(self, kind: str) -> None:
        """An answer in pieces, with `write` for each of them; it ends when its handler returns."""
        self._writer.write(_head(200, f"Content-Type: {kind}", "Transfer-Encoding: chunked"))

    async def write(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self, page: Page | None) -> None:
        """`None`: it was sent in pieces."""
        if self._writer.is_closing():
            return
        if page is None:
            self._writer.write(b"0\r\n\r\n")
        else:
            fields = (f"Content-Type: {page.kind}", f"Content-Length: {len(page.body)}")
            self._writer.write(_head(page.status, *fields) + page.body)
        await self._writer.drain()

    def hang_up(self) -> None:
        self._writer.close()


# None where the answer was sent in pieces.
Handler = Callable[[Caller], Awaitable[Page | None]]
Routes = Mapping[tuple[str, str], Handler]


async def listen(routes: Routes, *, port: int, backlog: int) -> asyncio.Server:
    # Else nothing holds on to them while they wait.
    conversations: set[asyncio.Task[None]] = set()

    # No coroutine: what asyncio would make of one complains when it is cancelled at the server's end.
    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.create_task(_converse(routes, reader, writer))
        conversations.add(conversation)
        conversation.add_done_callback(conversations.discard)

    return await asyncio.start_server(begin, "127.0.0.1", port, backlog=backlog)


async def _converse(routes: Routes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    upcoming = asyncio.create_task(_receive(reader, writer))
    answering: asyncio.Task[None] | None = None
    try:
        while (caller := await upcoming) is not None:
            upcoming = asyncio.create_task(_receive(reader, writer))
            answering = asyncio.create_task(_answer(routes, caller))
            await asyncio.wait({answering, upcoming}, return_when=asyncio.FIRST_COMPLETED)
            # A client that goes away ends its request, so that it no longer loads the others.
            if upcoming.done() and not answering.done() and upcoming.result() is None:
                return
            await answering
            if caller.is_last or writer.is_closing():
                return
    except (ConnectionError, ValueError):  # the client left, or what it speaks is not HTTP
        return
    finally:
        writer.close()
        for task in (upcoming, answering):
            if task is not None:
                task.cancel()


async def _answer(routes: Routes, caller: Caller) -> None:
    handler = routes.get(caller.route)
    page = json_page({"error": {"code": 404}}, status=404) if handler is None else await handler(caller)
    await caller.end(page)


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Caller | None:
    """None when the client is gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(fields.get("content-length", "0"))
        if not 0 <= length <= BODY_BYTES_MAX:
            raise ValueError(f"a body of {length} bytes")
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Caller(
        route=(method, target.partition("?")[0]),
        body=body,
        is_last=fields.get("connection", "").lower() == "close",
        writer=writer,
    )


def _head(status: int, *fields: str) -> bytes:
    lines = (f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *fields)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
