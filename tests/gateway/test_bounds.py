"""What a caller or a server can do to the others: nothing that is not bounded, and nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Coroutine

import pytest

from gateways import Asked, Backend, Running, gateway, get, post, streams_five, tokens
from speclift.core.routing import RequestEnd
from speclift.live.gateway import service

TOKEN = "a-token-of-some-length"


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def until(running: Running, *, held: int, busy: int = 1) -> None:
    """Of bodies so many bytes are held; a head may be counted with them."""
    async with asyncio.timeout(30):
        while not held <= running.service.state.held_bytes <= held + 200 or running.service.busy != busy:
            await asyncio.sleep(0.005)


class Waiting:
    """A server that answers when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, asked: Asked) -> None:
        await self.go.wait()
        await streams_five(asked)


class TestBodiesThatAreHeld:
    def test_what_is_sent_ahead_does_not_hide_the_body_before_it(self) -> None:
        async def work() -> None:
            waits = Waiting()
            async with gateway([Backend(waits)], [Backend()]) as running:
                _, writer = await running.caller()
                writer.write(post(b"x" * 5000, closes=False))
                await until(running, held=5000)
                writer.write(b"POST /" + b"a" * 1000)
                await until(running, held=6006)
                waits.go.set()
                await until(running, held=1006)
                writer.transport.abort()
                await until(running, held=0, busy=0)
                assert running.service.state.held_bytes == 0

        run(work())

    def test_a_caller_that_leaves_with_bytes_ahead_leaves_nothing_behind(self) -> None:
        async def work() -> None:
            async with gateway([Backend(Waiting())], [Backend()]) as running:
                _, writer = await running.caller()
                writer.write(post(b"x" * 5000, closes=False) + post(b"y" * 3000)[:-1])
                await asyncio.sleep(0.05)
                writer.transport.abort()
                await running.reported(1)
                await until(running, held=0, busy=0)
                assert running.service.state.held_bytes == 0

        run(work())

    def test_no_refusal_is_written_into_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(service, "BODIES_BYTES_MAX", 10_000)

        async def work() -> None:
            waits = Waiting()

            async def half_then_rest(asked: Asked) -> None:
                await asked.begin()
                await asked.chunk(tokens(1)[0])
                await waits.go.wait()
                await asked.chunk(tokens(2)[1])
                await asked.end()

            async with gateway([Backend(half_then_rest)], [Backend()]) as running:
                reader, writer = await running.caller()
                writer.write(post(closes=False))
                await reader.readuntil(b"token0")
                writer.write(post(b"z" * 20_000)[:15_000])
                await asyncio.sleep(0.05)
                waits.go.set()
                rest = await reader.readuntil(b"0\r\n\r\n")
                assert b"503" not in rest
                assert b"token1" in rest
                writer.transport.abort()

        run(work())

    def test_nobody_waits_for_a_body_without_the_key(self) -> None:
        async def work() -> None:
            async with gateway([Backend()], [Backend()], token=TOKEN) as running:
                for fields in ("", "expect: 100-continue\r\n"):
                    head = post(b"x" * 1_000_000, fields=fields).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
                    assert (await running.said_to(head)).startswith(b"HTTP/1.1 401 ")

        run(work())


class TestCallersThatDoNotRead:
    @pytest.mark.slow
    def test_what_they_sent_ahead_waits_until_they_read(self) -> None:
        """Else a thousand requests for a page would lie in memory as a thousand pages."""

        async def whole(asked: Asked) -> None:
            await asked.whole(b"x" * 150_000)

        async def work() -> None:
            spec = Backend(whole)
            async with gateway([spec], [Backend()]) as running:
                reader, writer = await running.caller()
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(post(closes=False) * 200)
                await asyncio.sleep(0.5)
                # What fits between here and there, some megabytes.
                assert len(spec.asked) < 100
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                for _ in range(200):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200 ")
                    await reader.readexactly(150_000)
                assert len(spec.asked) == 200
                writer.transport.abort()

        run(work())

    @pytest.mark.slow
    def test_a_connection_whose_last_caller_was_slow_serves_the_next_one(self) -> None:
        """The pause came with the last part of the answer."""

        async def whole(asked: Asked) -> None:
            await asked.whole(b"x" * 150_000)

        async def work() -> None:
            async with gateway([Backend(whole)], [Backend()]) as running:
                _, writer = await running.caller()
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(post(closes=False) * 200)
                await asyncio.sleep(0.5)
                assert (await running.said_to(post(), limit_s=20)).endswith(b"xxx")
                writer.transport.abort()

        run(work())

    @pytest.mark.slow
    def test_a_drain_waits_for_the_rest_of_an_answer_that_is_still_being_read(self) -> None:
        async def whole(asked: Asked) -> None:
            await asked.whole(b"x" * (16 << 20))

        async def work() -> None:
            async with gateway([Backend(whole)], [Backend()]) as running:
                reader, writer = await running.caller()
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(post(closes=False))
                await asyncio.sleep(0.2)
                draining = asyncio.create_task(running.service.drain(limit_s=30))
                await asyncio.sleep(0.1)
                assert not draining.done()
                writer.transport.resume_reading()  # type: ignore[attr-defined]
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"200" in head
                assert len(await reader.read()) == 16 << 20
                assert await draining == 0
                writer.transport.abort()

        run(work())

    def test_a_drain_waits_for_a_request_that_is_half_sent(self) -> None:
        async def work() -> None:
            async with gateway([Backend()], [Backend()]) as running:
                reader, writer = await running.caller()
                request = post(b"x" * 100)
                writer.write(request[:-50])
                await asyncio.sleep(0.05)
                draining = asyncio.create_task(running.service.drain(limit_s=30))
                await asyncio.sleep(0.05)
                writer.write(request[-50:])
                assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
                assert await draining == 0
                writer.transport.abort()

        run(work())


