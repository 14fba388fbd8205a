"""Requests to a server, each bounded in bytes and, from connecting to the last byte, in time. Measured traffic never
goes through here.

No proxy is used, as measured traffic uses none. A redirect is followed only within the same server and where no
secret travels.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urljoin

from speclift.core.address import Address, address_of, joined, shown, without_secrets
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError, UsageError
from speclift.core.foreign_text import READ_BYTES_MAX, error_text, parse_json
from speclift.core.traffic import Request
from speclift.core.units import Seconds
from speclift.http.message import HttpError, ResponseReader, Target, target_at

LIMIT_S = 120.0
# A server's page about itself; vLLM's metrics with all their histograms have some 200 kB (0.32).
PAGE_BYTES_MAX = 8 << 20
# An answer with the probabilities of many tokens.
ANSWER_BYTES_MAX = 64 << 20
READ_BYTES = 1 << 16
ERROR_CHARACTERS = 300
REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_MAX = 3


class BrokenOff(ConnectionError):
    """The server closed the connection before the answer was whole."""


@dataclass(slots=True)
class ServerReply:
    """What a server answered, as far as it was read."""

    head: ResponseReader = field(default_factory=ResponseReader)
    body: bytearray = field(default_factory=bytearray)
    # Whether the body went on beyond what was read.
    is_cut: bool = False

    @property
    def is_error(self) -> bool:
        return self.head.status != 0 and not 200 <= self.head.status < 300


def fetch(
    url: str,
    *,
    data: bytes | None = None,
    api_key: str | None = None,
    limit_s: Seconds = LIMIT_S,
    bytes_max: int = PAGE_BYTES_MAX,
) -> str:
    """The same as `fetched`, for a thread without an event loop."""
    return asyncio.run(fetched(url, data=data, api_key=api_key, limit_s=limit_s, bytes_max=bytes_max))


async def fetched(
    url: str,
    *,
    data: bytes | None = None,
    api_key: str | None = None,
    limit_s: Seconds = LIMIT_S,
    bytes_max: int = PAGE_BYTES_MAX,
) -> str:
    """The body of an answer of success; EngineError with what was seen otherwise. `limit_s` is for all of it."""
    connection = KeptConnection(is_kept=False)
    try:
        return await connection.fetch(url, data=data, api_key=api_key, limit_s=limit_s, bytes_max=bytes_max)
    finally:
        connection.close()


async def posted_json(
    url: str, body: Mapping[str, object], *, api_key: str | None = None, limit_s: Seconds = LIMIT_S
) -> Mapping[str, object]:
    """The object that a server answers with; EngineError for anything else."""
    data = json.dumps(body).encode()
    text = await fetched(url, data=data, api_key=api_key, limit_s=limit_s, bytes_max=ANSWER_BYTES_MAX)
    try:
        answer = parse_json(text)
    except ValueError as error:
        raise EngineError(f"{shown(url)} did not answer with JSON: {text[:120]!r}") from error
    if not isinstance(answer, dict):
        raise EngineError(f"{shown(url)} did not answer with a JSON object: {text[:120]!r}")
    return answer


async def post_to(endpoint: Endpoint, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
    return await posted_json(joined(endpoint.base_url, path), body, api_key=endpoint.api_key)


def completion_path(request: Request) -> str:
    return "/v1/chat/completions" if request.messages else "/v1/completions"


def completion_body(
    endpoint: Endpoint,
    request: Request,
    *,
    seed: int,
    temperature: float | None,
    top_p: float | None,
    is_streamed: bool = True,
) -> dict[str, object]:
    """What a request of ours says to a server, but for settings of its own; None is the server's default."""
    return {
        "model": endpoint.model,
        "max_tokens": request.max_tokens,
        "stream": is_streamed,
        **({"stream_options": {"include_usage": True}} if is_streamed else {}),
        "seed": seed,
        **dict(endpoint.extra_body),
        **(
            {"messages": [{"role": m.role, "content": m.content} for m in request.messages]}
            if request.messages
            else {"prompt": request.prompt}
        ),
        **({} if temperature is None else {"temperature": temperature}),
        **({} if top_p is None else {"top_p": top_p}),
    }


