"""A small HTTP server for clients that one does not know: pages to read, nothing to send.

Everything is bounded: the size of a request, the time for it to come and for the answer to be taken, the number of
connections. On loopback the Host field must name this machine, so that no page of somebody else's, whose name was made
to point here (DNS rebinding), reads what is served; elsewhere a token is wanted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode

from speclift.core.errors import OperatingError, UsageError

HEAD_BYTES_MAX = 16 * 1024
TARGET_CHARACTERS_MAX = 4096
FIELDS_MAX = 64
PARAMETERS_MAX = 8
# For a request to come once it began, between two of them, and for an answer to be taken.
HEAD_LIMIT_S = 10.0
IDLE_LIMIT_S = 60.0
WRITE_LIMIT_S = 20.0
CONNECTIONS_MAX = 100
COOKIE = "speclift_watch"
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """One request that was let in."""

    path: str
    query: Mapping[str, str]
    # For the scripts and styles of a page: only those that carry it are run.
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAnswer:
    body: bytes
    kind: str = JSON
    status: int = 200
    fields: Mapping[str, str] = field(default_factory=dict)


Route: TypeAlias = Callable[[WebRequest], WebAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Who is let in."""

    token: str | None
    # Only names of this machine are answered to.
    is_loopback: bool
    # Paths that tell nothing and are open to everybody.
    open_paths: frozenset[str] = frozenset({"/healthz"})

    @property
    def cookie(self) -> str:
        """Not the token itself: what lies in a browser opens this door only."""
        return hmac.new((self.token or "").encode(), b"speclift watch cookie", hashlib.sha256).hexdigest()

    def knows(self, request: PageRequest) -> bool:
        if self.token is None or request.path in self.open_paths:
            return True
        scheme, _, given = request.fields.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and _same(given.strip(), self.token)
        return (
            is_bearer
            or _same(request.cookie, self.cookie)
            or _same(request.query.get("token", ""), self.token)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One request as it was sent."""

    method: str
    path: str
    query: Mapping[str, str]
    fields: Mapping[str, str]
    is_last: bool

    @property
    def cookie(self) -> str:
        pairs = (part.strip().partition("=") for part in self.fields.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == COOKIE), "")


class RefusedPage(Exception):
    """What was sent is no request that is answered here."""

    def __init__(self, status: int, words: str, **fields: str) -> None:
        super().__init__(words)
        self.served = _plain(status, words, **fields)


class HttpService:
    def __init__(self, routes: Mapping[str, Route], guard: Guard) -> None:
        self._routes, self._guard = routes, guard
        self._conversations: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> str:
        """Its address, when it listens; OperatingError where it cannot."""
        try:
            self._server = await asyncio.start_server(
                self._begin, host, port, limit=HEAD_BYTES_MAX, backlog=64
            )
        except OSError as error:
            raise OperatingError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="another port: --listen HOST:0",
            ) from error
        if self._guard.token is None and not all(
            is_loopback_address(each.getsockname()[0]) for each in self._server.sockets
        ):
            await self.close()
            raise UsageError(
                f"{host} is not this machine alone here: a token is wanted", hint="--token-env VAR"
            )
        bound = self._server.sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}/"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    # No coroutine: what asyncio would make of one complains when it is cancelled at the server's end.
    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._conversations) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        conversation = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer_one(reader, writer):
                pass
            writer.close()
            async with asyncio.timeout(WRITE_LIMIT_S):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # gone, or too slow
        finally:
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether another may follow."""
        nonce = secrets.token_urlsafe(16)
        is_head, is_last = False, True
        try:
            request = await _received(reader)
            is_head, is_last = request.method == "HEAD", request.is_last
            served = served_page(self._routes, self._guard, request, nonce)
        except RefusedPage as refusal:
            served = refusal.served
        async with asyncio.timeout(WRITE_LIMIT_S):
            writer.write(page_head(served, nonce, is_last=is_last) + (b"" if is_head else served.body))
            await writer.drain()
        return not is_last


def served_page(routes: Mapping[str, Route], guard: Guard, request: PageRequest, nonce: str) -> WebAnswer:
    """For those that are let in."""
    if request.method not in ("GET", "HEAD"):
        return _plain(405, "only GET and HEAD", Allow="GET, HEAD")
    host = request.fields["host"].lower()
    if guard.is_loopback and re.sub(r":\d{1,5}$", "", host) not in _LOCAL_NAMES:
        return _plain(421, "this service answers to localhost only")
    if not guard.knows(request):
        return _plain(401, "a token is wanted", **{"WWW-Authenticate": 'Bearer realm="speclift"'})
    route = routes.get(request.path)
    if route is None:
        return _plain(404, "there is no such page")
    if guard.token is not None and "token" in request.query:
        return _remembered(guard, request)
    return route(WebRequest(path=request.path, query=request.query, nonce=nonce))


def _remembered(guard: Guard, request: PageRequest) -> WebAnswer:
    """The token does not stay in the address, where histories and pictures show it."""
    rest = urlencode({name: value for name, value in request.query.items() if name != "token"})
    cookie = f"{COOKIE}={guard.cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
    place = request.path + (f"?{rest}" if rest else "")
    return replace(_plain(303, "see there"), fields={"Location": place, "Set-Cookie": cookie})


async def _received(reader: asyncio.StreamReader) -> PageRequest:
    """RefusedPage where it is none; TimeoutError where it does not come."""
    async with asyncio.timeout(IDLE_LIMIT_S):
        first = await reader.readexactly(1)
    if not first.isalpha():
        raise RefusedPage(400, "no HTTP request")
    try:
        async with asyncio.timeout(HEAD_LIMIT_S):
            head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise RefusedPage(431, "the request is too long") from None
    try:
        line, *lines = head[:-4].decode("ascii").split("\r\n")
        method, target, version = line.split(" ")
    except ValueError:
        raise RefusedPage(400, "no HTTP request") from None
    if version not in ("HTTP/1.1", "HTTP/1.0") or not re.fullmatch(r"[A-Z]{1,20}", method):
        raise RefusedPage(400, "no HTTP request")
    fields = _fields(lines)
    path, query = path_and_query(target)
    return PageRequest(
        method=method,
        path=path,
        query=query,
        fields=fields,
        is_last=version == "HTTP/1.0" or "close" in fields.get("connection", "").lower(),
    )


def _fields(lines: list[str]) -> dict[str, str]:
    """Nothing that two programs could read in two ways: no line that goes on in the next, no field twice, no body."""
    if len(lines) > FIELDS_MAX:
        raise RefusedPage(431, "too many header fields")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if (
            not colon
            or not _FIELD_NAME.fullmatch(name)
            or any(character < " " and character != "\t" for character in value)
        ):
            raise RefusedPage(400, "a header field that cannot be read")
        if name.lower() in fields and name.lower() in (
            "host",
            "content-length",
            "transfer-encoding",
            "authorization",
        ):
            raise RefusedPage(400, f"two fields {name.lower()}")
        fields[name.lower()] = value
    if fields.get("content-length", "0") != "0" or "transfer-encoding" in fields:
        raise RefusedPage(413, "a request with a body")
    if "host" not in fields:
        raise RefusedPage(400, "no Host")
    return fields


def path_and_query(target: str) -> tuple[str, Mapping[str, str]]:
    path, _, query = target.partition("?")
    if not path.startswith("/") or len(target) > TARGET_CHARACTERS_MAX:
        raise RefusedPage(400, "an address that cannot be read")
    try:
        return path, dict(parse_qsl(query, max_num_fields=PARAMETERS_MAX))
    except ValueError:
        raise RefusedPage(400, "too many parameters") from None


def page_head(served: WebAnswer, nonce: str, *, is_last: bool) -> bytes:
    policy = (
        f"default-src 'none'; style-src-elem 'nonce-{nonce}'; style-src-attr 'unsafe-inline'; "
        f"script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    fields = {
        "Content-Type": served.kind,
        "Content-Length": str(len(served.body)),
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close" if is_last else "keep-alive",
        **served.fields,
    }
    lines = [
        f"HTTP/1.1 {served.status} {HTTPStatus(served.status).phrase}",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"


def is_loopback_address(address: str) -> bool:
    """What a name stands for is known only when it is listened to."""
    return ipaddress.ip_address(address).is_loopback


def _plain(status: int, words: str, **fields: str) -> WebAnswer:
    return WebAnswer(body=f"{words}\n".encode(), kind=TEXT, status=status, fields=fields)


def _same(given: str, wanted: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())
