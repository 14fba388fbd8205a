"""A server over sockets that misbehaves as it is told, and otherwise answers like an OpenAI-compatible one.

A misbehaviour is a function that takes a `Talk` (one request) and writes whatever bytes it likes; `HostileServer`
is given one for each path it is for. Several ready ones are below: most new ones are a call of `answers` or `raw`.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

MODELS, METRICS, SLOTS, COMPLETIONS = "/v1/models", "/metrics", "/slots", "/v1/chat/completions"
JSON, EVENTS = "application/json", "text/event-stream"
MODEL_LIST = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "somebody"}]}
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)


class Talk:
    """One request and the connection that it came on."""

    def __init__(
        self, connection: socket.socket, head: bytes, body: bytes, stopping: threading.Event
    ) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ", 2)
        self.path = self.target.partition("?")[0]
        self.headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        self.body: dict[str, Any] = json.loads(body) if body else {}
        self._socket = connection
        self._stopping = stopping
        # Set by a behaviour that ends its answer by closing.
        self.closes = False

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def wait(self, seconds: float) -> None:
        """Sleeps; ConnectionError when the server is stopped meanwhile."""
        if seconds and self._stopping.wait(seconds):
            raise ConnectionAbortedError
        if self._stopping.is_set():
            raise ConnectionAbortedError

    def reset(self) -> None:
        """Ends the connection with RST instead of FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        raise ConnectionAbortedError


Behaviour = Callable[[Talk], None]


# Whole answers


