"""A small HTTP server: pages for clients that one does not know, and the streams of the servers that tests are made of.

Everything is bounded: the size of a request, the time for it to come, the number of connections. On loopback the Host
field must name this machine, so that no page of somebody else's, whose name was made to point here (DNS rebinding),
reads what is served; elsewhere a token is wanted. On asyncio alone, as a fake server is started for every arm.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import parse_qsl, urlencode

from speclift.core.errors import OperatingError, UsageError
from speclift.http.message import Bounds, HttpError, HttpRequest, RequestReader

# Of a page's request, which has no body.
PAGE_BOUNDS = Bounds(head_bytes=16 * 1024, fields=64, target_bytes=4096, body_bytes=0)
PARAMETERS_MAX = 8
READ_BYTES = 1 << 16
# For a request to come once it began, between two of them, and for a page to be taken.
HEAD_LIMIT_S = 10.0
IDLE_LIMIT_S = 60.0
WRITE_LIMIT_S = 20.0
CONNECTIONS_MAX = 100
COOKIE = "speclift_watch"
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
EVENTS = "text/event-stream"
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAnswer:
    body: bytes
    kind: str = JSON
    status: int = 200
    fields: Mapping[str, str] = field(default_factory=dict)


def json_page(payload: object, *, status: int = 200) -> WebAnswer:
    return WebAnswer(body=json.dumps(payload).encode(), status=status)


def plain_page(status: int, words: str, **fields: str) -> WebAnswer:
    return WebAnswer(body=f"{words}\n".encode(), kind=TEXT, status=status, fields=fields)


class Caller:
    """Whoever sent one request: what is asked, and the way back."""

    def __init__(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self._writer = writer

    def begin(self, kind: str) -> None:
        """An answer in pieces, with `write` for each of them; it ends when its handler returns."""
        self._writer.write(head_bytes(200, {"Content-Type": kind, "Transfer-Encoding": "chunked"}))

    async def write(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self, answer: WebAnswer | None) -> None:
        """`None`: it was sent in pieces."""
        if self._writer.is_closing():
            return
        if answer is None:
            self._writer.write(b"0\r\n\r\n")
            await self._writer.drain()
            return
        async with asyncio.timeout(WRITE_LIMIT_S):
            self._writer.write(answer_bytes(answer, method=self.request.method))
            await self._writer.drain()

    def hang_up(self) -> None:
        self._writer.close()


# None where the answer was sent in pieces.
Handler: TypeAlias = Callable[[Caller], Awaitable[WebAnswer | None]]


class WebServer:
    def __init__(
        self,
        handler: Handler,
        *,
        bounds: Bounds,
        refuse: Callable[[HttpError], WebAnswer],
        connections_max: int | None = None,
    ) -> None:
        self._handler, self._bounds, self._refuse = handler, bounds, refuse
        self._connections_max = connections_max
        # Else nothing holds on to them while they wait.
        self._conversations: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, *, backlog: int) -> list[tuple[str, int]]:
        """The addresses and ports that are listened to."""
        self._server = await asyncio.start_server(self._begin, host, port, backlog=backlog)
        return [each.getsockname()[:2] for each in self._server.sockets]

    def close(self) -> None:
        """No new connections."""
        if self._server is not None:
            self._server.close()

    async def hang_up(self) -> None:
        self.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    # No coroutine: what asyncio would make of one complains when it is cancelled at the server's end.
    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._conversations) >= (self._connections_max or len(self._conversations) + 1):
            writer.transport.abort()
            return
        conversation = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._conversations.add(conversation)
        conversation.add_done_callback(self._conversations.discard)
        # Also where it is cancelled before it begins.
        conversation.add_done_callback(lambda _: writer.transport.abort())

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = RequestReader(self._bounds)
        coming = asyncio.create_task(_next(requests, reader))
        answering: asyncio.Task[bool] | None = None
        try:
            may_follow = True
            while may_follow:
                # Only between two requests: an answer may take as long as it takes.
                async with asyncio.timeout(IDLE_LIMIT_S):
                    asked = await coming
                if asked is None:
                    return
                coming = asyncio.create_task(_next(requests, reader))
                answering = asyncio.create_task(self._answer(asked, writer))
                await asyncio.wait({answering, coming}, return_when=asyncio.FIRST_COMPLETED)
                # A client that goes away ends its request, so that it no longer loads the others.
                if coming.done() and not answering.done() and coming.result() is None:
                    return
                may_follow = await answering and not writer.is_closing()
            writer.close()
            async with asyncio.timeout(WRITE_LIMIT_S):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # gone, or too slow
        finally:
            for task in (coming, answering):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(task for task in (coming, answering) if task), return_exceptions=True)

    async def _answer(self, asked: HttpRequest | HttpError, writer: asyncio.StreamWriter) -> bool:
        """Whether another may follow."""
        if isinstance(asked, HttpError):
            await Caller(_UNREAD, writer).end(self._refuse(asked))
            return False
        caller = Caller(asked, writer)
        await caller.end(await self._handler(caller))
        return asked.keeps_alive


# Stands for a request that could not be read.
_UNREAD = HttpRequest(method="", target="", fields=(), body=b"", keeps_alive=False, takes_chunks=False)


async def _next(requests: RequestReader, reader: asyncio.StreamReader) -> HttpRequest | HttpError | None:
    """None where the client is gone, or does not finish what it began in time."""
    loop = asyncio.get_running_loop()
    until_s: float | None = None
    while True:
        try:
            request = requests.next_request()
        except HttpError as refusal:
            return refusal
        if request is not None:
            return request
        if until_s is None and requests.has_begun:
            until_s = loop.time() + HEAD_LIMIT_S
        try:
            async with asyncio.timeout_at(until_s):
                data = await reader.read(READ_BYTES)
        except (OSError, TimeoutError):
            return None
        if not data:
            return None
        requests.feed(data)


def answer_bytes(answer: WebAnswer, *, method: str) -> bytes:
    length = {"Content-Type": answer.kind, "Content-Length": str(len(answer.body)), **answer.fields}
    return head_bytes(answer.status, length) + (b"" if method == "HEAD" else answer.body)


def head_bytes(status: int, fields: Mapping[str, str]) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in fields.items()),
    )
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"


# Pages for those that are let in.


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """A request for a page."""

    path: str
    query: Mapping[str, str]
    # For the scripts and styles of a page: only those that carry it are run.
    nonce: str
    method: str = "GET"
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def cookie(self) -> str:
        pairs = (part.strip().partition("=") for part in self.fields.get("cookie", "").split(";"))
        return next((value for name, _, value in pairs if name == COOKIE), "")


def web_request(request: HttpRequest) -> WebRequest:
    """HttpError where its parameters are too many."""
    path, _, query = request.target.partition("?")
    try:
        parameters = dict(parse_qsl(query, max_num_fields=PARAMETERS_MAX))
    except ValueError:
        raise HttpError("too many parameters") from None
    nonce = secrets.token_urlsafe(16)
    return WebRequest(
        path=path, query=parameters, nonce=nonce, method=request.method, fields=request.field_text()
    )


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

    def knows(self, request: WebRequest) -> bool:
        if self.token is None or request.path in self.open_paths:
            return True
        scheme, _, given = request.fields.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and _same(given.strip(), self.token)
        return (
            is_bearer
            or _same(request.cookie, self.cookie)
            or _same(request.query.get("token", ""), self.token)
        )


def page_of(request: HttpRequest, serve: Callable[[WebRequest], WebAnswer], *, is_last: bool) -> WebAnswer:
    """The page, or why there is none, with the fields that protect its reader."""
    nonce = ""
    try:
        asked = web_request(request)
        nonce, answer = asked.nonce, serve(asked)
    except HttpError as refusal:
        answer = plain_page(refusal.status, refusal.words)
    return protected(answer, nonce, is_last=is_last)


def served_page(routes: Mapping[str, Route], guard: Guard, request: WebRequest) -> WebAnswer:
    """For those that are let in."""
    if request.method not in ("GET", "HEAD"):
        return plain_page(405, "only GET and HEAD", Allow="GET, HEAD")
    host = request.fields.get("host", "").lower()
    if guard.is_loopback and re.sub(r":\d{1,5}$", "", host) not in _LOCAL_NAMES:
        return plain_page(421, "this service answers to localhost only")
    if not guard.knows(request):
        return plain_page(401, "a token is wanted", **{"WWW-Authenticate": 'Bearer realm="speclift"'})
    route = routes.get(request.path)
    if route is None:
        return plain_page(404, "there is no such page")
    if guard.token is not None and "token" in request.query:
        return _remembered(guard, request)
    return route(request)


def _remembered(guard: Guard, request: WebRequest) -> WebAnswer:
    """The token does not stay in the address, where histories and pictures show it."""
    rest = urlencode({name: value for name, value in request.query.items() if name != "token"})
    cookie = f"{COOKIE}={guard.cookie}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000"
    place = request.path + (f"?{rest}" if rest else "")
    return plain_page(303, "see there", **{"Location": place, "Set-Cookie": cookie})


def refused_page(refusal: HttpError) -> WebAnswer:
    return protected(plain_page(refusal.status, refusal.words, **refusal.fields), "", is_last=True)


def protected(answer: WebAnswer, nonce: str, *, is_last: bool) -> WebAnswer:
    policy = (
        f"default-src 'none'; style-src-elem 'nonce-{nonce}'; style-src-attr 'unsafe-inline'; "
        f"script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    fields = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close" if is_last else "keep-alive",
    }
    return replace(answer, fields={**fields, **answer.fields})


class HttpService:
    """Pages on a port of their own."""

    def __init__(self, routes: Mapping[str, Route], guard: Guard) -> None:
        self._guard = guard

        async def handler(caller: Caller) -> WebAnswer:
            request = caller.request
            return page_of(
                request,
                lambda asked: served_page(routes, guard, asked),
                is_last=not request.keeps_alive,
            )

        self._server = WebServer(
            handler, bounds=PAGE_BOUNDS, refuse=refused_page, connections_max=CONNECTIONS_MAX
        )

    async def open(self, host: str, port: int) -> str:
        """Its address, when it listens; OperatingError where it cannot."""
        try:
            bound = await self._server.listen(host, port, backlog=64)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        if self._guard.token is None and not are_loopback(bound):
            await self.close()
            raise wants_token(host)
        return f"http://{shown_place(bound)}/"

    async def close(self) -> None:
        await self._server.hang_up()


# What a server that listens for callers says of its place.


def cannot_listen(host: str, port: int, error: OSError) -> OperatingError:
    return OperatingError(
        f"cannot listen on {host}:{port}: {error.strerror or error}", hint="another port: --listen HOST:0"
    )


def wants_token(host: str) -> UsageError:
    return UsageError(f"{host} is not this machine alone here: a token is wanted", hint="--token-env VAR")


def are_loopback(bound: list[tuple[str, int]]) -> bool:
    """What a name stands for is known only when it is listened to."""
    return all(ipaddress.ip_address(address).is_loopback for address, _ in bound)


def shown_place(bound: list[tuple[str, int]]) -> str:
    address, port = bound[0]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _same(given: str, wanted: str) -> bool:
    """In a time that does not tell how much of it was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())