class TestWhatIsAskedTwice:
    async def _dies(self, asked: Asked) -> None:
        asked.die()

    async def _fails(self, asked: Asked) -> None:
        await asked.whole(b"{}", status=500)

    @pytest.mark.parametrize("request_bytes", [post(), get("/v1/models"), post(path="/v1/embeddings")])
    def test_a_generation_and_a_question_may_be(self, request_bytes: bytes) -> None:
        async def work() -> None:
            for behave in (self._dies, self._fails):
                plain = Backend()
                async with gateway([Backend(behave)], [plain]) as running:
                    assert (await running.said_to(request_bytes)).startswith(b"HTTP/1.1 200 ")
                    assert len(plain.asked) == 1

        run(work())

    @pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/fine_tuning/jobs", "/v1/responses"])
    def test_what_makes_something_is_not(self, path: str) -> None:
        async def work() -> None:
            for behave, status in ((self._dies, b"502"), (self._fails, b"500")):
                plain = Backend()
                async with gateway([Backend(behave)], [plain]) as running:
                    assert (await running.said_to(post(path=path))).startswith(b"HTTP/1.1 %b " % status)
                    assert plain.asked == []

        run(work())

    def test_but_goes_elsewhere_where_the_connection_was_refused(self) -> None:
        async def work() -> None:
            spec, plain = Backend(), Backend()
            async with gateway([spec], [plain]) as running:
                await spec.close()
                assert (await running.said_to(post(path="/v1/files"))).startswith(b"HTTP/1.1 200 ")
                assert len(plain.asked) == 1

        run(work())

    def test_nor_sent_on_a_connection_that_was_kept(self) -> None:
        """Its end could not be told from a server that died at work."""

        async def work() -> None:
            spec = Backend()
            async with gateway([spec], [Backend()]) as running:
                await running.said_to(get("/v1/models"))
                before = spec.connections
                await running.said_to(post(path="/v1/files"))
                assert spec.connections == before + 1

        run(work())


