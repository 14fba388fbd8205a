"""Sends requests and reads their streams, all in one thread: the measuring path, as lean as it goes.

One poll serves every connection. Time stamps are taken when bytes arrive (connection.py), streams are read as
they come (stream.py), and nothing is kept of a request once its result is handed over.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Callable
from dataclasses import replace

from speclift.client.connection import CONTROL_BYTES, READ_BYTES, Poll, Pool, Stamp, moment_of, turn_stamps_on
from speclift.client.exchange import FAILED_TEXT_MAX, Errand, Exchange, Sent, words
from speclift.client.pacing import Agenda, Lateness, LowWater
from speclift.core.records import AnswerRead, Outcome
from speclift.core.units import Seconds
from speclift.http.answer import ERROR_TEXT_MAX
from speclift.http.message import HttpError

# How often deadlines and idle connections are looked at.
TIDY_EVERY_S = 0.25
# From this many streams on, reads are gathered for this long: at 256 streams of 100 tokens/s it saves a third of
# the CPU time. Two chunks of one stream that arrive within it share the later stamp. In a closed loop a stream's next
# request waits for it too, in an open one nothing does.
CROWD = 24
PAUSE_S = 0.0005
OPEN_LOOP_PAUSE_S = 0.002
# Starts in a row before reads get their turn: on a machine so busy that one start takes as long as the gap to the
# next, nothing would be read any more.
STARTS_MAX = 16

_IN, _OUT = select.POLLIN, select.POLLOUT


class Sender:
    """At most `streams` jobs without a due moment are under way at once; jobs with one go out at that moment."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        limit_s: Seconds,
        connections_max: int,
        on_sent: Callable[[Sent], None],
    ) -> None:
        self._streams = 1
        self._limit_s = limit_s
        self._connections_max = connections_max
        self._on_sent = on_sent
        self._poll = Poll()
        self._pool = Pool(host, port, tls=tls, poll=self._poll)
        self._stamps = turn_stamps_on()
        self._under_way: dict[int, Exchange] = {}  # by descriptor, the longest under way first
        self._agenda = Agenda()
        self._tidy_at = 0.0
        self._has_news = False
        self._was_busy = False
        self.lateness = Lateness()
        self._woke: Seconds = 0.0
        self._last_stamp: Stamp | None = None
        self._low_water = LowWater()
        self._others: dict[int, Callable[[], None]] = {}

    # What is to be done

    def begin(self, *, streams: int, is_other_work: bool = False) -> None:
        """A turn begins, of requests like those before or of others: how late we were is counted anew."""
        self._streams = streams
        self.lateness = Lateness()
        if is_other_work:
            self._low_water.forget_lengths()

    def submit(self, job: Errand) -> None:
        self._agenda.add(job)

    @property
    def unsent_count(self) -> int:
        return len(self._agenda)

    @property
    def is_idle(self) -> bool:
        return not (self._under_way or self._agenda)

    @property
    def is_quiet(self) -> bool:
        """Idle until the next request is due."""
        return not (self._under_way or self._agenda.waiting)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Also wait for this descriptor, to be readable or hung up."""
        self._others[fd] = callback
        self._poll.register(fd, _IN)

    def listen(self, fd: int, *, is_on: bool) -> None:
        """Off: only that the other end hung up is still noticed."""
        self._poll.modify(fd, _IN if is_on else 0)

    def abandon(self) -> None:
        """Everything not finished is dropped without a result."""
        self._agenda.clear()
        for exchange in self._under_way.values():
            self._pool.drop(exchange.connection)
        self._under_way.clear()

    def close(self) -> None:
        self.abandon()
        self._pool.close()
        self._poll.close()
        if self._stamps is not None:
            self._stamps.close()

    # The loop

    def turn(self, wait_s: Seconds | None = None) -> None:
        """Starts what is due, waits (at most `wait_s`) for something to happen and deals with it."""
        if self._start_due():
            wait_s = 0.0
        elif len(self._under_way) >= CROWD:
            self._pause()
        events = self._poll.wait(self._patience(wait_s))
        self._woke = time.perf_counter()
        self._was_busy = bool(events)
        under_way = self._under_way
        for fd, mask in events:
            exchange = under_way.get(fd)
            if exchange is None:
                self._attend(fd)
            elif mask == _IN and exchange.is_framed:
                self._read_framed(exchange)
            else:
                if mask & _OUT:
                    self._go_on_sending(exchange)
                if mask != _OUT and fd in under_way:
                    self._read(exchange)
            # A long batch of reads must not hold up what is due meanwhile.
            if self._agenda.timed:
                self._start_ready(1)
        if self._last_stamp is not None:
            self.lateness.note_read(self._last_stamp, self._woke)
            self._last_stamp = None
        if self._woke >= self._tidy_at:
            self._tidy(self._woke)

    def _start_due(self) -> bool:
        """True where nothing may be waited for: neither what failed at once nor what can still start has to wait for
        the next event."""
        self._has_news = False
        if self._agenda:
            self._start_ready(STARTS_MAX)
        can_start = self._agenda.waiting and not self._is_full and len(self._under_way) < self._streams
        return self._has_news or bool(can_start)

    @property
    def _is_full(self) -> bool:
        return len(self._under_way) >= self._connections_max

    def _attend(self, fd: int) -> None:
        """Something happened to a descriptor that no request is under way on."""
        callback = self._others.get(fd)
        if callback is not None:
            callback()
        else:
            self._pool.stir(fd)

    def _pause(self) -> None:
        """Lets reads gather after a busy moment, where stamps are the kernel's; what falls due meanwhile is sent."""
        if not self._was_busy or self._stamps is None:
            return
        now = time.perf_counter()
        until = now + (OPEN_LOOP_PAUSE_S if self._agenda.timed else PAUSE_S)
        while now < until and self._agenda.next_due < until and not self._is_full:
            time.sleep(max(0.0, self._agenda.next_due - now))
            self._start_ready(1)
            now = time.perf_counter()
        if now < until:
            time.sleep(until - now)

    def _patience(self, wait_s: Seconds | None) -> Seconds | None:
        if wait_s is None and (self._under_way or self._pool.has_idle):
            wait_s = TIDY_EVERY_S
        if self._agenda.timed and not self._is_full:
            left_s = max(0.0, self._agenda.next_due - time.perf_counter())
            return left_s if wait_s is None or left_s < wait_s else wait_s
        return wait_s

    def _start_ready(self, most: int) -> None:
        for _ in range(min(most, self._connections_max - len(self._under_way))):
            has_free_stream = len(self._under_way) < self._streams
            job = self._agenda.take(time.perf_counter(), has_free_stream=has_free_stream)
            if job is None:
                return
            self._start(job)

    def _start(self, job: Errand) -> None:
        job.sent = time.perf_counter()
        job.intended = job.sent if job.due is None else job.due
        connection = self._pool.take(job.sent)
        if connection is not None:
            self._go(Exchange(job, connection))
        else:
            self._connect(job)

    def _connect(self, job: Errand, *, tried: int = 0) -> None:
        try:
            connection = self._pool.connect(tried)
        except OSError as error:
            self._report(job, None, Outcome.DISCONNECTED, words(error))
            return
        self._go(Exchange(job, connection))

    def _go(self, exchange: Exchange) -> None:
        connection = exchange.connection
        self._under_way[connection.fd] = exchange
        try:
            connection.send(exchange.job.data)
        except (OSError, ssl.SSLError) as error:
            self._lost(exchange, error)
            return
        if connection.has_unsent:
            self._poll.modify(connection.fd, _IN | _OUT)

    def _go_on_sending(self, exchange: Exchange) -> None:
        connection = exchange.connection
        try:
            connection.flush()
        except (OSError, ssl.SSLError) as error:
            self._lost(exchange, error)
            return
        if not connection.has_unsent:
            self._poll.modify(connection.fd, _IN)

    def _read_framed(self, exchange: Exchange) -> None:
        """The way of most tokens, kept as short as it can be: more chunks that end like those before them."""
        try:
            data, control, _, _ = exchange.receive(READ_BYTES, CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(exchange, error)
            return
        stamp = control[0][2] if control else time.perf_counter()
        self._last_stamp = stamp
        exchange.is_silent = False
        exchange.read_bytes += len(data)
        if data.endswith(exchange.stream.suffix):
            exchange.later.append((data, stamp))
            if len(exchange.later) >= exchange.stream.later_max and not self._catch_up(exchange):
                return
            if exchange.connection.gathers:
                exchange.connection.wake_at(self._mark_bytes(exchange))
        else:
            self._sort(exchange, data, stamp)

    def _read(self, exchange: Exchange) -> None:
        connection = exchange.connection
        try:
            received = connection.receive()
        except (OSError, ssl.SSLError) as error:
            self._lost(exchange, error)
            return
        if received is None:
            if connection.has_unsent:  # a step of the TLS handshake
                self._poll.modify(connection.fd, _IN | _OUT)
            return
        data, stamp = received
        self._last_stamp = stamp
        exchange.is_silent = False
        exchange.read_bytes += len(data)
        self._sort(exchange, data, stamp)

    def _sort(self, exchange: Exchange, data: bytes, stamp: Stamp) -> None:
        if not self._catch_up(exchange):
            return
        if data:
            self._take(exchange, data, moment_of(stamp))
        elif exchange.response.end():
            self._finish(exchange, *exchange.ending)
        else:
            self._lost(exchange, ConnectionResetError("the server closed the connection"))

    def _catch_up(self, exchange: Exchange) -> bool:
        """Reads what was put off; False where the answer ended in it."""
        for data, stamp in exchange.take_later():
            if self._under_way.get(exchange.connection.fd) is exchange:
                self._take(exchange, data, moment_of(stamp))
        if self._under_way.get(exchange.connection.fd) is not exchange:
            return False
        excess = exchange.excess
        if excess is not None:
            self._finish(exchange, *excess)
        return excess is None

    def _take(self, exchange: Exchange, data: bytes, arrived: Seconds) -> None:
        response, stream = exchange.response, exchange.stream
        exchange.settle()
        exchange.last_read = arrived
        try:
            body = response.feed(data)
        except HttpError as error:
            self._finish(exchange, Outcome.MALFORMED, str(error)[:ERROR_TEXT_MAX])
            return
        if body:
            if response.status == 200:
                texts_before = stream.text_count
                stream.feed(arrived, body)
                if texts_before == 0 < stream.text_count and self._last_stamp is not None:
                    self.lateness.note_first(self._last_stamp, self._woke, is_alone=stream.text_count == 1)
            else:
                exchange.keep_error(body)
        exchange.is_framed = (
            stream.has_frame and response.is_between_chunks and not exchange.connection.is_tls
        )
        if response.is_done:
            self._finish(exchange, *exchange.ending)
        elif stream.text_count and not exchange.connection.is_tls:
            exchange.connection.wake_at(self._mark_bytes(exchange) if stream.ending is None else 1)

    def _mark_bytes(self, exchange: Exchange) -> int:
        """An end that is noticed late holds up a stream's next request for a moment, and many at once hold up
        everything: it is risked where few streams leave us idle, and wake-ups are most of the cost."""
        if exchange.job.due is None and self._streams < CROWD:
            return self._low_water.mark_bytes(exchange.read_bytes)
        return self._low_water.ending_bytes

    # Trouble

    def _lost(self, exchange: Exchange, error: OSError) -> None:
        if not self._catch_up(exchange):
            return
        connection, job = exchange.connection, exchange.job
        if exchange.response.has_begun:
            self._finish(exchange, Outcome.CUT, words(error))
            return
        self._pool.drop(connection)
        del self._under_way[connection.fd]
        tried = self._pool.tried_with(connection)
        if connection.is_reused:
            # A kept-alive connection that the server closes as we write to it says nothing about the server
            # (llama.cpp does so now and then right after a stream). The clock keeps running meanwhile.
            self._connect(job)
        elif not connection.is_up and self._pool.has_more(tried):
            self._connect(job, tried=tried)
        else:
            self._report(job, exchange, Outcome.DISCONNECTED, words(error))

    def _tidy(self, now: Seconds) -> None:
        self._tidy_at = now + TIDY_EVERY_S
        for fd, exchange in tuple(self._under_way.items()):
            is_late = now - exchange.job.sent >= self._limit_s
            if exchange.connection.gathers and (exchange.is_silent or is_late):
                self._read(exchange)  # what lies there may be too little to wake us
            exchange.is_silent = True
            if is_late and self._under_way.get(fd) is exchange and self._catch_up(exchange):
                self._finish(exchange, Outcome.TIMEOUT, exchange.late(self._limit_s), end=now)
        self._last_stamp = None  # they lay there because we let them
        self._pool.tidy(now)

    # Ends

    def _finish(
        self, exchange: Exchange, outcome: Outcome | None, error: str, *, end: Seconds | None = None
    ) -> None:
        """`outcome` None: what the stream says."""
        connection = exchange.connection
        del self._under_way[connection.fd]
        if exchange.response.has_begun:
            self._pool.prefer(connection)
        if exchange.stream.ending is not None and self._stamps is not None:
            self._low_water.note(exchange.read_bytes, *exchange.stream.ending)
        if exchange.response.is_done and exchange.response.keeps_alive:
            self._pool.keep(connection, time.perf_counter())
        else:
            self._pool.drop(connection)
        self._report(exchange.job, exchange, outcome, error, end)

    def _report(
        self,
        job: Errand,
        exchange: Exchange | None,
        outcome: Outcome | None,
        error: str,
        end: Seconds | None = None,
    ) -> None:
        """What arrived before a failure is kept; the failure decides the outcome."""
        if exchange is not None:
            exchange.settle()
        if end is None:
            last_read = exchange.last_read if exchange is not None else None
            end = time.perf_counter() if last_read is None or outcome is not None else last_read
        result = exchange.stream.result() if exchange is not None else AnswerRead(outcome=Outcome.CUT)
        if outcome is not None:
            result = replace(result, outcome=outcome, error=error, text=result.text[:FAILED_TEXT_MAX])
        self._has_news = True
        self._on_sent(Sent(id=job.id, intended=job.intended, sent=job.sent, end=end, result=result))
