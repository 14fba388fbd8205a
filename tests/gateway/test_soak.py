"""Chance at work on both sides: whatever servers and callers do, everything is counted back to nothing in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from gateways import ENDING, Asked, Backend, Running, dechunked, gateway, get, post, streams_five, tokens
from speclift.core.routing import RequestEnd
from speclift.live.gateway.loop import run_on_fastest_loop

FIVE = b"".join(tokens(5)) + ENDING


class Chaos:
    """What one server does next, by chance."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._kinds: list[Callable[[Asked], Coroutine[None, None, None]]] = [
            *([streams_five] * 4),
            *(
                self._whole,
                self._refuses,
                self._broken,
                self._dies,
                self._dies_later,
                self._short,
                self._long,
            ),
            *(self._byte_by_byte, self._interims, self._garbage, self._old, self._trailers, self._no_body),
        ]

    async def __call__(self, asked: Asked) -> None:
        if self._draw.random() < 0.3:
            await asyncio.sleep(self._draw.random() * 0.02)
        await self._draw.choice(self._kinds)(asked)

    async def _raw(self, asked: Asked, data: bytes) -> None:
        asked.writer.write(data)
        await asked.writer.drain()

    async def _whole(self, asked: Asked) -> None:
        await asked.whole(b"x" * self._draw.choice([0, 1, 1000, 300_000]))

    async def _refuses(self, asked: Asked) -> None:
        await asked.whole(b'{"error":{"message":"no"}}', status=self._draw.choice([400, 404, 429]))

    async def _broken(self, asked: Asked) -> None:
        await asked.whole(b"{}", status=self._draw.choice([500, 502, 503]))

    async def _dies(self, asked: Asked) -> None:
        asked.die()

    async def _dies_later(self, asked: Asked) -> None:
        await asked.begin()
        await asked.chunk(tokens(1)[0])
        asked.die()

    async def _short(self, asked: Asked) -> None:
        await self._raw(asked, b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nfew")
        asked.writer.close()

    async def _long(self, asked: Asked) -> None:
        await self._raw(asked, b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nfewHTTP/1.1 200 OK\r\n")

    async def _byte_by_byte(self, asked: Asked) -> None:
        for byte in b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nfew\r\n0\r\n\r\n":
            await self._raw(asked, bytes([byte]))
            await asyncio.sleep(0)

    async def _interims(self, asked: Asked) -> None:
        await self._raw(asked, b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" * self._draw.choice([1, 3, 100]))
        await streams_five(asked)

    async def _garbage(self, asked: Asked) -> None:
        await self._raw(asked, self._draw.randbytes(200))

    async def _old(self, asked: Asked) -> None:
        await self._raw(asked, b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
        asked.writer.close()

    async def _trailers(self, asked: Asked) -> None:
        await self._raw(
            asked, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nfew\r\n0\r\nx: y\r\n\r\n"
        )

    async def _no_body(self, asked: Asked) -> None:
        await self._raw(asked, b"HTTP/1.1 204 No Content\r\n\r\n")


async def calls(running: Running, draw: random.Random) -> None:
    """One connection of a caller that does something, by chance."""
    reader, writer = await running.caller()
    request = draw.choice([post(), post(b"x" * 200_000), get("/v1/models"), post(path="/v1/files")])
    how = draw.randrange(7)
    try:
        async with asyncio.timeout(30):
            if how == 0:  # leaves in the middle of its request
                writer.write(request[: draw.randrange(len(request))])
            elif how == 1:  # leaves at once
                writer.write(request)
                await writer.drain()
            elif how == 2:  # leaves in the middle of the answer
                writer.write(request)
                await reader.read(draw.choice([1, 100, 1000]))
            elif how == 3:  # sends several ahead, the last of them in part
                kept = request.replace(b"connection: close\r\n", b"")
                writer.write(kept * 3 + request + b"GET /he")
                await reader.read()
            elif how == 4:  # closes its half
                writer.write(request)
                writer.write_eof()
                await reader.read()
            elif how == 5:
                writer.write(b"GET / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            else:
                writer.write(request)
                answer = await reader.read()
                if b"data: " in answer and b"[DONE]" in answer:
                    assert dechunked(answer) == FIVE
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@pytest.mark.parametrize("seed", range(3))
def test_everything_is_counted_back_to_nothing(seed: int) -> None:
    async def work() -> None:
        draw = random.Random(seed)
        before = descriptors()
        spec, plain = Backend(Chaos(draw)), [Backend(Chaos(draw)), Backend()]
        async with gateway([spec], plain) as running:
            for _ in range(10):
                await asyncio.gather(*(calls(running, draw) for _ in range(20)))
                if draw.random() < 0.2:
                    await spec.close()
                    await asyncio.sleep(0.05)
                    await spec.open()
            state = running.service.state
            async with asyncio.timeout(30):
                while running.service.busy or state.callers:
                    await asyncio.sleep(0.01)
            assert state.held_bytes == 0
            assert [member.running for member in running.service.members] == [0, 0, 0]
            assert not [task for task in asyncio.all_tasks() if "CallerConnection" in str(task.get_coro())]
            names = [seen.request_id for seen in running.reports]
            assert len(names) == len(set(names))
            # Which of the others come is chance.
            assert {seen.end for seen in running.reports} >= {RequestEnd.OK, RequestEnd.LEFT}
            assert all(seen.e2e_s >= (seen.ttft_s or 0) >= 0 for seen in running.reports)
        await asyncio.sleep(0.05)
        assert descriptors() <= before + 8

    # As it runs in production, and as it runs without that.
    (run_on_fastest_loop if seed % 2 else asyncio.run)(asyncio.wait_for(work(), 100))
