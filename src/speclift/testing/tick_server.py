"""A server that only keeps time: each answer's tokens leave on a schedule, and its text ends with the true times.

For measuring the load generator itself. A request arrives when the kernel has it, a token leaves when it is sent;
the last two words of an answer are the true time to first token and the true time from first to last, in seconds.
"""

from __future__ import annotations

import heapq
import re
import socket
import sys
import time
from itertools import count

from speclift.client.connection import Poll, ask_for_stamps, moment_of, receive_stamped, turn_stamps_on
from speclift.core.units import Seconds

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_TEXT = b'data: {"id":"tick","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":%b}]}\n\n'
_USAGE = (
    b'data: {"id":"tick","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_tokens": *(\d+)')
_READABLE = 1


class _Answer:
    """One connection and the answer it is being sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received = b""
        self.tokens = 0
        self.sent = 0
        self.arrived: Seconds = 0.0
        self.first: Seconds = 0.0


class TickServer:
    def __init__(self, *, ttft_s: Seconds, tpot_s: Seconds) -> None:
        self._ttft_s, self._tpot_s = ttft_s, tpot_s
        self._poll = Poll()
        self._stamps = turn_stamps_on()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self._poll.register(self._listener.fileno(), _READABLE)
        self._answers: dict[int, _Answer] = {}
        self._due: list[tuple[Seconds, int, _Answer]] = []
        self._order = count()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def serve_until_eof(self, descriptor: int) -> None:
        """Whoever started us holds the other end."""
        self._poll.register(descriptor, _READABLE)
        while True:
            left_s = None if not self._due else max(0.0, self._due[0][0] - time.perf_counter())
            for fd, _ in self._poll.wait(left_s):
                if fd == descriptor:
                    return
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._answers:
                    self._read(self._answers[fd])
            while self._due and self._due[0][0] <= time.perf_counter():
                self._tick()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(connection)
            self._answers[connection.fileno()] = _Answer(connection)
            self._poll.register(connection.fileno(), _READABLE)

    def _read(self, answer: _Answer) -> None:
        try:
            data, stamp = receive_stamped(answer.socket)
        except BlockingIOError:
            return
        except OSError:
            data, stamp = b"", 0.0
        if not data:
            self._drop(answer)
            return
        answer.received += data
        head, end, body = answer.received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or length is None or len(body) < int(length[1]):
            return
        asked = _TOKENS.search(body)
        answer.received = b""
        answer.tokens = max(2, int(asked[1])) if asked else 2
        answer.sent = 0
        answer.arrived = moment_of(stamp)
        heapq.heappush(self._due, (answer.arrived + self._ttft_s, next(self._order), answer))

    def _tick(self) -> None:
        due, _, answer = heapq.heappop(self._due)
        answer.sent += 1
        now = time.perf_counter()
        if answer.sent == 1:
            answer.first = now
            data = _HEAD + _chunk(_TEXT % (b" tick", b"null"))
        elif answer.sent < answer.tokens:
            data = _chunk(_TEXT % (b" tick", b"null"))
        else:
            truth = b" %.9f %.9f" % (answer.first - answer.arrived, now - answer.first)
            data = _chunk(_TEXT % (truth, b'"length"')) + _chunk(_USAGE % answer.tokens) + _chunk(b"")
        try:
            answer.socket.send(data)
        except OSError:
            self._drop(answer)
            return
        if answer.sent < answer.tokens:
            heapq.heappush(self._due, (due + self._tpot_s, next(self._order), answer))

    def _drop(self, answer: _Answer) -> None:
        if self._answers.pop(answer.socket.fileno(), None) is not None:
            self._poll.unregister(answer.socket.fileno())
            answer.socket.close()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def main(arguments: list[str]) -> None:
    ttft_s, tpot_s = map(float, arguments)
    server = TickServer(ttft_s=ttft_s, tpot_s=tpot_s)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_until_eof(sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