class KeptConnection:
    """A connection that is kept between requests: for whoever asks hundreds of servers every few seconds. A request
    that goes to another server opens another."""

    def __init__(self, *, is_kept: bool = True) -> None:
        self._wish = {"Connection": "keep-alive" if is_kept else "close"}
        self._origin: tuple[str, str, int] | None = None
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def fetch(
        self,
        url: str,
        *,
        api_key: str | None,
        limit_s: Seconds,
        bytes_max: int = PAGE_BYTES_MAX,
        data: bytes | None = None,
    ) -> str:
        """The body of an answer of success; EngineError with what was seen otherwise."""
        asked, until_s = url, asyncio.get_running_loop().time() + limit_s
        for _ in range(REDIRECTS_MAX):
            address = address_of(asked)
            left_s = until_s - asyncio.get_running_loop().time()
            request = _request_bytes(address, data, api_key, self._wish)
            reply = await self._ask(shown(asked), address, request, bytes_max, left_s, limit_s)
            if reply.head.status not in REDIRECTS or not reply.head.location:
                return _body_of(shown(asked), reply, bytes_max)
            asked = _followed(asked, address, reply.head, carries_secret=bool(api_key or data))
        raise EngineError(f"{shown(url)} redirects too often, the last time to {shown(asked)}")

    async def status_of(self, url: str, *, api_key: str | None, limit_s: Seconds) -> int:
        """What the server answers to a GET, whatever that is; a redirect is an answer too."""
        address = address_of(url)
        request = _request_bytes(address, None, api_key, self._wish)
        return (await self._ask(shown(url), address, request, READ_BYTES_MAX, limit_s, limit_s)).head.status

    async def status_of_post(
        self, address: Address, data: bytes, *, fields: Mapping[str, str], limit_s: Seconds, place: str
    ) -> int:
        """What the server answers to this body; a redirect is an answer like any other, and followed by nobody."""
        request = _request_bytes(address, data, None, {"Connection": "close", **fields})
        try:
            return (await self._ask(place, address, request, READ_BYTES_MAX, limit_s, limit_s)).head.status
        finally:
            self.close()

    def close(self) -> None:
        if self._link is not None:
            self._link[1].transport.abort()
        self._link = None

    async def _ask(
        self,
        place: str,
        address: Address,
        request: bytes,
        bytes_max: int,
        left_s: Seconds,
        limit_s: Seconds,
    ) -> ServerReply:
        """An answer that is whole or longer than wanted, or the status of an error; `place` is how the server is
        called in an EngineError."""
        is_kept, reply, is_whole = self._is_open_to(address), ServerReply(), False
        try:
            async with asyncio.timeout(left_s):
                try:
                    await self._exchange(address, request, bytes_max, reply)
                except ConnectionError:
                    # One that was kept too long says nothing about the server.
                    if not is_kept or reply.head.has_begun:
                        raise
                    self.close()
                    await self._exchange(address, request, bytes_max, reply)
            is_whole = not reply.is_cut and reply.head.keeps_alive
        except (OSError, HttpError, ValueError) as error:
            # The status of an error says what is wrong; a body that does not come says no more.
            if reply.is_error:
                return reply
            if isinstance(error, TimeoutError):
                raise EngineError(
                    f"{place} did not answer completely within {limit_s:g} s",
                    hint="is the server up? try curl",
                ) from error
            raise _unanswered(place, error) from error
        finally:
            if not is_whole:
                # In the middle of an answer: the rest of it would be taken for the next one.
                self.close()
        return reply

    def _is_open_to(self, address: Address) -> bool:
        if self._link is None or self._origin != address.origin:
            return False
        reader, writer = self._link
        return not writer.is_closing() and not reader.at_eof()

    async def _exchange(self, address: Address, request: bytes, bytes_max: int, reply: ServerReply) -> None:
        if not self._is_open_to(address):
            self.close()
            self._link = await _connected(address)
            self._origin = address.origin
        assert self._link is not None
        reader, writer = self._link
        writer.write(request)
        await writer.drain()
        async with contextlib.aclosing(pieces(reader, reply.head)) as parts:
            async for part in parts:
                reply.body += part
                if len(reply.body) > (READ_BYTES_MAX if reply.is_error else bytes_max):
                    reply.is_cut = True
                    return


