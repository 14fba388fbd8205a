"""Documents on their way to whoever wants to know: signed, tried again, never waited for, their address never said."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

import pytest

from scripted_http import ScriptedServer, answered, scripted
from speclift.live import webhook as module
from speclift.live.webhook import PENDING_MAX, Webhook

BODY = b'{"schema": 1, "verdict": "does-not-pay"}'
AT_ONCE = (0.0, 0.0)


def delivered(
    answers: list[bytes | None],
    *,
    bodies: tuple[bytes, ...] = (BODY,),
    path: str = "/hook",
    key: str | None = None,
    says: int = 0,
) -> tuple[ScriptedServer, list[str]]:
    """What came to a server that answers so, and what was said: so many lines are waited for."""

    async def run() -> tuple[ScriptedServer, list[str]]:
        said: list[str] = []
        async with scripted(lambda *_: answers.pop(0) if answers else answered()) as server:
            hook = Webhook(server.url + path, key, say=said.append, waits_s=AT_ONCE)
            running = asyncio.create_task(hook.run())
            for body in bodies:
                hook.post(body)
            await settled(
                lambda: (
                    len(server.requests) >= len(bodies) and len(said) >= says and (says > 0 or not answers)
                )
            )
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return server, said

    return asyncio.run(run())


async def settled(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.005)


def field(head: bytes, name: str) -> str:
    lines = head.decode().split("\r\n")
    return next(line.partition(": ")[2] for line in lines if line.lower().startswith(f"{name}:"))


class TestDelivery:
    def test_it_is_signed_with_the_key_over_the_exact_body(self) -> None:
        server, _ = delivered([answered()], key="sesame-sesame")
        ((head, body),) = server.requests
        expected = hmac.new(b"sesame-sesame", body, hashlib.sha256).hexdigest()
        assert field(head, "x-speclift-signature") == f"sha256={expected}"
        assert b"sesame-sesame" not in head

    @pytest.mark.parametrize("status", [500, 503, 429, 408])
    def test_what_fails_for_the_moment_is_tried_again_as_the_same_delivery(self, status: int) -> None:
        server, said = delivered([answered(status=status), answered(status=status), answered()])
        assert len(server.requests) == 3
        assert len({field(head, "x-speclift-delivery") for head, _ in server.requests}) == 1
        assert said == []

    def test_a_redirect_is_not_followed(self) -> None:
        server, said = delivered([answered(status=307, fields="Location: /elsewhere\r\n")], says=1)
        assert len(server.requests) == 1
        assert "answered 307" in said[0]

    def test_silence_is_no_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "TRY_LIMIT_S", 0.05)
        server, said = delivered([None, answered()])
        assert len(server.requests) == 2
        assert said == []


class TestSecrets:
    @pytest.mark.parametrize(
        "path", ["/services/T0001/B0002/verysecretpath", "/hook?token=verysecretpath", "/hook?verysecretpath"]
    )
    def test_nothing_of_the_address_but_its_host_is_said(self, path: str) -> None:
        _, said = delivered([answered(b"no verysecretpath here", status=403)], path=path, says=1)
        assert "verysecretpath" not in said[0]
        assert "127.0.0.1" in said[0]

    def test_nor_where_nobody_is_there(self) -> None:
        async def run() -> list[str]:
            said: list[str] = []
            hook = Webhook("http://127.0.0.1:9/services/verysecretpath", None, say=said.append, waits_s=())
            hook.post(BODY)
            running = asyncio.create_task(hook.run())
            await settled(lambda: bool(said))
            running.cancel()
            return said

        (words,) = asyncio.run(run())
        assert "http://127.0.0.1:9/…" in words
        assert "verysecretpath" not in words


class TestBounds:
    def test_of_too_many_the_oldest_are_dropped(self) -> None:
        async def run() -> tuple[list[str], list[bytes]]:
            said: list[str] = []
            async with scripted(lambda *_: answered()) as server:
                hook = Webhook(server.url, None, say=said.append, waits_s=())
                for number in range(PENDING_MAX + 5):
                    hook.post(str(number).encode())
                await hook.drain(limit_s=10)
                return said, [body for _, body in server.requests]

        said, bodies = asyncio.run(run())
        assert len(said) == 5
        assert bodies == [str(number).encode() for number in range(5, PENDING_MAX + 5)]

    def test_the_end_does_not_wait_for_a_server_that_hangs(self) -> None:
        async def run() -> list[str]:
            said: list[str] = []
            async with scripted(lambda *_: None) as server:
                hook = Webhook(server.url, None, say=said.append)
                hook.post(BODY)
                async with asyncio.timeout(5):
                    await hook.drain(limit_s=0.1)
            return said

        assert "1 documents were not delivered" in asyncio.run(run())[0]


@pytest.mark.slow
def test_https_with_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tls_front import certificate, tls_front

    async def run(behind: str, trusted: Path) -> list[str]:
        said: list[str] = []
        with tls_front(behind, certificate=trusted, key="k") as front:
            # The front lets in only who has its key, which a webhook has not: being refused is being reached.
            hook = Webhook(f"{front.url}/hook", None, say=said.append, waits_s=())
            hook.post(BODY)
            running = asyncio.create_task(hook.run())
            await settled(lambda: bool(said))
            running.cancel()
        return said

    trusted = certificate(tmp_path)
    assert "CERTIFICATE_VERIFY_FAILED" in asyncio.run(run("http://127.0.0.1:9", trusted))[0]
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    assert "answered 401" in asyncio.run(run("http://127.0.0.1:9", trusted))[0]
