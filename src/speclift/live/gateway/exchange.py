"""One request of a caller: asked of one server after the other until one begins to answer, then relayed to its end.

Nothing is written to the caller before the first byte of a body is there: engines say "200 OK" before they have a
token, and a server that dies in between is none that answered. From then on there is no other server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from speclift.core.json_reading import as_object, as_whole
from speclift.core.routing import (
    POOL_FIELD,
    REQUEST_ID_FIELD,
    RequestEnd,
    RequestFeatures,
    Route,
    RoutedRequest,
)
from speclift.core.units import Seconds
from speclift.http.answer import read_event
from speclift.http.message import HttpRequest
from speclift.live.gateway.heads import answer_head, request_head, request_id_of
from speclift.live.gateway.observed import ObservedAnswer
from speclift.live.gateway.upstream import PoolMember, UpstreamConnection

# Servers that are asked before the caller is told that none answers.
ATTEMPTS_MAX = 3
# Until a server begins: it may have a long queue and a long prompt. Then between two parts, and for all of it.
FIRST_LIMIT_S, STALL_LIMIT_S, TOTAL_LIMIT_S = 600.0, 300.0, 3600.0
# The server could not, and another may: broken, starting, overloaded.
ELSEWHERE = frozenset({500, 502, 503, 504})
# Of an error while another server is asked; engines say it in a line.
HELD_BYTES_MAX = 1 << 20
EVENTS = b"text/event-stream"
EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
# Whoever asks twice changes nothing.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# POSTs that leave nothing behind at a server, so that another may be asked the same: generations, and what vLLM, SGLang
# and llama.cpp compute beside them.
STATELESS_PATHS = frozenset(
    {
        *("/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion"),
        *("/v1/messages", "/infill", "/apply-template", "/tokenize", "/detokenize", "/generate"),
        *("/v1/embeddings", "/embeddings", "/embedding", "/v1/rerank", "/rerank", "/v1/score", "/score"),
        *("/v1/moderations", "/pooling", "/classify"),
    }
)
CHUNKED = b"transfer-encoding: chunked\r\n"
UNTIL_CLOSE = b""
LAST_CHUNK = b"0\r\n\r\n"
MESSAGE_CHARACTERS = 200


class WritesAnswer(Protocol):
    """The caller's side of the connection."""

    @property
    def is_gone(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def writer(self) -> Callable[[bytes], None] | None:
        """What `write` does for as long as the caller is there; None where it is gone."""

    def forget_body(self) -> None: ...

    def hang_up(self) -> None:
        """At once, in the middle of an answer: what the caller has is not the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeGround:
    """What all requests share."""

    members: Callable[[], Mapping[str, PoolMember]]
    route: Callable[[RequestFeatures], Route]
    read_features: Callable[[HttpRequest], RequestFeatures]
    report: Callable[[RoutedRequest], None]
    # A server failed to answer: it is out until a probe says otherwise.
    suspect: Callable[[PoolMember, str], None]
    clock: Callable[[], Seconds]
    wall_clock: Callable[[], Seconds]
    # Ours, among gateways.
    name: bytes
    # What servers want to see, instead of what callers send.
    authorization: bytes | None = None
    passes_key: bool = True
    keeps_text: bool = False


@dataclass(slots=True, kw_only=True)
class _Failure:
    """Nothing was written to the caller, and this is why."""

    words: str
    member: PoolMember
    # What the server did say, where it said something: passed on where no other server answers.
    # Its status, head and body.
    answer: tuple[int, bytes, bytes] | None = None
    # It may have acted on it.
    was_sent: bool = True
    is_stale: bool = False
    is_suspect: bool = True


class Relay:
    def __init__(
        self, ground: ExchangeGround, caller: WritesAnswer, request: HttpRequest, *, is_last: bool
    ) -> None:
        self._ground, self._caller, self._request = ground, caller, request
        # No other request follows on this connection, by the caller's wish or ours.
        self._is_last = is_last or not request.keeps_alive
        self._arrived_s, self._arrived_wall_s = ground.clock(), ground.wall_clock()
        self._id = request_id_of(request)
        self._features = ground.read_features(request)
        self._route = ground.route(self._features)
        # What makes something at a server is not to be made twice; a generation or a question may be.
        self._may_repeat = request.method in SAFE_METHODS or self._features.path in STATELESS_PATHS
        self._keeps_text = ground.keeps_text and self._features.is_generation
        self._observed = ObservedAnswer(keeps_text=self._keeps_text)
        self._member: PoolMember | None = None
        self._connection: UpstreamConnection | None = None
        self._ended: asyncio.Future[_Failure | None] | None = None
        self._attempts = 0
        self._running = 0
        # Of the answer, once it begins.
        self._has_begun = False
        self._status = 0
        self._is_chunked = False
        self.pass_on: Callable[[bytes], bool] | None = None
        self._is_event_stream = False
        self._held = bytearray()
        self._heard_s = self._arrived_s
        self._end = RequestEnd.UNANSWERED

    @property
    def keeps_alive(self) -> bool:
        """Whether the caller's connection can carry another request."""
        return not self._is_last and not self._caller.is_gone

    async def run(self) -> None:
        try:
            await self._ask_servers()
        finally:
            self._leave()
            self._ground.report(self._outcome())

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def leave(self) -> None:
        """The caller is gone: its server is not to go on."""
        # Unless we sent it away, because its answer had broken off.
        if self._end is RequestEnd.UNANSWERED:
            self._end = RequestEnd.LEFT
        self._leave()
        self._settle(None)

    def check_time(self, now_s: Seconds) -> None:
        """A server that says nothing any more is given up."""
        limit_s = STALL_LIMIT_S if self._has_begun else FIRST_LIMIT_S
        heard_s = max(self._heard_s, self._observed.heard_s)
        if now_s - heard_s > limit_s or now_s - self._arrived_s > TOTAL_LIMIT_S:
            self._leave()
            self.break_off("took too long")

    async def _ask_servers(self) -> None:
        failures: list[_Failure] = []
        members = self._ground.members()
        asked = [members[url] for url in self._route.servers if url in members][:ATTEMPTS_MAX]
        for member in asked:
            self._attempts += 1
            # Only on a new connection can it be told whether the server had it.
            failure = await self._ask(member, is_fresh=not self._may_repeat)
            if failure is not None and failure.is_stale:
                failure = await self._ask(member, is_fresh=True)
            if self._caller.is_gone:
                self.leave()
                return
            if failure is None:
                return
            if failure.is_suspect:
                self._ground.suspect(member, failure.words)
            failures.append(failure)
            if failure.was_sent and not self._may_repeat:
                break
        self._tell_failure(failures)

    async def _ask(self, member: PoolMember, *, is_fresh: bool) -> _Failure | None:
        """None where the answer was passed on, as far as it came."""
        ground = self._ground
        self._member = member
        self._held.clear()
        member.running += 1
        self._running = member.running
        try:
            try:
                connection = await member.connect(is_fresh=is_fresh)
            except (OSError, TimeoutError) as error:
                member.answers = False
                words = "does not accept connections" if isinstance(error, TimeoutError) else _reason(error)
                return _Failure(words=words, member=member, was_sent=False)
            if self._caller.is_gone:
                member.keep(connection)
                return None
            self._connection = connection
            self._heard_s = ground.clock()
            self._ended = asyncio.get_running_loop().create_future()
            connection.ask(self._head_for(member), self._request.body, self)
            return await self._ended
        finally:
            member.running -= 1
            self._connection = None

    def _head_for(self, member: PoolMember) -> bytes:
        return request_head(
            self._request,
            member.address,
            request_id=self._id,
            gateway=self._ground.name,
            authorization=self._ground.authorization,
            passes_key=self._ground.passes_key,
        )

    # What the server's connection tells, in the order of TakesAnswer.

    def take(self, body: bytes) -> None:
        now_s = self._heard_s = self._ground.clock()
        if not self._has_begun:
            if self._held or self._may_go_elsewhere(body):
                self._hold_back(body)
                return
            self._begin()
        self._observed.feed(now_s, body)
        self._caller.write(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)
        if self._is_chunked and self.pass_on is None:
            self.pass_on = self._passing_on()

    def _passing_on(self) -> Callable[[bytes], bool] | None:
        """For whole chunks, once there is nothing to be found in them but the end; None where the caller is gone or
        each of them has to be read."""
        write = self._caller.writer()
        return None if write is None else self._observed.passing(write, self._ground.clock)

    def _hold_back(self, body: bytes) -> None:
        self._held += body
        if len(self._held) > HELD_BYTES_MAX and self._connection is not None:
            status = self._connection.reader.status
            self._leave()
            self.break_off(f"answered {status} without an end")

    def finish(self) -> None:
        connection, member = self._connection, self._member
        assert connection is not None
        assert member is not None
        failure: _Failure | None = None
        if not self._has_begun and (self._held or self._may_go_elsewhere(b"")):
            reader = connection.reader
            # It answers, so its connection is no sign of trouble; 503 is how engines say that they are not ready.
            failure = _Failure(
                words="answered an error" if reader.status == 200 else f"answered {reader.status}",
                member=member,
                answer=(reader.status, reader.head, bytes(self._held)),
                # Of other questions it may be the answer: llama.cpp says so of /slots when none is free.
                is_suspect=reader.status == 503 and self._features.is_generation,
            )
        else:
            if not self._has_begun:
                self._begin()
            if self._is_chunked:
                self._caller.write(LAST_CHUNK)
            self._end = RequestEnd.OK if 200 <= self._status < 400 else RequestEnd.REFUSED
        self._connection = None
        member.keep(connection)
        self._settle(failure)

    def break_off(self, words: str) -> None:
        connection, self._connection = self._connection, None
        if not self._has_begun:
            is_stale = connection is not None and connection.was_kept and not connection.reader.has_begun
            if self._member is not None:
                self._settle(_Failure(words=words, member=self._member, is_stale=is_stale))
            return
        if self._member is not None:
            self._ground.suspect(self._member, words)
        self._cut(f"the server {words} in the middle of the answer")

    def stop(self) -> None:
        """The gateway ends: an answer that has begun says so, any other is not given."""
        if self._has_begun and self._end is RequestEnd.UNANSWERED:
            self._leave()
            self._cut("the gateway was stopped in the middle of the answer")
        else:
            self._caller.hang_up()

    def _cut(self, words: str) -> None:
        self._end = RequestEnd.CUT
        self._is_last = True
        if self._is_event_stream and self._is_chunked and self._observed.ends_with(EVENT_ENDS):
            event = b"data: " + msgspec.json.encode(_error(words, 502)) + b"\n\n"
            self._caller.write(b"%x\r\n%b\r\n%b" % (len(event), event, LAST_CHUNK))
        else:
            # Whatever followed would be read as a part of the answer.
            self._caller.hang_up()
        self._settle(None)

    def _may_go_elsewhere(self, body: bytes) -> bool:
        """The server could not, by its status or by the beginning of its body, and there is another one."""
        assert self._connection is not None
        if not self._may_repeat or self._attempts >= min(ATTEMPTS_MAX, len(self._route.servers)):
            return False
        status = self._connection.reader.status
        return status in ELSEWHERE or (status == 200 and _first_error(body) in ELSEWHERE)

    def _begin(self) -> None:
        """The head of the answer, and what was held back of it."""
        connection, member = self._connection, self._member
        assert connection is not None
        assert member is not None
        reader = connection.reader
        self._has_begun, self._status = True, reader.status
        if not self._keeps_text:
            self._request = replace(self._request, body=b"")
            self._caller.forget_body()
        self._is_event_stream = EVENTS in _content_type(reader.head)
        is_bodiless = self._request.method == "HEAD"
        if reader.length is None and not is_bodiless:
            self._is_chunked = self._request.takes_chunks
            self._is_last = self._is_last or not self._is_chunked
        head = answer_head(
            reader.head,
            status=reader.status,
            length=reader.length,
            framing=CHUNKED if self._is_chunked else UNTIL_CLOSE,
            pool=member.pool,
            request_id=self._id,
        )
        self._caller.write(head + (b"connection: close\r\n\r\n" if self._is_last else b"\r\n"))

    def _tell_failure(self, failures: list[_Failure]) -> None:
        """What the last server said, where one spoke; else that none did."""
        spoken = next((failure for failure in reversed(failures) if failure.answer is not None), None)
        if spoken is not None and spoken.answer is not None:
            self._status, head, body = spoken.answer
            written = answer_head(
                head,
                status=self._status,
                length=len(body),
                framing=UNTIL_CLOSE,
                pool=spoken.member.pool,
                request_id=self._id,
            )
            self._end = RequestEnd.REFUSED
        else:
            asked = "; ".join(f"{failure.member.url} {failure.words}" for failure in failures)
            self._status = 502
            body = msgspec.json.encode(_error(f"no server answered: {asked or 'none is known'}", 502))
            fields = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            own = f"{POOL_FIELD}: {self._route.pool.value}\r\n{REQUEST_ID_FIELD}: {self._id}\r\n"
            written = f"HTTP/1.1 502 Bad Gateway\r\n{fields}{own}".encode("ascii")
        close = b"connection: close\r\n" if self._is_last else b""
        self._caller.write(written + close + b"\r\n" + (b"" if self._request.method == "HEAD" else body))

    def _settle(self, failure: _Failure | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(failure)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _outcome(self) -> RoutedRequest:
        ground, seen = self._ground, self._observed.result()
        end = self._end
        if end is RequestEnd.OK and seen.error:
            end = RequestEnd.REFUSED
        has_answer = self._has_begun and self._member is not None
        member = self._member if has_answer else None
        first_s = seen.first_token_s
        return RoutedRequest(
            request_id=self._id,
            arrived_s=self._arrived_wall_s,
            features=self._features,
            route=self._route,
            server=None if member is None else member.url,
            pool=None if member is None else member.pool,
            end=end,
            status=self._status,
            running=self._running,
            ttft_s=None if first_s is None else first_s - self._arrived_s,
            e2e_s=ground.clock() - self._arrived_s,
            tpot_s=seen.tpot_s,
            prompt_tokens=seen.prompt_tokens,
            output_tokens=seen.output_tokens,
            drafted=seen.drafted,
            accepted=seen.accepted,
            finish_reason=seen.finish_reason,
            attempts=self._attempts,
            request_body=self._request.body if self._keeps_text else None,
            answer_text=seen.text if self._observed.keeps_text else None,
        )


def _content_type(head: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-type":
            return value.strip().lower()
    return b""


def _first_error(body: bytes) -> int | None:
    """The code of a stream whose first event is an error: vLLM has said "200 OK" to requests in its queue when its
    engine dies (0.32)."""
    if not body.startswith(b'data: {"error"'):
        return None
    event = read_event(body.partition(b"\n")[0].removeprefix(b"data: "))
    return None if event is None else as_whole(as_object(event.error).get("code"))


def _error(message: str, status: int) -> dict[str, object]:
    """As OpenAI's clients read it."""
    return {"error": {"message": message, "type": "upstream_error", "param": None, "code": status}}


def _reason(error: OSError) -> str:
    """In ASCII: it may stand in a message to the caller."""
    return ascii(error.strerror or str(error) or "does not answer")[1:-1][:MESSAGE_CHARACTERS]
