"""The gateway: callers on one side, two pools of servers on the other, the router in between."""

from __future__ import annotations

import asyncio
import hmac
import resource
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from speclift.core.routing import (
    PoolStates,
    RequestEnd,
    RequestFeatures,
    Route,
    RoutedRequest,
)
from speclift.core.routing import ServerPool as Pool
from speclift.core.units import Bytes, Seconds
from speclift.http.message import HttpError, HttpRequest
from speclift.http.pages import (
    TEXT,
    Guard,
    WebAnswer,
    WebRequest,
    answer_bytes,
    are_loopback,
    cannot_listen,
    page_of,
    served_page,
    shown_place,
    wants_token,
)
from speclift.http.pages import Route as PageRoute
from speclift.live.gateway.caller import CallerConnection, CallerGround
from speclift.live.gateway.exchange import ExchangeGround, Relay
from speclift.live.gateway.heads import has_come_through
from speclift.live.gateway.health import HealthChecks
from speclift.live.gateway.upstream import PoolMember
from speclift.routing.router import Router

CONNECTIONS_MAX = 8192
# Bodies that are held at once, until their answers begin. Each may stand in memory three times for a moment: as it was
# read, as one piece, and on its way to the server.
BODIES_BYTES_MAX: Bytes = 256 << 20
# Descriptors of a request (its caller's and its server's), and those of everything else.
DESCRIPTORS_EACH, DESCRIPTORS_ELSE = 2, 64
SWEPT_EVERY_S = 1.0
CLOSE_LIMIT_S = 1.0
BACKLOG = 1024
OPEN_PATH = "/healthz"
SWITCH_PATH = "/speclift/switch"
SWITCH_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    spec: tuple[str, ...]
    plain: tuple[str, ...]
    # What callers have to know, and what servers want to see. Secrets: never to be shown.
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    is_loopback: bool = True
    keeps_text: bool = False


@dataclass(slots=True, kw_only=True)
class GatewayState:
    """What changes while it runs, for those who look at it."""

    is_plain_only: bool = False
    against_spec: str = ""
    is_draining: bool = False
    held_bytes: Bytes = 0
    callers: set[CallerConnection] = field(default_factory=set)


