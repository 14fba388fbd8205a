"""Nobody is waited for without end: a gateway that looks at its clock, and the clock is ahead."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import cast

import pytest

from gateways import Asked, Backend, Running, dechunked, gateway, post, streams_five, tokens
from speclift.core.routing import RequestEnd
from speclift.live.gateway.caller import BODY_LIMIT_S, HEAD_LIMIT_S, IDLE_LIMIT_S, SLOW_LIMIT_S
from speclift.live.gateway.exchange import FIRST_LIMIT_S, STALL_LIMIT_S, TOTAL_LIMIT_S

# Of the clock, in the time that a test takes.
PASSING_S = 8.0


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def look(running: Running, later_s: float) -> None:
    """As the gateway does once a second, so much later."""
    for caller in tuple(running.service.state.callers):
        caller.check_time(time.monotonic() + later_s)


async def hangs(asked: Asked) -> None:
    await asyncio.Event().wait()


async def streams_and_hangs(asked: Asked) -> None:
    await asked.begin()
    for part in tokens(50):
        await asked.chunk(part)
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("sent", "limit_s"), [(b"POST /v1/chat", HEAD_LIMIT_S), (post(b"x" * 50)[:-20], BODY_LIMIT_S)]
)
def test_a_request_that_does_not_come_is_given_up(sent: bytes, limit_s: float) -> None:
    async def work() -> None:
        async with gateway([Backend()], [Backend()]) as running:
            reader, writer = await running.caller()
            writer.write(sent)
            async with asyncio.timeout(30):
                while not running.service.busy:
                    await asyncio.sleep(0.005)
            look(running, limit_s - PASSING_S)
            assert running.service.busy == 1
            look(running, limit_s)
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
            writer.transport.abort()

    run(work())


def test_a_connection_without_a_request_is_closed() -> None:
    async def work() -> None:
        async with gateway([Backend()], [Backend()]) as running:
            reader, writer = await running.caller()
            async with asyncio.timeout(30):
                while not running.service.state.callers:
                    await asyncio.sleep(0.005)
            look(running, IDLE_LIMIT_S - PASSING_S)
            assert running.service.state.callers
            look(running, IDLE_LIMIT_S)
            assert await reader.read() == b""
            writer.transport.abort()

    run(work())


@pytest.mark.parametrize("limit_s", [FIRST_LIMIT_S, TOTAL_LIMIT_S])
def test_a_server_that_does_not_begin_is_given_up_for_another(limit_s: float) -> None:
    async def work() -> None:
        spec = Backend(hangs)
        async with gateway([spec], [Backend(streams_five)]) as running:
            asking = asyncio.create_task(running.said_to(post()))
            async with asyncio.timeout(30):
                while not spec.asked:
                    await asyncio.sleep(0.005)
            look(running, FIRST_LIMIT_S - PASSING_S)
            assert not asking.done()
            look(running, limit_s)
            assert b"x-speclift-pool: plain" in await asking

    run(work())


@pytest.mark.parametrize("limit_s", [STALL_LIMIT_S, TOTAL_LIMIT_S])
def test_a_stream_that_stops_ends_with_an_error_and_not_before_its_time(limit_s: float) -> None:
    async def work() -> None:
        async with gateway([Backend(streams_and_hangs)], [Backend()]) as running:
            reader, writer = await running.caller()
            writer.write(post())
            begun = await reader.readuntil(b"token49")
            look(running, STALL_LIMIT_S - PASSING_S)
            assert running.service.busy == 1
            look(running, limit_s)
            body = dechunked(begun + await reader.read())
            *told, error, end = body.split(b"\n\n")
            assert (len(told), end) == (50, b"")
            assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 502
            assert [each.end for each in await running.reported(1)] == [RequestEnd.CUT]
            writer.transport.abort()

    run(work())


def test_tokens_that_are_passed_on_unread_count_as_heard() -> None:
    """The first came long ago, the last just now."""

    async def work() -> None:
        go = asyncio.Event()

        async def streams(asked: Asked) -> None:
            await asked.begin()
            for part in tokens(3):
                await asked.chunk(part)
                await asyncio.sleep(0.01)
            await go.wait()
            await asked.chunk(tokens(4)[3])
            await asyncio.Event().wait()

        async with gateway([Backend(streams)], [Backend()]) as running:
            reader, writer = await running.caller()
            writer.write(post())
            await reader.readuntil(b"token2")
            await asyncio.sleep(0.3)
            go.set()
            await reader.readuntil(b"token3")
            # Beyond the limit of the third token, within that of the fourth.
            look(running, STALL_LIMIT_S - 0.2)
            assert running.service.busy == 1
            writer.transport.abort()

    run(work())


def test_a_caller_that_takes_nothing_is_let_go() -> None:
    async def floods(asked: Asked) -> None:
        await asked.begin()
        for _ in range(4000):
            await asked.chunk(b"x" * 4000)
        await asked.end()

    async def work() -> None:
        async with gateway([Backend(floods)], [Backend()]) as running:
            _, writer = await running.caller()
            cast(asyncio.Transport, writer.transport).pause_reading()
            writer.write(post())
            async with asyncio.timeout(30):
                while not any(caller._is_paused for caller in running.service.state.callers):
                    await asyncio.sleep(0.005)
            look(running, SLOW_LIMIT_S - PASSING_S)
            assert running.service.busy == 1
            look(running, SLOW_LIMIT_S)
            assert (await running.reported(1))[0].end is RequestEnd.LEFT
            writer.transport.abort()

    run(work())
