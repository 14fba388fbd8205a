"""Answers on their way through: byte for byte, from another server where one fails in time, never half and half."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import cast

import pytest

from gateways import (
    CHAT,
    ENDING,
    Asked,
    Backend,
    Running,
    dechunked,
    event,
    gateway,
    get,
    length_of,
    post,
    streams_five,
    tokens,
)
from speclift.core.routing import RequestEnd

FIVE = b"".join(tokens(5)) + ENDING


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def dies_at_once(asked: Asked) -> None:
    asked.die()


async def dies_after_its_head(asked: Asked) -> None:
    await asked.begin()
    await asyncio.sleep(0.05)
    asked.die()


async def dies_after_two(asked: Asked) -> None:
    await asked.begin()
    for part in tokens(2):
        await asked.chunk(part)
    await asyncio.sleep(0.05)
    asked.die()


class TestAnswers:
    def test_a_stream_comes_byte_for_byte_and_says_its_pool(self) -> None:
        async def work() -> None:
            async with gateway([Backend()], [Backend()]) as running:
                answer = await running.said_to(post())
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert b"\r\nx-speclift-pool: spec\r\n" in answer
                assert dechunked(answer) == FIVE
                (seen,) = await running.reported(1)
                assert (seen.end, seen.status, seen.output_tokens) == (RequestEnd.OK, 200, 5)
                assert seen.ttft_s is not None
                assert running.service.pools().spec[0].running == 0

        run(work())

    @pytest.mark.parametrize("cut", [1, 2, 3, 7, 50, 119, 120, 500])
    def test_however_the_server_cuts_it(self, cut: int) -> None:
        """Chunks that end in the middle of an event, reads that end in the middle of a chunk."""

        async def behave(asked: Asked) -> None:
            await asked.begin()
            framed = b"".join(
                b"%x\r\n%b\r\n" % (len(FIVE[at : at + 37]), FIVE[at : at + 37])
                for at in range(0, len(FIVE), 37)
            )
            framed += b"0\r\n\r\n"
            for at in range(0, len(framed), cut):
                asked.writer.write(framed[at : at + cut])
                await asyncio.sleep(0)

        async def work() -> None:
            async with gateway([Backend(behave)], []) as running:
                assert dechunked(await running.said_to(post())) == FIVE

        run(work())

    def test_what_is_no_generation_is_passed_on_as_it_is(self) -> None:
        body = bytes(range(256)) * 10

        async def behave(asked: Asked) -> None:
            await asked.whole(asked.body[::-1], status=418, kind="image/png")

        async def work() -> None:
            backend = Backend(behave)
            async with gateway([backend], []) as running:
                answer = await running.said_to(post(body, path="/v1/files?x=%20y", fields="X-Kept: \xe9\r\n"))
                assert answer.startswith(b"HTTP/1.1 418 Said\r\ncontent-type: image/png\r\n")
                assert dechunked(answer) == body[::-1]
                assert backend.asked[0].body == body
                assert backend.asked[0].head.startswith(b"POST /v1/files?x=%20y HTTP/1.1\r\n")
                assert b"\r\nx-kept: \xe9\r\n" in backend.asked[0].head

        run(work())

    def test_a_head_request_and_answers_without_a_body(self) -> None:
        async def behave(asked: Asked) -> None:
            if asked.head.startswith(b"HEAD"):
                asked.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            else:
                asked.writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

        async def work() -> None:
            async with gateway([Backend(behave)], []) as running:
                head = b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
                answer = await running.said_to(head + get("/nothing"))
                first, _, rest = answer.partition(b"\r\n\r\n")
                assert length_of(first + b"\r\n") == 1000
                assert rest.startswith(b"HTTP/1.1 204 No Content\r\n")
                assert rest.endswith(b"\r\n\r\n")
                assert b"content-length" not in rest

        run(work())

    def test_a_body_that_waits_for_leave_and_one_in_chunks(self) -> None:
        async def work() -> None:
            backend = Backend()
            async with gateway([backend], []) as running:
                reader, writer = await running.caller()
                head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
                writer.write(head.encode() + b"expect: 100-continue\r\n\r\n")
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(b'4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n')
                await reader.readuntil(b"0\r\n\r\n")
                assert backend.asked[0].body == b'{"a":1}'
                assert b"transfer-encoding" not in backend.asked[0].head
                writer.close()

        run(work())


class TestServersThatFail:
    @pytest.mark.parametrize("fails", [dies_at_once, dies_after_its_head])
    def test_before_it_began_another_answers(self, fails: object) -> None:
        async def work() -> None:
            broken, other = Backend(fails), Backend()  # type: ignore[arg-type]
            async with gateway([broken], [other]) as running:
                answer = await running.said_to(post())
                assert b"\r\nx-speclift-pool: plain\r\n" in answer
                assert dechunked(answer) == FIVE
                (seen,) = await running.reported(1)
                assert (seen.attempts, seen.server) == (2, other.url)
                assert not running.service.members[0].is_up

        run(work())

    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    def test_an_answer_of_failure_is_tried_elsewhere_once_all_are_asked_it_is_passed_on(
        self, status: int
    ) -> None:
        async def fails(asked: Asked) -> None:
            await asked.whole(b'{"error":"not now"}', status=status)

        async def work() -> None:
            async with gateway([Backend(fails)], [Backend()]) as running:
                assert dechunked(await running.said_to(post())) == FIVE
            async with gateway([Backend(fails)], [Backend(fails)]) as running:
                answer = await running.said_to(post())
                assert answer.startswith(b"HTTP/1.1 %d " % status)
                assert dechunked(answer) == b'{"error":"not now"}'
                (seen,) = await running.reported(1)
                assert (seen.end, seen.attempts) == (RequestEnd.REFUSED, 2)

        run(work())

    @pytest.mark.parametrize("code", [500, 503])
    def test_a_stream_that_is_an_error_from_its_first_event_is_tried_elsewhere(self, code: int) -> None:
        """As vLLM answers a request in its queue when its engine dies: 200 OK came before."""
        error = b'data: {"error":{"message":"the engine is dead","code":%d}}\n\n' % code

        async def says_it_is_dead(asked: Asked) -> None:
            await asked.begin()
            await asked.chunk(error)
            await asked.chunk(b"data: [DONE]\n\n")
            await asked.end()

        async def work() -> None:
            async with gateway([Backend(says_it_is_dead)], [Backend()]) as running:
                assert dechunked(await running.said_to(post())) == FIVE
                (seen,) = await running.reported(1)
                assert (seen.end, seen.attempts) == (RequestEnd.OK, 2)
            async with gateway([Backend(says_it_is_dead)], [Backend(says_it_is_dead)]) as running:
                assert dechunked(await running.said_to(post())) == error + b"data: [DONE]\n\n"
                (seen,) = await running.reported(1)
                assert (seen.end, seen.attempts) == (RequestEnd.REFUSED, 2)

        run(work())

    def test_what_the_caller_did_wrong_is_not_tried_again(self) -> None:
        async def refuses(asked: Asked) -> None:
            await asked.whole(b'{"error":"no such model"}', status=404)

        async def work() -> None:
            other = Backend()
            async with gateway([Backend(refuses)], [other]) as running:
                assert (await running.said_to(post())).startswith(b"HTTP/1.1 404 ")
                assert other.asked == []

        run(work())

    def test_in_the_middle_of_a_stream_it_ends_with_an_error_event(self) -> None:
        async def work() -> None:
            other = Backend()
            async with gateway([Backend(dies_after_two)], [other]) as running:
                body = dechunked(await running.said_to(post()))
                assert body.startswith(b"".join(tokens(2)))
                (last,) = body.removeprefix(b"".join(tokens(2))).split(b"\n\n")[:-1]
                error = json.loads(last.removeprefix(b"data: "))["error"]
                assert error["code"] == 502
                assert "in the middle of the answer" in error["message"]
                assert other.asked == []
                (seen,) = await running.reported(1)
                assert seen.end is RequestEnd.CUT

        run(work())

    @pytest.mark.parametrize("half", [event("x")[:-1], event("x")[:20]])
    def test_in_the_middle_of_an_event_the_connection_breaks(self, half: bytes) -> None:
        """An error event behind half an event would be read as a part of it."""

        async def behave(asked: Asked) -> None:
            await asked.begin()
            await asked.chunk(half)
            await asyncio.sleep(0.05)
            asked.die()

        async def work() -> None:
            async with gateway([Backend(behave)], []) as running:
                answer = await running.said_to(post())
                with pytest.raises((AssertionError, ValueError)):
                    dechunked(answer)

        run(work())

    def test_an_answer_with_a_length_that_breaks_off_is_not_passed_for_whole(self) -> None:
        async def behave(asked: Asked) -> None:
            asked.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            await asyncio.sleep(0.05)
            asked.die()

        async def work() -> None:
            async with gateway([Backend(behave)], []) as running:
                answer = await running.said_to(post())
                with pytest.raises((AssertionError, ValueError)):
                    dechunked(answer)

        run(work())

    @pytest.mark.slow
    def test_a_pool_comes_back_by_itself(self) -> None:
        async def work() -> None:
            backend, other = Backend(), Backend()
            async with gateway([backend], [other]) as running:
                await backend.close()
                assert b"x-speclift-pool: plain" in await running.said_to(post())
                assert not running.service.members[0].is_up
                await backend.open()
                async with asyncio.timeout(30):
                    while not running.service.members[0].is_up:
                        await asyncio.sleep(0.02)
                assert b"x-speclift-pool: spec" in await running.said_to(post())
                assert [line.rpartition(" ")[2] for line in running.said][-1] == "back"

        run(work())

    def test_a_connection_that_was_kept_too_long_is_no_failure(self) -> None:
        async def work() -> None:
            backend = Backend()
            async with gateway([backend], []) as running:
                assert dechunked(await running.said_to(post())) == FIVE
                for asked in backend.asked:
                    asked.die()
                assert dechunked(await running.said_to(post())) == FIVE
                assert [seen.attempts for seen in await running.reported(2)] == [1, 1]
                assert running.service.members[0].is_up

        run(work())


class TestCallers:
    def test_one_that_leaves_ends_its_request_at_the_server(self) -> None:
        async def work() -> None:
            gone = asyncio.Event()

            async def behave(asked: Asked) -> None:
                await asked.begin()
                try:
                    while True:
                        await asked.chunk(event("more"))
                        await asyncio.sleep(0.01)
                except ConnectionError:
                    gone.set()
                    raise

            async with gateway([Backend(behave)], []) as running:
                reader, writer = await running.caller()
                writer.write(post())
                await reader.readuntil(b"more")
                writer.transport.abort()
                await gone.wait()
                (seen,) = await running.reported(1)
                assert seen.end is RequestEnd.LEFT
                assert running.service.pools().spec[0].running == 0

        run(work())

    @pytest.mark.slow
    def test_one_that_reads_slowly_holds_its_server_back_and_nobody_else(self) -> None:
        async def work() -> None:
            sent = 0

            async def behave(asked: Asked) -> None:
                nonlocal sent
                await asked.begin()
                for _ in range(4000):
                    await asked.chunk(b"x" * 8192)
                    sent += 8192
                await asked.end()

            async with gateway([Backend(behave)], [Backend()]) as running:
                reader, writer = await running.caller()
                writer.write(post())
                await reader.readuntil(b"x")
                cast(asyncio.Transport, writer.transport).pause_reading()
                before = -1
                while sent != before:
                    before = sent
                    await asyncio.sleep(0.3)
                # Kernel buffers on both sides hold some; the gateway itself 64 KiB.
                assert sent < 20_000_000
                running.service.switch(is_plain_only=True)
                assert dechunked(await running.said_to(post())) == FIVE
                cast(asyncio.Transport, writer.transport).resume_reading()
                async with asyncio.timeout(15):
                    rest = await reader.read()
                assert rest.endswith(b"\r\n0\r\n\r\n")
                assert sent == 4000 * 8192
                writer.close()

        run(work())

    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n", 413),
            (b"\x16\x03\x01", 400),
        ],
    )
    def test_what_is_refused_reaches_no_server(self, data: bytes, status: int) -> None:
        async def work() -> None:
            backend = Backend()
            async with gateway([backend], []) as running:
                answer = await running.said_to(data)
                assert answer.startswith(b"HTTP/1.1 %d " % status)
                assert json.loads(dechunked(answer))["error"]["code"] == status
                assert backend.asked == []
                assert running.service.state.held_bytes == 0

        run(work())


class TestKeys:
    TOKEN = "a-token-of-some-length"

    def test_a_token_opens_the_gateway_and_goes_no_further(self) -> None:
        async def work() -> None:
            backend = Backend()
            async with gateway([backend], [], token=self.TOKEN) as running:
                for wrong in ("", "authorization: Bearer no\r\n", f"authorization: Basic {self.TOKEN}\r\n"):
                    assert (await running.said_to(post(fields=wrong))).startswith(b"HTTP/1.1 401 ")
                    assert (await running.said_to(get("/metrics", fields=wrong))).startswith(b"HTTP/1.1 401 ")
                assert backend.asked == []
                right = f"Authorization: Bearer {self.TOKEN}\r\n"
                assert dechunked(await running.said_to(post(fields=right))) == FIVE
                assert self.TOKEN.encode() not in backend.asked[0].head
                assert (await running.said_to(get("/healthz"))).startswith(b"HTTP/1.1 200 ")

        run(work())

    def test_servers_see_their_own_key_or_the_callers(self) -> None:
        async def work() -> None:
            backend = Backend()
            async with gateway([backend], [], api_key="upstream-key") as running:
                await running.said_to(post(fields="authorization: Bearer callers-key\r\n"))
            assert b"\r\nauthorization: Bearer upstream-key\r\n" in backend.asked[0].head
            assert b"callers-key" not in backend.asked[0].head
            passing = Backend()
            async with gateway([passing], []) as running:
                await running.said_to(post(fields="authorization: Bearer callers-key\r\n"))
            assert b"\r\nauthorization: Bearer callers-key\r\n" in passing.asked[0].head

        run(work())

    def test_what_concerns_one_connection_does_not_travel(self) -> None:
        async def work() -> None:
            backend = Backend()
            async with gateway([backend], []) as running:
                fields = (
                    "connection: close, x-secret\r\nx-secret: 1\r\nupgrade: h2c\r\nkeep-alive: 5\r\nte: gzip\r\n"
                    "x-request-id: mine-1\r\naccept-encoding: gzip\r\n"
                )
                answer = await running.said_to(post(closes=False, fields=fields))
                assert b"\r\nx-request-id: mine-1\r\n" in answer
                head = backend.asked[0].head
                for name in (b"x-secret", b"upgrade", b"keep-alive", b"te:", b"gzip"):
                    assert name not in head
                assert b"\r\nx-request-id: mine-1\r\n" in head

        run(work())


class TestTheSwitch:
    def test_everything_goes_to_plain_at_once_and_back(self) -> None:
        async def work() -> None:
            async with gateway([Backend()], [Backend()]) as running:
                assert b"pool: spec" in await running.said_to(post())
                assert (await self._switch(running, b'{"plain_only": true}')).startswith(b"HTTP/1.1 200 ")
                assert b"pool: plain" in await running.said_to(post())
                assert (await self._switch(running, b'{"plain_only": false}')).startswith(b"HTTP/1.1 200 ")
                assert b"pool: spec" in await running.said_to(post())

        run(work())

    def test_a_name_that_was_made_to_point_here_is_not_answered(self) -> None:
        async def work() -> None:
            async with gateway([Backend()], [Backend()]) as running:
                data = post(
                    b'{"plain_only": true}',
                    path="/speclift/switch",
                    fields="content-type: application/json\r\n",
                ).replace(b"host: localhost", b"host: evil.example")
                assert (await running.said_to(data)).startswith(b"HTTP/1.1 421 ")
                assert not running.service.state.is_plain_only

        run(work())

    async def _switch(self, running: Running, body: bytes) -> bytes:
        return await running.said_to(
            post(body, path="/speclift/switch", fields="content-type: application/json\r\n")
        )


class TestTheEnd:
    def test_what_is_under_way_is_finished_and_nothing_new_begins(self) -> None:
        async def work() -> None:
            go_on = asyncio.Event()

            async def behave(asked: Asked) -> None:
                await asked.begin()
                await asked.chunk(event("one"))
                await go_on.wait()
                await asked.chunk(ENDING)
                await asked.end()

            async with gateway([Backend(behave)], []) as running:
                idle_reader, idle_writer = await running.caller()
                reader, writer = await running.caller()
                writer.write(post(closes=False))
                await reader.readuntil(b"one")
                draining = asyncio.create_task(running.service.drain(limit_s=10))
                assert await idle_reader.read() == b""
                with pytest.raises(ConnectionRefusedError):
                    await running.caller()
                go_on.set()
                assert (await reader.read()).endswith(b"\r\n0\r\n\r\n")
                assert await draining == 0
                idle_writer.close()
                writer.close()

        run(work())

    def test_what_does_not_end_is_counted(self) -> None:
        async def work() -> None:
            async def behave(asked: Asked) -> None:
                await asked.begin()
                await asked.chunk(event("one"))
                await asyncio.sleep(10)

            async with gateway([Backend(behave)], []) as running:
                reader, writer = await running.caller()
                writer.write(post())
                await reader.readuntil(b"one")
                assert await running.service.drain(limit_s=0.1) == 1
                writer.close()

        run(work())


def test_streams_side_by_side_are_never_mixed_up() -> None:
    async def behave(asked: Asked) -> None:
        name = json.loads(asked.body)["name"]
        await asked.begin()
        for part in tokens(20, of=f"{name}-"):
            await asked.chunk(part)
            await asyncio.sleep(0)
        await asked.end()

    async def work() -> None:
        async with gateway([Backend(behave)], [Backend(streams_five)]) as running:
            bodies = [json.dumps({"name": f"n{number}"}).encode() for number in range(60)]
            answers = await asyncio.gather(*(running.said_to(post(body)) for body in bodies))
            for number, answer in enumerate(answers):
                assert dechunked(answer) == b"".join(tokens(20, of=f"n{number}-"))

    run(work())
