"""Questions to a server on a connection that is kept between them, in the event loop: for whoever asks hundreds of
servers every few seconds. Bounded as those of http.py are: in bytes, and in time for everything together.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from speclift.core.address import Address, address_of, shown
from speclift.core.errors import EngineError
from speclift.core.foreign_text import READ_BYTES_MAX
from speclift.core.units import Seconds
from speclift.engines.http import (
    PAGE_BYTES_MAX,
    READ_BYTES,
    REDIRECTS,
    REDIRECTS_MAX,
    HttpReply,
    body_of,
    followed,
    request_bytes,
    too_slow,
    unanswered,
)

HEAD_BYTES_MAX = 1 << 16
# "100 Continue" and its like, before the answer itself.
INTERIM_MAX = 3
CHUNK_LINE_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    status: int
    fields: Mapping[str, str]
    # Whether another question may follow on the same connection.
    keeps: bool

    @property
    def length(self) -> int | None:
        text = self.fields.get("content-length")
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise ValueError(f"a content-length of {text[:40]!r}")
        return int(text)

    @property
    def is_chunked(self) -> bool:
        return self.fields.get("transfer-encoding", "").lower() == "chunked"


class _Broken(ConnectionError):
    """The connection was gone before a byte of the answer came, as one is that was kept too long."""


class KeptConnection:
    """To one server at a time; a question that goes elsewhere opens another."""

    def __init__(self) -> None:
        self._origin: tuple[str, str, int] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def fetch(
        self, url: str, *, api_key: str | None, limit_s: Seconds, bytes_max: int = PAGE_BYTES_MAX
    ) -> str:
        """The body of an answer of success; EngineError with what was seen otherwise."""
        asked = url
        try:
            async with asyncio.timeout(limit_s):
                for _ in range(REDIRECTS_MAX):
                    address = address_of(asked)
                    request = request_bytes(address, None, api_key, is_last=False)
                    reply = await self._ask(asked, address, request, bytes_max)
                    if reply.status not in REDIRECTS or not reply.location:
                        return body_of(shown(asked), reply, bytes_max)
                    asked = followed(asked, address, reply, carries_secret=bool(api_key))
        except TimeoutError as error:
            raise too_slow(shown(asked), limit_s) from error
        raise EngineError(f"{shown(url)} redirects too often, the last time to {shown(asked)}")

    async def status_of(self, url: str, *, api_key: str | None, limit_s: Seconds) -> int:
        """What the server answers to a GET, whatever that is; a redirect is an answer too."""
        address = address_of(url)
        request = request_bytes(address, None, api_key, is_last=False)
        try:
            async with asyncio.timeout(limit_s):
                return (await self._ask(url, address, request, READ_BYTES_MAX)).status
        except TimeoutError as error:
            raise too_slow(shown(url), limit_s) from error

    async def status_of_post(
        self, address: Address, data: bytes, *, fields: Mapping[str, str], limit_s: Seconds, place: str
    ) -> int:
        """What the server answers to this body; a redirect is an answer like any other, and followed by nobody."""
        request = request_bytes(address, data, None, more=fields)
        try:
            async with asyncio.timeout(limit_s):
                return (await self._ask(place, address, request, READ_BYTES_MAX)).status
        except TimeoutError as error:
            raise too_slow(place, limit_s) from error
        finally:
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _ask(self, asked: str, address: Address, request: bytes, bytes_max: int) -> HttpReply:
        is_kept, reply = self._is_open_to(address), None
        try:
            try:
                reply = await self._exchange(address, request, bytes_max)
            except _Broken:
                if not is_kept:
                    raise
                self.close()
                reply = await self._exchange(address, request, bytes_max)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise unanswered(shown(asked), _plain(error)) from error
        finally:
            if reply is None:
                # In the middle of an answer: the rest of it would be taken for the next one.
                self.close()
        return reply

    def _is_open_to(self, address: Address) -> bool:
        return (
            self._writer is not None
            and self._reader is not None
            and self._origin == address.origin
            and not self._writer.is_closing()
            and not self._reader.at_eof()
        )

    async def _exchange(self, address: Address, request: bytes, bytes_max: int) -> HttpReply:
        if not self._is_open_to(address):
            self.close()
            tls = (
                trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
                if address.is_tls
                else None
            )
            self._reader, self._writer = await asyncio.open_connection(
                address.host, address.port, ssl=tls, limit=HEAD_BYTES_MAX
            )
            self._origin = address.origin
        reader, writer = self._reader, self._writer
        assert reader is not None
        assert writer is not None
        try:
            writer.write(request)
            await writer.drain()
            head = await _head(reader)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                raise
            raise _Broken("the server closed the connection without an answer") from error
        most = bytes_max if 200 <= head.status < 300 else READ_BYTES_MAX
        body, is_cut = await _body(reader, head, most)
        if not head.keeps or is_cut:
            self.close()
        return HttpReply(
            status=head.status,
            location=head.fields.get("location", ""),
            encoding=head.fields.get("content-encoding", "identity"),
            body=body,
            is_cut=is_cut,
        )


def _plain(error: Exception) -> Exception:
    """asyncio's own words repeat the address."""
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError) or error.errno is None:
        return error
    # Names that nobody knows have numbers below zero.
    return OSError(error.errno, os.strerror(error.errno)) if error.errno > 0 else error


@lru_cache(maxsize=4)
def trust(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    """As the system and these settings of the environment have it. Once: it reads a hundred certificates."""
    return ssl.create_default_context()


async def _head(reader: asyncio.StreamReader) -> _Head:
    for _ in range(INTERIM_MAX):
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
            raise ValueError(f"no HTTP: {first[:80]!r}")
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        if int(code) >= 200:
            wish = fields.get("connection", "").lower()
            is_framed = "content-length" in fields or "transfer-encoding" in fields
            return _Head(
                status=int(code), fields=fields, keeps=version == "HTTP/1.1" and wish != "close" and is_framed
            )
    raise ValueError("one interim answer after the other")


async def _body(reader: asyncio.StreamReader, head: _Head, most: int) -> tuple[bytes, bool]:
    """Not more than a little beyond `most`, and whether it was cut there."""
    if head.status in (204, 304):
        return b"", False
    if head.is_chunked:
        return await _chunks(reader, most)
    length = head.length
    if length is not None:
        # An error's status says what is wrong, whether its words are whole or not.
        return await reader.readexactly(min(length, most)), length > most
    parts: list[bytes] = []
    size = 0
    while size <= most and (part := await reader.read(READ_BYTES)):
        parts.append(part)
        size += len(part)
    return b"".join(parts), size > most


async def _chunks(reader: asyncio.StreamReader, most: int) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    size = 0
    while True:
        line = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
        if not line or len(line) > 16:
            raise ValueError(f"a chunk of size {line[:40]!r}")
        length = int(line, 16)
        if length < 0 or size + length > most:
            return b"".join(parts), True
        if length == 0:
            while (await reader.readuntil(b"\r\n")) != b"\r\n":
                pass
            return b"".join(parts), False
        parts.append(await reader.readexactly(length))
        size += length
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk without an end")