class GatewayService:
    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        *,
        read_features: Callable[[HttpRequest], RequestFeatures],
        report: Callable[[RoutedRequest], None],
        say: Callable[[str], None],
    ) -> None:
        self.state = GatewayState()
        self._settings, self._router, self._report, self._say = settings, router, report, say
        self._pages: Mapping[str, PageRoute] = {}
        self._guard = Guard(token=settings.token, is_loopback=settings.is_loopback)
        self._members = {
            url: PoolMember(url, pool, clock=time.monotonic)
            for pool, urls in ((Pool.SPEC, settings.spec), (Pool.PLAIN, settings.plain))
            for url in urls
        }
        self._health = HealthChecks(say)
        self._connections_max = CONNECTIONS_MAX
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._name = secrets.token_hex(8).encode()
        self._exchange_ground = ExchangeGround(
            name=self._name,
            members=lambda: self._members,
            route=self._route,
            read_features=read_features,
            report=self._heard,
            suspect=self._health.suspect,
            clock=time.monotonic,
            wall_clock=time.time,
            authorization=f"Bearer {settings.api_key}".encode("ascii") if settings.api_key else None,
            passes_key=settings.token is None,
            keeps_text=settings.keeps_text,
        )
        self._caller_ground = CallerGround(
            own_answer=self._own_answer,
            refusal=self._refusal,
            exchange=lambda caller, request, is_last: Relay(
                self._exchange_ground, caller, request, is_last=is_last
            ),
            hold=self._hold,
            is_draining=lambda: self.state.is_draining,
            clock=time.monotonic,
            joined=self._joined,
            left=self.state.callers.discard,
        )

    @property
    def members(self) -> Sequence[PoolMember]:
        return tuple(self._members.values())

    @property
    def busy(self) -> int:
        """Callers that wait for an answer, or for the rest of one."""
        return sum(caller.is_busy for caller in self.state.callers)

    def use_pages(self, pages: Mapping[str, PageRoute]) -> None:
        self._pages = pages

    def switch(self, *, is_plain_only: bool) -> None:
        if self.state.is_plain_only != is_plain_only:
            self.state.is_plain_only = is_plain_only
            self._say("everything goes to plain" if is_plain_only else "requests are routed again")

    def pools(self) -> PoolStates:
        states = {pool: tuple(each.state for each in self.members if each.pool is pool) for pool in Pool}
        return PoolStates(
            spec=states[Pool.SPEC],
            plain=states[Pool.PLAIN],
            is_plain_only=self.state.is_plain_only,
            against_spec=self.state.against_spec,
        )

    async def open(self, host: str, port: int) -> str:
        """Where it listens, when it does: host:port. OperatingError where it cannot."""
        self._connections_max = connections_possible(CONNECTIONS_MAX)
        await self._health.begin(self.members, api_key=self._settings.api_key)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: CallerConnection(self._caller_ground), host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        bound = [each.getsockname()[:2] for each in self._server.sockets]
        if self._settings.token is None and not are_loopback(bound):
            await self.close()
            raise wants_token(host)
        self._sweeping = loop.create_task(self._sweep())
        return shown_place(bound)

    async def drain(self, *, limit_s: Seconds) -> int:
        """No new connections; what is under way goes on to its end. How many were still there at the limit."""
        self.state.is_draining = True
        if self._server is not None:
            self._server.close()
        until_s = time.monotonic() + limit_s
        while True:
            for caller in tuple(self.state.callers):
                caller.close_if_idle()
            if not self.busy or time.monotonic() >= until_s:
                return self.busy
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        self.state.is_draining = True
        if self._server is not None:
            self._server.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        serving = [caller.serving for caller in self.state.callers if caller.serving is not None]
        for caller in tuple(self.state.callers):
            caller.stop()
        await self._health.close()
        if serving:
            # Each reports what came of it.
            await asyncio.wait(serving, timeout=CLOSE_LIMIT_S)
            # What was written last goes out.
            await asyncio.sleep(0)
        for caller in tuple(self.state.callers):
            caller.hang_up()
        for member in self.members:
            member.close()
        # What was hung up is told in the next round of the loop.
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """One clock for all connections: thousands of timers would be set again with every chunk."""
        while True:
            await asyncio.sleep(SWEPT_EVERY_S)
            now_s = time.monotonic()
            for caller in tuple(self.state.callers):
                caller.check_time(now_s)

    def _route(self, features: RequestFeatures) -> Route:
        return self._router.route(features, self.pools(), now_s=time.monotonic())

    def _heard(self, request: RoutedRequest) -> None:
        member = self._members.get(request.server or "")
        if member is not None and request.end is RequestEnd.OK:
            self._health.forgive(member)
        self._router.note(request, now_s=time.monotonic())
        self._report(request)

    def _hold(self, more: Bytes) -> bool:
        self.state.held_bytes += more
        return more <= 0 or self.state.held_bytes <= BODIES_BYTES_MAX

    def _joined(self, caller: CallerConnection) -> bool:
        is_room = len(self.state.callers) < self._connections_max
        self.state.callers.add(caller)
        return is_room

    def _refusal(self, request: HttpRequest) -> HttpError | None:
        """The gateway's own pages have their own door."""
        token = self._settings.token
        if self._is_own(request.path):
            is_long = _said_length(request) > SWITCH_BYTES_MAX
            return HttpError("a request with a long body", 413) if is_long else None
        if has_come_through(request, self._name):
            return HttpError("a server of this gateway is the gateway itself, or leads to it", 508)
        if token is None:
            return None
        given = request.field(b"authorization")
        scheme, _, key = given.partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), token.encode()):
            return None
        return HttpError("the key of this gateway is wanted: Authorization: Bearer ...", 401)

    def _is_own(self, path: str) -> bool:
        return path in self._pages or path in (OPEN_PATH, SWITCH_PATH) or path.startswith("/speclift/")

    def _own_answer(self, request: HttpRequest, is_last: bool) -> bytes | None:
        if not self._is_own(request.path):
            return None
        pages = {**self._pages, OPEN_PATH: self._health_page}

        def serve(asked: WebRequest) -> WebAnswer:
            return self._switched(asked, request.body) or served_page(pages, self._guard, asked)

        answer = page_of(request, serve, is_last=is_last or not request.keeps_alive)
        return answer_bytes(answer, method=request.method)

    def _health_page(self, _: object) -> WebAnswer:
        is_up = any(member.answers for member in self.members)
        body = b"ok\n" if is_up else b"no server answers\n"
        return WebAnswer(body=body, kind=TEXT, status=200 if is_up else 503)

    def _switched(self, page: WebRequest, body: bytes) -> WebAnswer | None:
        """POST {"plain_only": true}. Its type keeps other people's pages out: no browser sends it unasked."""
        if page.path != SWITCH_PATH or page.method != "POST":
            return None
        wanted = {b'{"plain_only":true}': True, b'{"plain_only":false}': False}
        is_plain_only = wanted.get(bytes(body[:SWITCH_BYTES_MAX].translate(None, b" \t\r\n")))
        door = served_page(
            {SWITCH_PATH: lambda _: WebAnswer(body=b"")}, self._guard, replace(page, method="GET", query={})
        )
        if door.status != 200:
            return door
        if page.fields.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return WebAnswer(body=b'{"error":"content-type must be application/json"}\n', status=415)
        if is_plain_only is None:
            return WebAnswer(body=b'{"error":"send {\\"plain_only\\": true} or false"}\n', status=400)
        self.switch(is_plain_only=is_plain_only)
        return WebAnswer(body=b'{"schema":1,"plain_only":%b}\n' % (b"true" if is_plain_only else b"false"))


def _said_length(request: HttpRequest) -> Bytes:
    """Of its body, before that comes; chunks may be any number."""
    fields = dict(request.fields)
    return (
        SWITCH_BYTES_MAX + 1 if b"transfer-encoding" in fields else int(fields.get(b"content-length", b"0"))
    )


def connections_possible(wanted: int) -> int:
    """As many as this process may have descriptors for; the soft limit is raised as far as that takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * DESCRIPTORS_EACH + DESCRIPTORS_ELSE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (soft - DESCRIPTORS_ELSE) // DESCRIPTORS_EACH))