def head(status: int | str = 200, *, kind: str = JSON, **fields: object) -> bytes:
    """The head of an answer; fields as keywords, `content_length=3` for Content-Length."""
    lines = [f"HTTP/1.1 {status} Said so", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-').title()}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def as_bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def answers(body: object, *, status: int | str = 200, kind: str = JSON, **fields: object) -> Behaviour:
    """This body, as it is where it is text or bytes, else as JSON."""
    data = as_bytes(body)

    def behave(talk: Talk) -> None:
        talk.send(head(status, kind=kind, content_length=len(data), **fields) + data)

    return behave


def redirects(to: str, *, status: int = 302) -> Behaviour:
    return answers(b"", status=status, location=to)


def zipped(body: object) -> Behaviour:
    """Compressed though nobody asked for it."""
    return answers(gzip.compress(as_bytes(body)), content_encoding="gzip")


def raw(data: bytes) -> Behaviour:
    """Exactly these bytes, then the end of the connection."""

    def behave(talk: Talk) -> None:
        talk.send(data)
        talk.closes = True

    return behave


def resets(talk: Talk) -> None:
    talk.reset()


# Answers that do not end


def hangs(talk: Talk) -> None:
    while True:
        talk.wait(1.0)


def drips(body: bytes = b" ", *, every_s: float = 0.2, start: bytes = head()) -> Behaviour:
    """One byte at a time, again and again: every read succeeds, the answer never ends."""

    def behave(talk: Talk) -> None:
        talk.send(start)
        for byte in itertools.cycle(body):
            talk.wait(every_s)
            talk.send(bytes([byte]))

    return behave


def endless(piece: bytes, *, start: bytes = head()) -> Behaviour:
    """As fast as it goes, for ever."""
    block = piece * (1 + 65536 // len(piece))

    def behave(talk: Talk) -> None:
        talk.send(start)
        while True:
            talk.wait(0.0)
            talk.send(block)

    return behave


def many(lines: Iterable[bytes]) -> Behaviour:
    """A body of these pieces until the connection closes; it is never held as a whole here."""

    def behave(talk: Talk) -> None:
        talk.send(head(kind="text/plain"))
        while block := b"".join(itertools.islice(pieces, 4096)):
            talk.wait(0.0)
            talk.send(block)
        talk.closes = True

    pieces = iter(lines)
    return behave


# Streams


def event(payload: object) -> bytes:
    data = b"data: " + as_bytes(payload) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(text: str | None, *, finish: str | None = None, **more: object) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def streams(
    *,
    ttft_s: float = 0.002,
    tpot_s: float = 0.001,
    tokens: int | None = None,
    usage: Mapping[str, object] | None = None,
    in_one_burst: bool = False,
    last: Mapping[str, object] | None = None,
) -> Behaviour:
    """A completion as it should be: so many tokens (else as many as were asked for), one in each event.

    `usage` replaces what is said of the counts, `last` adds to the last event (such as llama.cpp's timings);
    `in_one_burst` holds everything back until the end, as a buffering proxy does.
    """

    def behave(talk: Talk) -> None:
        count = tokens or int(talk.body.get("max_tokens", 8))
        said = usage or {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}
        held: list[bytes] = [head(kind=EVENTS, transfer_encoding="chunked")]
        talk.wait(ttft_s)
        for place in range(count):
            held.append(event(chunk(f" word{(place * 7919 + talk.body.get('seed', 0)) % 9973}")))
            if not in_one_burst:
                talk.send(b"".join(held))
                held.clear()
            talk.wait(tpot_s)
        end = {**chunk(None, finish="length"), "usage": said, **(last or {})}
        talk.send(b"".join([*held, event(end), event("[DONE]"), b"0\r\n\r\n"]))

    return behave


def streams_events(*payloads: object, ends: bytes = b"0\r\n\r\n") -> Behaviour:
    """These events and nothing else; `ends` b'' breaks the chunked body off."""
    data = head(kind=EVENTS, transfer_encoding="chunked") + b"".join(event(each) for each in payloads) + ends
    return raw(data) if not ends else lambda talk: talk.send(data)


# Now and then


def every(count: int, bad: Behaviour, good: Behaviour | None = None) -> Behaviour:
    """Bad at each `count`-th request, good at the others."""
    numbers = itertools.count(1)
    well = good or streams()
    return lambda talk: bad(talk) if next(numbers) % count == 0 else well(talk)


def after(count: int, bad: Behaviour, good: Behaviour | None = None) -> Behaviour:
    """Good for so many requests, then bad."""
    numbers = itertools.count(1)
    well = good or streams()
    return lambda talk: bad(talk) if next(numbers) > count else well(talk)


def not_found(talk: Talk) -> None:
    answers({"error": {"message": "no such page"}}, status=404)(talk)


class HostileServer:
    """Behaves at each path as told, well at /v1/models and completions otherwise, and has no other pages."""

    def __init__(self, told: Mapping[str, Behaviour] | None = None) -> None:
        well = streams()
        self._behaviours: dict[str, Behaviour] = {
            MODELS: answers(MODEL_LIST),
            COMPLETIONS: well,
            "/v1/completions": well,
            **(told or {}),
        }
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self.port: int = self._listener.getsockname()[1]
        # What was asked for, in order.
        self.asked: list[Talk] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked_for(self, path: str) -> list[Talk]:
        return [talk for talk in self.asked if talk.path == path]

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join(timeout=10.0)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A client that neither reads nor leaves must not hold the test up at its end.
            connection.settimeout(2.0)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the client left, or we are stopped
            buffer = b""
            while not self._stopping.is_set():
                taken = self._receive(connection, buffer)
                if taken is None:
                    return
                head, body, buffer = taken
                talk = Talk(connection, head, body, self._stopping)
                self.asked.append(talk)
                self._behaviours.get(talk.path, not_found)(talk)
                if talk.closes:
                    return

    def _receive(self, connection: socket.socket, buffer: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Head, body and what came after it; None where the client left."""
        while not self._stopping.is_set():
            head, end, rest = buffer.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            size = int(length[1]) if length else 0
            if end and len(rest) >= size:
                return head, rest[:size], rest[size:]
            try:
                data = connection.recv(65536)
            except TimeoutError:
                continue
            if not data:
                return None
            buffer += data
        return None