async def pieces(reader: asyncio.StreamReader, response: ResponseReader) -> AsyncGenerator[bytes, None]:
    """The parts of a body as they come; HttpError or BrokenOff where it does not come to its end."""
    while not response.is_done:
        data = await reader.read(READ_BYTES)
        if data:
            yield response.feed(data)
        elif not response.end():
            words = "the connection ended in mid-answer" if response.has_begun else "no answer"
            raise BrokenOff(words)


@contextlib.asynccontextmanager
async def sent(target: Target, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection of its own with the request on its way. It is closed whatever happens: that is how a server learns
    that its caller left."""
    reader, writer = await _connected(target.address)
    try:
        writer.write(data)
        await writer.drain()
        yield reader
    finally:
        writer.transport.abort()


async def _connected(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    tls = trusted_for(address)
    return await asyncio.open_connection(address.host, address.port, ssl=tls, limit=READ_BYTES)


def trusted_for(address: Address) -> ssl.SSLContext | None:
    """None where nothing is encrypted."""
    if not address.is_tls:
        return None
    return _trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)
def _trust(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """As the system and these settings of the environment have it. Once: it reads a hundred certificates."""
    return ssl.create_default_context()


def _request_bytes(
    address: Address, data: bytes | None, api_key: str | None, fields: Mapping[str, str]
) -> bytes:
    target = target_at(address, api_key=api_key, fields=fields)
    return target.get() if data is None else target.request("", data)


def _unanswered(place: str, error: Exception) -> EngineError:
    if isinstance(error, HttpError) and "with compression" in error.words:
        return EngineError(
            f"{place} {error.words}", hint="turn compression off in the proxy in front of the server"
        )
    is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
    hint = "set SSL_CERT_FILE to a file with the trusted certificates" if is_untrusted else ""
    # asyncio's own words repeat the address; names that nobody knows have numbers below zero.
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and (error.errno or 0) > 0:
        error = OSError(error.errno, os.strerror(error.errno or 0))
    words = without_secrets(str(error) or type(error).__name__)[:ERROR_CHARACTERS]
    return EngineError(f"{place} did not answer: {words}", hint=hint)


def _body_of(place: str, reply: ServerReply, bytes_max: int) -> str:
    if reply.is_error:
        status, text = reply.head.status, error_text(bytes(reply.body), limit=ERROR_CHARACTERS)
        raise EngineError(f"{place} answered {status}: {without_secrets(text)}", hint=_status_hint(status))
    if reply.is_cut:
        raise EngineError(
            f"{place} sent more than {bytes_max >> 20} MiB, too much for this page",
            hint="is this the address of the model server itself?",
        )
    return reply.body.decode("utf-8", "replace")


def _status_hint(status: int) -> str:
    if status in (401, 403):
        return "give the environment variable with the server's key: --api-key-env NAME"
    return "give the server's address without /v1" if status == 404 else ""


def _followed(asked: str, address: Address, head: ResponseReader, *, carries_secret: bool) -> str:
    """The next address to ask; EngineError where that would carry something to where it was not meant for."""
    try:
        moved_to = urljoin(asked, head.location)
        there = address_of(moved_to)
    except (UsageError, ValueError):
        moved_to, there = "an invalid address", None
    words = f"{shown(asked)} answered {head.status}: moved to {without_secrets(shown(moved_to))}"
    if there is None or there.origin != address.origin:
        raise EngineError(
            words, hint="redirects to another server are not followed; if the new address is right, give it"
        )
    if carries_secret or address.has_secret:
        raise EngineError(
            words, hint="redirects are not followed with a key or a prompt; give the new address"
        )
    return moved_to
