"""The small server: streams as long as they take, and requests that end with their callers."""

from __future__ import annotations

import asyncio

import pytest

from speclift.http import pages
from speclift.http.message import USUAL_BOUNDS
from speclift.http.pages import EVENTS, Caller, Handler, WebAnswer, WebServer, refused_page

REQUEST = b"POST /stream HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"


async def opened(handler: Handler) -> tuple[WebServer, asyncio.StreamReader, asyncio.StreamWriter]:
    server = WebServer(handler, bounds=USUAL_BOUNDS, refuse=refused_page)
    ((host, port),) = await server.listen("127.0.0.1", 0, backlog=8)
    return server, *await asyncio.open_connection(host, port)


def test_a_stream_may_take_longer_than_a_connection_may_be_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "IDLE_LIMIT_S", 0.1)

    async def streams(caller: Caller) -> None:
        caller.begin(EVENTS)
        for _ in range(4):
            await asyncio.sleep(0.1)
            await caller.write(caller.request.body)

    async def go() -> bytes:
        server, reader, writer = await opened(streams)
        writer.write(REQUEST)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await server.hang_up()
        return answer

    assert asyncio.run(go()).endswith(b"2\r\nhi\r\n" * 4 + b"0\r\n\r\n")


def test_a_caller_that_leaves_ends_its_request() -> None:
    async def go() -> None:
        ended = asyncio.Event()

        async def hangs(_: Caller) -> WebAnswer | None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return None

        server, _, writer = await opened(hangs)
        writer.write(REQUEST)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 20)
        await server.hang_up()

    asyncio.run(go())


@pytest.mark.parametrize("request_bytes", [REQUEST * 2, REQUEST.replace(b"close", b"keep-alive") + REQUEST])
def test_requests_are_answered_in_their_order_and_not_after_the_last(request_bytes: bytes) -> None:
    asked: list[bytes] = []

    async def answers(caller: Caller) -> WebAnswer:
        asked.append(caller.request.body)
        return WebAnswer(body=b"%d" % len(asked))

    async def go() -> bytes:
        server, reader, writer = await opened(answers)
        writer.write(request_bytes)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await server.hang_up()
        return answer

    count = 1 if request_bytes == REQUEST * 2 else 2
    assert asyncio.run(go()).count(b"HTTP/1.1 200 OK") == len(asked) == count
