"""One caller's connection: requests taken one after the other, each answered before the next is looked at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from speclift.core.units import Seconds
from speclift.http.message import HttpError, HttpRequest, RequestReader
from speclift.live.gateway.exchange import Relay
from speclift.live.gateway.loop import read_little

# Written and not yet taken by the caller: above this, its server is not read any further.
WRITE_BYTES_MAX = 64 * 1024
# Sent ahead while an answer is under way.
AHEAD_BYTES_MAX = 64 * 1024
# For a head to come once it began, between two parts of a body, between two requests, and to take what was written.
HEAD_LIMIT_S, BODY_LIMIT_S, IDLE_LIMIT_S, SLOW_LIMIT_S = 10.0, 20.0, 75.0, 60.0
# A body is to come at least this fast on the whole.
BODY_BYTES_PER_S = 16 * 1024
# A caller that is refused in the middle of its body is read on until it has been quiet for so long, else it never sees
# the answer; not for ever.
LINGER_S, LINGER_MAX_S = 0.5, 20.0
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerGround:
    """What all connections share."""

    # The answer to a request for the gateway itself; None where it is for the servers.
    own_answer: Callable[[HttpRequest, bool], bytes | None]
    # Why a request is not let in; None where it is.
    refusal: Callable[[HttpRequest], HttpError | None]
    exchange: Callable[[CallerConnection, HttpRequest, bool], Relay]
    # Bytes of bodies that more (or fewer) are held; False where that is too many.
    hold: Callable[[int], bool]
    is_draining: Callable[[], bool]
    clock: Callable[[], Seconds]
    joined: Callable[[CallerConnection], bool]
    left: Callable[[CallerConnection], None]


class CallerConnection(asyncio.Protocol):
    def __init__(self, ground: CallerGround) -> None:
        self._ground = ground
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._exchange: Relay | None = None
        self._task: asyncio.Task[None] | None = None
        # Of bodies: what is counted, and what of it the request under way has.
        self._held = self._sent_on = 0
        self._is_ending = False
        self._is_paused = False
        # The head of the request was looked at: its body is waited for.
        self._is_let_in = False
        now_s = ground.clock()
        # When the last byte came, when the request began, and since when nothing is taken.
        self._heard_s, self._begun_s, self._slow_since_s = now_s, now_s, now_s

    @property
    def is_gone(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_busy(self) -> bool:
        """Waits for an answer, or has not taken the rest of one, or is in the middle of its request."""
        is_asking = self._exchange is not None or (self._reader.has_begun and not self._is_ending)
        return is_asking or (self._transport is not None and self._transport.get_write_buffer_size() > 0)

    @property
    def serving(self) -> asyncio.Task[None] | None:
        """What answers it at present."""
        return None if self._exchange is None else self._task

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def writer(self) -> Callable[[bytes], None] | None:
        return None if self._transport is None else self._transport.write

    def forget_body(self) -> None:
        """Its answer has begun: nobody else will be sent it."""
        self._sent_on = 0
        self._account()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def stop(self) -> None:
        """The gateway ends, and with it what is under way."""
        if self._exchange is not None:
            self._exchange.stop()
        else:
            self.hang_up()

    def close_if_idle(self) -> None:
        """No more requests are taken."""
        if not self.is_busy and self._transport is not None:
            self._transport.close()

    def check_time(self, now_s: Seconds) -> None:
        if (self._is_paused or self._is_ending) and now_s - self._slow_since_s > SLOW_LIMIT_S:
            self.hang_up()
        elif self._exchange is not None:
            self._exchange.check_time(now_s)
        elif not self._is_ending and not self._is_paused:
            self._check_request(now_s)

    def _check_request(self, now_s: Seconds) -> None:
        reader, quiet_s, gone_s = self._reader, now_s - self._heard_s, now_s - self._begun_s
        if not reader.has_begun:
            if quiet_s > IDLE_LIMIT_S:
                self.hang_up()
        elif reader.begun is None:
            if gone_s > HEAD_LIMIT_S:
                self._refuse(HttpError("the request did not come in time", 408))
        elif quiet_s > BODY_LIMIT_S or gone_s > BODY_LIMIT_S + reader.held_bytes / BODY_BYTES_PER_S:
            self._refuse(HttpError("the body did not come in time", 408))

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        read_little(transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        if not self._ground.joined(self):
            # At once: whoever comes beyond the bound is not to hold a descriptor that an answer needs.
            self._is_ending = True
            self.write(refusal_bytes(HttpError("too many connections", 503)))
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._ground.clock()
        if self._is_ending:
            return
        if not self._reader.has_begun:
            self._begun_s = self._heard_s
        self._reader.feed(data)
        is_room = self._account()
        if self._exchange is not None or self._is_paused:
            # Nothing but the answer may be written now.
            if self._transport is not None and (not is_room or self._reader.held_bytes > AHEAD_BYTES_MAX):
                self._transport.pause_reading()
        elif not is_room:
            self._refuse(HttpError("too many bodies at once", 503))
        else:
            self._take_next()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._exchange is not None:
            self._exchange.leave()
        self._ground.hold(-self._held)
        self._held = 0
        self._reader = RequestReader()
        self._ground.left(self)

    def pause_writing(self) -> None:
        self._is_paused, self._slow_since_s = True, self._ground.clock()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._is_paused, self._slow_since_s = False, self._ground.clock()
        if self._exchange is not None:
            self._exchange.resume()
        elif not self._is_ending:
            self._go_on(keeps_alive=True)

    def _account(self) -> bool:
        if self._transport is None:
            return True  # what it held was given back when it left
        held = self._reader.held_bytes + self._sent_on
        more, self._held = held - self._held, held
        return self._ground.hold(more)

    def _take_next(self) -> None:
        try:
            request = self._reader.next_request()
        except HttpError as refusal:
            self._refuse(refusal)
            return
        if request is None:
            self._look_at_head()
            return
        self._is_let_in = False
        refusal_of = self._ground.refusal(request)
        if refusal_of is not None:
            self._refuse(refusal_of)
            return
        is_last = self._ground.is_draining()
        own = self._ground.own_answer(request, is_last)
        if own is not None:
            self._account()
            self.write(own)
            self._go_on(keeps_alive=request.keeps_alive and not is_last)
            return
        self._sent_on = len(request.body)
        self._exchange = self._ground.exchange(self, request, is_last)
        self._task = asyncio.get_running_loop().create_task(self._serve(self._exchange))

    def _look_at_head(self) -> None:
        """Nobody waits for the body of a request that is not let in."""
        head = self._reader.begun
        if head is None or self._is_let_in:
            return
        refusal = self._ground.refusal(head)
        if refusal is not None:
            self._refuse(refusal)
            return
        self._is_let_in = True
        if self._reader.wants_leave:
            self.write(CONTINUE)

    async def _serve(self, exchange: Relay) -> None:
        is_served = False
        try:
            await exchange.run()
            is_served = True
        finally:
            self._exchange = None
            self.forget_body()
            if not is_served:
                self.hang_up()
        self._go_on(keeps_alive=exchange.keeps_alive and not self._ground.is_draining())

    def _go_on(self, *, keeps_alive: bool) -> None:
        if self._transport is None:
            return
        if not keeps_alive:
            self._end()
            return
        if self._is_paused:
            return  # whoever does not take one answer is not given another
        self._transport.resume_reading()
        self._heard_s = self._begun_s = self._ground.clock()
        if self._reader.has_begun:
            # Not from here: a caller that sends a thousand requests ahead would go a thousand calls deep.
            asyncio.get_running_loop().call_soon(self._take_ahead)

    def _end(self) -> None:
        """Closes once what was written is taken, which has its time too."""
        self._is_ending = True
        if not self._is_paused:
            self._slow_since_s = self._ground.clock()
        if self._transport is not None:
            self._transport.close()

    def _take_ahead(self) -> None:
        is_free = self._exchange is None and not self._is_paused and not self._is_ending
        if self._transport is not None and is_free:
            self._take_next()

    def _refuse(self, refusal: HttpError) -> None:
        self._is_ending = True
        self._heard_s = self._slow_since_s = self._ground.clock()
        self._reader = RequestReader()
        self.forget_body()
        if self._transport is None:
            return
        self.write(refusal_bytes(refusal))
        self._transport.resume_reading()
        self._linger(self._ground.clock() + LINGER_MAX_S)

    def _linger(self, until_s: Seconds) -> None:
        now_s = self._ground.clock()
        if self._transport is None:
            return
        if now_s - self._heard_s >= LINGER_S or now_s >= until_s:
            self._transport.abort()
        else:
            asyncio.get_running_loop().call_later(LINGER_S, self._linger, until_s)


def refusal_bytes(refusal: HttpError) -> bytes:
    """As OpenAI's clients read it."""
    kind = "invalid_request_error" if refusal.status < 500 else "overloaded_error"
    error = {"message": refusal.words, "type": kind, "param": None, "code": refusal.status}
    body = json.dumps({"error": error}).encode()
    fields = [f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"]
    if refusal.status == 401:
        fields.append('www-authenticate: Bearer realm="speclift"\r\n')
    if refusal.status == 503:
        fields.append("retry-after: 1\r\n")
    phrase = HTTPStatus(refusal.status).phrase
    return f"HTTP/1.1 {refusal.status} {phrase}\r\n{''.join(fields)}\r\n".encode("ascii") + body
