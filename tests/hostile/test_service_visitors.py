"""The watch's own server before whoever comes: slow, endless, ambiguous, from a foreign page, without the token."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from speclift.core.errors import UsageError
from speclift.http import pages as module
from speclift.http.pages import COOKIE, Guard, HttpService, WebAnswer, WebRequest

TOKEN = "open-sesame-open-sesame"
Told = TypeVar("Told")


def page(request: WebRequest) -> WebAnswer:
    return WebAnswer(body=f"{request.path} {sorted(request.query.items())}".encode())


ROUTES = {"/": page, "/healthz": page, "/api/now": page}


def with_service(
    work: Callable[[int], Awaitable[Told]], *, token: str | None = None, is_loopback: bool = True
) -> Told:
    async def run() -> Told:
        service = HttpService(ROUTES, Guard(token=token, is_loopback=is_loopback))
        address = await service.open("127.0.0.1", 0)
        try:
            return await work(int(address.rstrip("/").rpartition(":")[2]))
        finally:
            await service.close()

    return asyncio.run(run())


async def sent(port: int, data: bytes) -> bytes:
    """All that comes back until the other side ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def asked(data: bytes, **guard: object) -> bytes:
    return with_service(lambda port: sent(port, data), **guard)  # type: ignore[arg-type]


def get(target: str = "/", *fields: str, method: str = "GET", host: str = "localhost") -> bytes:
    lines = (f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *fields)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


class TestWhatIsAnswered:
    def test_a_page(self) -> None:
        answer = asked(get("/api/now?server=http%3A%2F%2Fa&hours=1"))
        assert status(answer) == 200
        assert body(answer) == b"/api/now [('hours', '1'), ('server', 'http://a')]"

    def test_every_answer_protects_its_reader(self) -> None:
        for request in (get("/"), get("/none"), get("/", host="evil.example")):
            head = asked(request).partition(b"\r\n\r\n")[0].decode()
            assert "Content-Security-Policy: default-src 'none'; " in head
            assert "X-Content-Type-Options: nosniff" in head
            assert "Referrer-Policy: no-referrer" in head
            assert "frame-ancestors 'none'" in head
            assert "Cache-Control: no-store" in head

    def test_no_nonce_comes_twice(self) -> None:
        def nonce() -> bytes:
            return asked(get("/")).partition(b"nonce-")[2][:22]

        assert nonce() != nonce()


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (get(method="POST"), 405),
        (get(method="DELETE"), 405),
        (get(method="TRACE"), 405),
        (get("/none"), 404),
        (get("/../../etc/passwd"), 400),
        (get("/%2e%2e/etc/passwd"), 400),
        (get("//"), 404),
        (get("/api/now/"), 404),
        (get("/API/NOW"), 404),
        (get("/healthz%00"), 404),
        (get("/?" + "&".join(f"a{n}=1" for n in range(50))), 400),
        (get("/?" + "a" * 5000), 414),
        (get("/", "Content-Length: 5"), 413),
        (get("/", "Transfer-Encoding: chunked"), 413),
        (get("/", *(f"X{n}: 1" for n in range(100))), 431),
        (get("/", "X: " + "y" * 40_000), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        ("GET /é HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), 400),
    ],
)
def test_what_is_refused(request_bytes: bytes, code: int) -> None:
    answer = asked(request_bytes)
    assert status(answer) == code
    assert answer.count(b"HTTP/1.1 ") == 1


class TestNamesThatPointHere:
    """DNS rebinding: a page of somebody else's whose name was made to lead to this machine."""

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "",
            "evil@localhost",
            "localhost:x",
        ],
    )
    def test_others_are_not(self, host: str) -> None:
        assert status(asked(get(host=host))) == 421

    def test_with_a_token_elsewhere_any_name_is_right(self) -> None:
        request = get("/", f"Authorization: Bearer {TOKEN}", host="watch.example")
        assert status(asked(request, token=TOKEN, is_loopback=False)) == 200


class TestTheToken:
    @pytest.mark.parametrize(
        "fields",
        [
            (),
            ("Authorization: Bearer wrong",),
            (f"Authorization: Basic {TOKEN}",),
            ("Authorization: Bearer",),
            (f"Cookie: {COOKIE}={TOKEN}",),
            (f"Cookie: {COOKIE}=",),
            (f"Cookie: other={TOKEN}",),
        ],
    )
    def test_without_it_nothing_is_told(self, fields: tuple[str, ...]) -> None:
        answer = asked(get("/", *fields), token=TOKEN, is_loopback=False)
        assert status(answer) == 401
        assert b"WWW-Authenticate: Bearer" in answer

    def test_not_even_which_pages_there_are(self) -> None:
        assert status(asked(get("/none"), token=TOKEN, is_loopback=False)) == 401

    def test_once_in_the_address_then_in_a_cookie(self) -> None:
        async def visit(port: int) -> tuple[bytes, bytes]:
            first = await sent(port, get(f"/?server=a%26b&token={TOKEN}"))
            cookie = first.partition(b"Set-Cookie: ")[2].partition(b";")[0].decode()
            return first, await sent(port, get("/", f"Cookie: a=b; {cookie}"))

        first, second = with_service(visit, token=TOKEN, is_loopback=False)
        assert status(first) == 303
        assert b"Location: /?server=a%26b\r\n" in first
        assert b"HttpOnly; SameSite=Strict" in first
        assert TOKEN.encode() not in first
        assert status(second) == 200

    def test_a_wrong_one_in_the_address_gets_no_cookie(self) -> None:
        answer = asked(get("/?token=wrong"), token=TOKEN, is_loopback=False)
        assert status(answer) == 401
        assert b"Set-Cookie" not in answer


class TestTimeAndRoom:
    def test_a_head_that_drips_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "HEAD_LIMIT_S", 0.1)

        async def drip(port: int) -> float:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            began_s = time.monotonic()
            ended = asyncio.create_task(reader.read())
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            while not ended.done():
                writer.write(b"y")
                await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionResetError):  # of what it had sent and nobody read
                assert ended.result() == b""
            writer.close()
            return time.monotonic() - began_s

        assert with_service(drip) < 5

    def test_a_connection_without_a_request_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "IDLE_LIMIT_S", 0.05)
        assert asked(b"") == b""

    def test_beyond_so_many_connections_others_wait_for_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "CONNECTIONS_MAX", 5)

        async def crowd(port: int) -> tuple[int, int]:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
            await asyncio.sleep(0.05)
            try:
                refused = await sent(port, get("/"))
            except ConnectionError:
                refused = b""
            for _, writer in idle:
                writer.close()
            await asyncio.sleep(0.05)
            return len(refused), status(await sent(port, get("/")))

        assert with_service(crowd) == (0, 200)

    @pytest.mark.slow
    def test_who_does_not_take_the_answer_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "WRITE_LIMIT_S", 0.1)
        monkeypatch.setitem(ROUTES, "/", lambda _: WebAnswer(body=b"x" * 50_000_000))

        async def ignore(port: int) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(get("/"))
            await asyncio.sleep(0.5)
            size = 0
            try:
                while part := await reader.read(1 << 20):
                    size += len(part)
            except ConnectionError:
                pass
            writer.close()
            return size

        assert with_service(ignore) < 50_000_000


def test_a_name_that_means_other_machines_too_is_refused_without_a_token() -> None:
    async def go() -> None:
        service = HttpService(ROUTES, Guard(token=None, is_loopback=True))
        with pytest.raises(UsageError, match="a token is wanted"):
            await service.open("0.0.0.0", 0)

    asyncio.run(go())
