"""Servers and callers of the gateway that do what nobody should: an answer or an end for each, and for the others."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine

import pytest

from gateways import Asked, Backend, dechunked, gateway, post, streams_five, tokens
from speclift.core.routing import RequestEnd
from speclift.live.gateway.caller import SLOW_LIMIT_S

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def says(data: bytes) -> Backend:
    async def answer(asked: Asked) -> None:
        asked.writer.write(data)
        await asked.writer.drain()
        asked.die()

    return Backend(answer)


async def hangs_up(asked: Asked) -> None:
    asked.die()


@pytest.mark.parametrize("ends", [b"503\r\n", b"503 \r\n"])
def test_a_status_line_without_a_reason_is_passed_on_where_no_other_server_answers(ends: bytes) -> None:
    async def work() -> None:
        spec = says(b"HTTP/1.1 " + ends + b"content-length: 3\r\n\r\nbad")
        async with gateway([spec], [Backend(hangs_up)]) as running:
            answer = await running.said_to(post())
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert answer.endswith(b"\r\n\r\nbad")
            assert (await running.reported(1))[0].status == 503

    run(work())


@pytest.mark.parametrize("status", [b"000 Zero", b"099 Low", b"20 Short", b"2000 Long", b"OK"])
def test_a_status_that_is_none_is_no_answer(status: bytes) -> None:
    async def work() -> None:
        odd = b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\n\r\nhi"
        async with gateway([says(odd)], [says(odd)]) as running:
            assert (await running.said_to(post())).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")

    run(work())


def test_an_answer_that_is_never_taken_to_its_end_is_cut() -> None:
    """Little enough is left that nothing waits to be written, and too much for the machine's own buffers."""
    size = 2_850_000

    async def whole(asked: Asked) -> None:
        await asked.whole(b"x" * size)

    async def work() -> None:
        async with gateway([Backend(whole)], [Backend()]) as running:
            sender = socket.socket()
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sender.setblocking(False)
            with sender:
                await asyncio.get_running_loop().sock_connect(sender, ("127.0.0.1", running.port))
                sender.send(post().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                async with asyncio.timeout(30):
                    while not running.service.state.callers:
                        await asyncio.sleep(0.01)
                    (caller,) = running.service.state.callers
                    while not caller.is_gone and not running.reports:
                        # Takes as much as brings it under the mark, as a slow reader does.
                        if caller._is_paused:
                            await asyncio.get_running_loop().sock_recv(sender, 65_536)
                        await asyncio.sleep(0)
                    await asyncio.sleep(0.05)
                assert caller in running.service.state.callers
                caller.check_time(time.monotonic() + SLOW_LIMIT_S + 1)
                await asyncio.sleep(0.05)
                assert caller not in running.service.state.callers

    run(work())


def test_a_request_that_no_server_survives_does_not_make_the_gateway_unhealthy() -> None:
    async def work() -> None:
        async with gateway([Backend(hangs_up)], [Backend(hangs_up)]) as running:
            assert (await running.said_to(post())).startswith(b"HTTP/1.1 502 ")
            assert not any(member.is_up for member in running.service.members)
            assert (await running.said_to(HEALTH)).startswith(b"HTTP/1.1 200 ")

    run(work())


def test_servers_that_answer_no_probe_make_it_unhealthy() -> None:
    async def work() -> None:
        async with gateway([Backend(is_healthy=False)], [Backend(is_healthy=False)]) as running:
            assert (await running.said_to(HEALTH)).startswith(b"HTTP/1.1 503 ")

    run(work())


def test_a_stream_that_the_gateways_end_cuts_off_says_so() -> None:
    async def streams_and_hangs(asked: Asked) -> None:
        await asked.begin()
        for part in tokens(3):
            await asked.chunk(part)
        await asyncio.Event().wait()

    async def work() -> None:
        async with gateway([Backend(streams_and_hangs)], [Backend(streams_five)]) as running:
            reader, writer = await running.caller()
            writer.write(post())
            begun = await reader.readuntil(b"token2")
            await running.service.close()
            body = dechunked(begun + await reader.read())
            assert b"the gateway was stopped in the middle of the answer" in body
            assert [each.end for each in running.reports] == [RequestEnd.CUT]
            writer.transport.abort()

    run(work())
