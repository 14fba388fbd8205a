"""The process that sends: orders come in on one socket, results go back on it, nothing else runs beside.

A process of its own, because whatever else the program does (a database, a progress bar) would delay what is
measured. It ends when its parent closes the socket or dies. `frames.py` has the messages.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

from speclift.client.exchange import Errand, Sent
from speclift.client.frames import (
    Begin,
    End,
    FrameReader,
    Message,
    Orders,
    ProcessHealth,
    ResultRow,
    Results,
    Setup,
    frame,
)
from speclift.client.sender import Sender
from speclift.core.units import Seconds
from speclift.http.counts import Limits

# Orders wait here rather than with the parent, so that none is late because the parent was; beyond this many
# they wait in the socket, and the parent waits with them.
UNSENT_MAX = 2048
# Results are handed over in batches: waking the parent for each one would cost more than the request. They go with
# the first wake-up after this time, a few of them after more, or at once where nothing else is left to do.
RESULT_DELAY_S = 0.1
FEW_RESULTS, FEW_RESULTS_DELAY_S = 8, 1.0
# A parent that is slow to read must not hold up what is measured: its results wait here meanwhile.
WRITE_AGAIN_S = 0.005
READ_BYTES = 1 << 18
# Descriptors that are not connections to the server.
OWN_DESCRIPTORS = 32
DESCRIPTORS_MAX = 1 << 20


class Worker:
    def __init__(self, link: socket.socket, setup: Setup) -> None:
        self._link = link
        self._frames = FrameReader()
        self._sender = Sender(
            setup.host,
            setup.port,
            tls=_tls() if setup.is_tls else None,
            limit_s=setup.limit_s,
            connections_max=_connections_max(),
            on_sent=self._keep,
        )
        self._results: list[ResultRow] = []
        self._results_since: Seconds = 0.0
        self._unwritten = bytearray()
        self._turn = 0
        self._is_ending = False
        self._cpu_before = 0.0
        self._is_listening = True
        self.is_over = False

    def run(self) -> None:
        self._sender.watch(self._link.fileno(), self._read)
        wait_s: Seconds | None = None
        while not self.is_over:
            self._sender.turn(wait_s)
            # Most wake-ups are tokens of a stream that goes on: they end here.
            has_more = self._results or self._unwritten or not self._is_listening
            wait_s = self._attend() if has_more else None
        self._sender.close()

    def _attend(self) -> Seconds | None:
        """What there is to do besides sending; how long it may be left alone."""
        if self._results and (self._sender.is_quiet or self._is_due()):
            self._hand_over()
        if self._is_ending and self._sender.is_idle:
            self._finish()
        if self._unwritten:
            self._write()
        if not self._is_listening and self._sender.unsent_count < UNSENT_MAX // 2:
            self._listen(is_on=True)
        return WRITE_AGAIN_S if self._unwritten else None

    # Orders

    def _listen(self, *, is_on: bool) -> None:
        self._is_listening = is_on
        self._sender.listen(self._link.fileno(), is_on=is_on)

    def _read(self) -> None:
        if not self._is_listening:
            self.is_over = True  # the parent is gone; what it still wanted nobody waits for
            return
        try:
            data = self._link.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_over = True
            return
        for message in self._frames.feed(data):
            self._obey(message)
        if self._is_ending and self._sender.is_idle and not self._results:
            self._finish()  # the end came last
        if self._sender.unsent_count >= UNSENT_MAX:
            self._listen(is_on=False)

    def _obey(self, message: Message) -> None:
        match message:
            case Begin(turn=turn, streams=streams, is_other_work=is_other_work):
                self._turn = turn
                self._sender.begin(streams=streams, is_other_work=is_other_work)
                self._cpu_before = time.process_time()
            case Orders(rows=rows):
                for id, due, data, bytes_max, tokens_max, draft_max in rows:
                    limits = Limits(tokens_max=tokens_max, draft_max=draft_max)
                    self._sender.submit(Errand(id, due, data, bytes_max, limits=limits))
            case End():
                self._is_ending = True

    # Results

    def _keep(self, sent: Sent) -> None:
        if not self._results:
            self._results_since = time.perf_counter()
        self._results.append(row_of(sent))

    def _is_due(self) -> bool:
        delay_s = RESULT_DELAY_S if len(self._results) >= FEW_RESULTS else FEW_RESULTS_DELAY_S
        return time.perf_counter() > self._results_since + delay_s

    def _hand_over(self) -> None:
        self._unwritten += frame(Results(rows=self._results))
        self._results = []

    def _finish(self) -> None:
        self._is_ending = False
        lateness, cpu_s = self._sender.lateness, time.process_time() - self._cpu_before
        self._unwritten += frame(ProcessHealth(self._turn, lateness.lag_p99_s, lateness.blur_p99_s, cpu_s))

    def _write(self) -> None:
        try:
            sent = self._link.send(self._unwritten)
            del self._unwritten[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True  # the parent is gone


def row_of(sent: Sent) -> ResultRow:
    result = sent.result
    return (
        sent.id,
        sent.intended,
        sent.sent,
        sent.end,
        result.outcome.value,
        result.error,
        result.first_token_s,
        result.last_token_s,
        result.prompt_tokens,
        result.output_tokens,
        result.finish_reason,
        result.text,
        result.drafted,
        result.accepted,
        None if result.steps is None else [(step.drafted, step.accepted) for step in result.steps],
        [(refused.rule, refused.said) for refused in result.refused],
    )


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _connections_max() -> int:
    """As many as the system lets us open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return (
        DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)
    ) - OWN_DESCRIPTORS


def main(descriptor: int, setup: Setup) -> None:
    # Ctrl-C is the parent's to deal with; it then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=descriptor)
    link.setblocking(False)
    worker = Worker(link, setup)
    # Moments to send at are kept to microseconds where the system lets us ask for it.
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000")
    # What was imported is never garbage, and what a request leaves behind is freed without a search.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    worker.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), Setup(**json.loads(sys.argv[2])))
    # Nothing is left to tidy up, and the parent waits for the end.
    os._exit(0)