class TestServersThatMisbehave:
    def test_a_refusal_without_an_end_is_not_held_for_ever(self) -> None:
        async def floods(asked: Asked) -> None:
            asked.writer.write(b"HTTP/1.1 500 Oh\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                await asked.chunk(b"x" * 65_536)

        async def work() -> None:
            async with gateway([Backend(floods)], [Backend()]) as running:
                assert (await running.said_to(post())).startswith(b"HTTP/1.1 200 ")

        run(work())

    def test_interim_answers_without_end_are_no_answer(self) -> None:
        async def interims(asked: Asked) -> None:
            while True:
                asked.writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
                await asked.writer.drain()

        async def work() -> None:
            async with gateway([Backend(interims)], [Backend()]) as running:
                assert (await running.said_to(post())).startswith(b"HTTP/1.1 200 ")

        run(work())

    def test_an_answer_before_the_whole_question_is_passed_on_and_its_connection_not_used_again(self) -> None:
        over = asyncio.Event()

        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            status = b"200" if b" /health " in head else b"413"
            writer.write(b"HTTP/1.1 %b Said\r\ncontent-length: 0\r\n\r\n" % status)
            await over.wait()
            writer.transport.abort()

        async def work() -> None:
            server = await asyncio.start_server(early, "127.0.0.1", 0)
            spec = Backend()
            spec.port, spec._server = server.sockets[0].getsockname()[1], server
            async with gateway([spec], [Backend()]) as running:
                answers = [await running.said_to(post(b"x" * (16 << 20))) for _ in range(2)]
                assert [answer.split(b" ")[1] for answer in answers] == [b"413", b"413"]
                over.set()
                await asyncio.sleep(0.01)

        run(work())

    def test_no_line_hides_in_the_words_after_the_status(self) -> None:
        async def hides(asked: Asked) -> None:
            asked.writer.write(b"HTTP/1.1 200 OK\nset-cookie: a=b\r\ncontent-length: 2\r\n\r\nok")
            await asked.writer.drain()

        async def work() -> None:
            async with gateway([Backend(hides)], [Backend()]) as running:
                answer = await running.said_to(post())
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
                assert b"cookie" not in answer

        run(work())

    def test_no_line_goes_on_in_the_next(self) -> None:
        async def folds(asked: Asked) -> None:
            head = b"HTTP/1.1 200 OK\r\nx-a: b\r\nkeep-alive: a\r\n , folded\r\nno colon\r\ncontent-length: 2"
            asked.writer.write(head + b"\r\n\r\nok")
            await asked.writer.drain()

        async def work() -> None:
            async with gateway([Backend(folds)], [Backend()]) as running:
                answer = await running.said_to(post())
                assert b"\r\nx-a: b\r\n" in answer
                assert b"folded" not in answer
                assert b"no colon" not in answer

        run(work())

    def test_an_answer_without_a_length_that_is_torn_down_is_not_whole(self) -> None:
        async def tears(asked: Asked) -> None:
            asked.writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhalf of")
            await asked.writer.drain()
            await asyncio.sleep(0.05)
            # With SO_LINGER of nothing, a reset and no end.
            sock = asked.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            asked.die()

        async def work() -> None:
            async with gateway([Backend(tears)], [Backend()]) as running:
                with contextlib.suppress(ConnectionError):
                    assert not (await running.said_to(post())).endswith(b"0\r\n\r\n")
                (seen,) = await running.reported(1)
                assert seen.end is RequestEnd.CUT

        run(work())

    def test_a_503_to_another_question_does_not_take_the_server_out(self) -> None:
        async def busy(asked: Asked) -> None:
            await asked.whole(b"{}", status=503)

        async def work() -> None:
            async with gateway([Backend(busy)], [Backend(busy)]) as running:
                assert (await running.said_to(get("/slots?fail_on_no_slot=1"))).startswith(b"HTTP/1.1 503 ")
                assert all(member.is_up for member in running.service.members)

        run(work())

    def test_an_answer_that_is_passed_on_late_names_its_own_pool(self) -> None:
        async def busy(asked: Asked) -> None:
            await asked.whole(b"{}", status=503)

        async def work() -> None:
            spec, plain = Backend(busy), Backend()
            async with gateway([spec], [plain]) as running:
                await plain.close()
                answer = await running.said_to(post())
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"x-speclift-pool: spec" in answer

        run(work())


@pytest.mark.parametrize(
    "target", ["/..", "/v1/../x", "/%2e%2E/x", "/a/./b", "/..%2fx", "/a\\..\\b", "/x/%2e.?a=b"]
)
def test_no_address_climbs_out_of_a_servers_path(target: str) -> None:
    async def work() -> None:
        async with gateway([Backend()], [Backend()]) as running:
            assert (await running.said_to(get(target))).startswith(b"HTTP/1.1 400 ")
            assert (await running.said_to(get("/v1/a..b/...?x=/../"))).startswith(b"HTTP/1.1 200 ")

    run(work())


def test_the_end_of_the_gateway_is_reported_for_every_stream_it_cuts() -> None:
    async def work() -> None:
        async with gateway([Backend(Waiting())], [Backend()]) as running:
            callers = [await running.caller() for _ in range(5)]
            for _, writer in callers:
                writer.write(post())
            async with asyncio.timeout(30):
                while running.service.busy < 5:
                    await asyncio.sleep(0.005)
            await running.service.close()
            assert [seen.end for seen in running.reports] == [RequestEnd.LEFT] * 5
            for _, writer in callers:
                writer.transport.abort()

    run(work())


def test_whoever_comes_beyond_the_bound_is_told_and_let_go_at_once() -> None:
    async def work() -> None:
        async with gateway([Backend()], [Backend()]) as running:
            running.service._connections_max = 2
            callers = [await running.caller() for _ in range(2)]
            answer = await running.said_to(b"", limit_s=0.4)
            assert answer.startswith(b"HTTP/1.1 503 ")
            for _, writer in callers:
                writer.transport.abort()
            async with asyncio.timeout(30):
                while not (await running.said_to(post())).startswith(b"HTTP/1.1 200 "):
                    await asyncio.sleep(0.01)

    run(work())


def test_the_cookie_that_opens_the_gateways_own_pages_stays_here() -> None:
    async def work() -> None:
        spec = Backend()
        async with gateway([spec], [Backend()], token=TOKEN) as running:
            key = f"authorization: Bearer {TOKEN}\r\n"
            for cookie in ("a=b; speclift_watch=opens-the-page", "a=b"):
                await running.said_to(post(fields=f"{key}cookie: {cookie}\r\n"))
            assert [b"cookie" in asked.head for asked in spec.asked] == [False, True]
            assert b"opens-the-page" not in spec.asked[0].head

    run(work())
