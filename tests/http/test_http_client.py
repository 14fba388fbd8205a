"""Questions on a connection that is kept: whole answers, bounded, whatever the server sends."""

from __future__ import annotations

import asyncio

import pytest

from scripted_http import Answer, answered, scripted
from speclift.core.address import concealed
from speclift.core.errors import EngineError
from speclift.http.client import KeptConnection


def fetched(
    answer: Answer, *, count: int = 1, path: str = "/metrics", **limits: float
) -> tuple[list[str], int]:
    """The bodies of so many questions, and on how many connections."""

    async def ask() -> tuple[list[str], int]:
        async with scripted(answer) as server:
            connection = KeptConnection()
            try:
                bodies = [
                    await connection.fetch(
                        server.url + path,
                        api_key=None,
                        limit_s=limits.get("limit_s", 5.0),
                        bytes_max=int(limits.get("bytes_max", 1000)),
                    )
                    for _ in range(count)
                ]
            finally:
                connection.close()
            return bodies, server.connections

    return asyncio.run(ask())


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length-Not: 1\r\n\r\n"
    b"4\r\nfour\r\n3;x=y\r\nsix\r\n0\r\nT: 1\r\n\r\n"
)


class TestWholeAnswers:
    @pytest.mark.parametrize(
        ("answer", "body"),
        [
            (answered(b"page"), "page"),
            (answered(b""), ""),
            (CHUNKED, "foursix"),
            (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", "until the end"),
            (b"HTTP/1.1 100 Continue\r\n\r\n" + answered(b"page"), "page"),
        ],
    )
    def test_in_every_framing(self, answer: bytes, body: str) -> None:
        assert fetched(lambda *_: answer)[0] == [body]

    def test_one_connection_for_many_questions(self) -> None:
        assert fetched(lambda *_: answered(b"page"), count=5) == (["page"] * 5, 1)

    def test_one_that_was_closed_meanwhile_is_opened_again(self) -> None:
        async def ask() -> int:
            async with scripted(lambda *_: answered(b"page")) as server:
                connection = KeptConnection()
                for _ in range(3):
                    assert await connection.fetch(server.url, api_key=None, limit_s=5) == "page"
                    server.hang_up()
                    await asyncio.sleep(0)
                connection.close()
                return server.connections

        assert asyncio.run(ask()) == 3


class TestTrouble:
    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (b"SSH-2.0-OpenSSH\r\n\r\n", "did not answer: not an HTTP answer"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nshort", "did not answer"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n" + b"x" * 5000, "MiB"),
            (answered(b"who?", status=401), "answered 401: who?"),
            (answered(b"x" * 1001), "MiB"),
            (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000, "MiB"),
            (answered(b"x", fields="Content-Encoding: gzip\r\n"), "with compression"),
            (
                answered(b"", status=302, fields="Location: http://example.com/\r\n"),
                "moved to http://example.com",
            ),
            (answered(b"", status=302, fields="Location: /metrics\r\n"), "redirects too often"),
        ],
    )
    def test_is_named(self, answer: bytes, said: str) -> None:
        with pytest.raises(EngineError, match=said):
            fetched(lambda *_: answer)

    def test_after_an_answer_that_broke_off_the_next_is_its_own(self) -> None:
        async def ask() -> str:
            half = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
            async with scripted(lambda head, _: half if b"/half" in head else answered(b"page")) as server:
                connection = KeptConnection()
                with pytest.raises(EngineError):
                    await connection.fetch(f"{server.url}/half", api_key=None, limit_s=0.1)
                try:
                    return await connection.fetch(server.url, api_key=None, limit_s=5)
                finally:
                    connection.close()

        assert asyncio.run(ask()) == "page"


def test_the_key_and_a_password_in_the_address_are_sent_and_not_said() -> None:
    async def ask() -> None:
        async with scripted(lambda *_: answered(b"no", status=403)) as server:
            connection = KeptConnection()
            url = concealed(server.url.replace("http://", "http://me:opensesame@"))
            with pytest.raises(EngineError) as failure:
                await connection.fetch(url, api_key=None, limit_s=5)
            assert "opensesame" not in str(failure.value)
            with pytest.raises(EngineError):
                await connection.fetch(server.url, api_key="sesame", limit_s=5)
            heads = [head for head, _ in server.requests]
            assert b"Authorization: Basic bWU6b3BlbnNlc2FtZQ==" in heads[0]
            assert b"Authorization: Bearer sesame" in heads[1]
            connection.close()

    asyncio.run(ask())
