"""A server over sockets whose answers are drawn from a seed: right ones, and ones with a fault of every kind we know.

Which answer a request gets depends on the seed and the number in its prompt, or on how many came before it. Used by
benchmarks/fuzz.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

TOKENS = 16
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)
_NUMBER = re.compile(rb"answer-(\d+)")
# As JSON text: no dumps would write some of them.
NUMBERS = (
    *(
        "17",
        "16777216",
        "-1",
        "2.5",
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "1e9",
        "true",
        '"12"',
        "[]",
        "{}",
        "null",
    ),
    *("9" * 30, "9" * 5000, "0", "[" * 2000, '"\\ud800"', "1.0e1"),
)
STATUS_LINES = (
    *(
        b"HTTP/1.1 503 Busy",
        b"HTTP/1.1 429 Slow",
        b"HTTP/1.1 302 Found",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 204 None",
    ),
    *(
        b"HTTP/1.1 \xb2\xb3\xb9 Odd",
        b"HTTP/2 200",
        b"HTTP/1.1 20",
        b"HTTP/1.1 100 Continue",
        b"SSH-2.0-x",
        b"\0" * 9,
    ),
)
FIELDS = (
    *(
        b"Content-Length: -1",
        b"Content-Length: \xb9",
        b"Content-Length: " + b"9" * 5000,
        b"Content-Length: 3",
    ),
    *(
        b"Content-Encoding: gzip",
        b"Location: http://127.0.0.1:9/",
        b"X: " + b"y" * 70_000,
        b": x",
        b"\tfolded",
    ),
)
LINES = (
    *(
        b"data: {",
        b"data: [1]",
        b"data: " + b"[" * 50_000,
        b"data: \xff",
        b"data: 7",
        b"junk",
        b": ping",
        b"data:",
    ),
    *(
        b'data: {"choices": [3]}',
        b'data: {"choices": "x"}',
        b'data: {"error": {"message": 5}}',
        b"data: [DONE]",
    ),
    *(b'data: {"choices": [{"delta": {"content": 5}}]}', b"data: " + b"x" * 100_000, b'data: {"usage": 3}'),
)
PAGES = (
    *(
        '{"data": 5}',
        '{"data": [7]}',
        '{"data": [{"id": 5}]}',
        "[]",
        "null",
        "<html>Sign in</html>",
        "",
        "9" * 5000,
    ),
    *("[" * 50_000, '{"data": [{"id": "m", "max_model_len": 1e400}]}', '{"data": [{"id": "\\ud800"}]}', "\0"),
    *(
        '{"version": {"a": []}}',
        '[{"n_ctx": -1, "speculative": 1}]',
        '[{"n_ctx": 1e30}, 3]',
        '{"build_info": [1]}',
    ),
    *("a NaN\nb 1e400\n", "vllm:spec_decode_num_draft_tokens_total -Inf\n", 'x{position="\u0661"} 1\n' * 500),
    *(
        'vllm:cache_config_info{num_gpu_blocks="\u0661",block_size="9"} 1\n',
        "vllm:num_preemptions_total 1_0\n",
    ),
)
MODELS = '{"object": "list", "data": [{"id": "m", "object": "model"}]}'


class HangUp(Exception):
    """This connection is of no more use."""


@dataclass(slots=True)
class Answer:
    """Pieces to send; a number is a pause."""

    pieces: list[bytes | float]
    # What was done to it; '' for a right one.
    fault: str = ""
    is_reset: bool = False
    closes: bool = False


def event(payload: str) -> bytes:
    return f"data: {payload}\n\n".encode("utf-8", "replace")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def right_events(draw: random.Random, *, usage: str, beside: str = "") -> list[bytes]:
    """The events of an answer of sixteen tokens; `usage` and `beside` are JSON text."""
    word = draw.choice(("word", "w\u00f6rd", "\U0001f6a2", "a b"))
    # Not the same word again and again: a loop is no answer, and nothing ships on it.
    texts = [
        json.dumps({"choices": [{"delta": {"content": f"{word}{number} "}, "finish_reason": None}]})
        for number in range(TOKENS)
    ]
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]})
    last = f'{{"choices": [], "usage": {{"prompt_tokens": 5, "completion_tokens": {usage}}}{beside}}}'
    return [*map(event, texts), event(end), event(last), b"data: [DONE]\n\n"]


def drawn_answer(draw: random.Random, *, wild_share: float, pause_s: float) -> Answer:
    """A right one, or with this chance one with a fault."""
    fault = draw.choice(tuple(FAULTS)) if draw.random() < wild_share else ""
    answer = FAULTS[fault](draw) if fault else Answer(whole(right_events(draw, usage=str(TOKENS))))
    answer.fault = fault
    if pause_s and fault != "burst":
        answer.pieces = [part for piece in answer.pieces for part in (pause_s, piece)]
    return answer


def whole(
    events: list[bytes], *, status: bytes = b"HTTP/1.1 200 OK", fields: tuple[bytes, ...] = ()
) -> list[bytes | float]:
    head = b"\r\n".join([status, *fields, b"Transfer-Encoding: chunked"]) + b"\r\n\r\n"
    return [head, *(framed(each) for each in events), b"0\r\n\r\n"]


def lying_usage(draw: random.Random) -> Answer:
    return Answer(whole(right_events(draw, usage=draw.choice(NUMBERS))))


def lying_drafts(draw: random.Random) -> Answer:
    first, second = draw.choice(NUMBERS), draw.choice((*NUMBERS, "3"))
    beside = draw.choice(
        (
            f', "timings": {{"predicted_n": 16, "draft_n": {first}, "draft_n_accepted": {second}}}',
            f', "timings": {{"predicted_n": {first}}}',
            f', "metrics": {{"speculative_decoding": {{"num_draft_tokens": {first}, '
            f'"num_accepted_draft_tokens": {second}}}}}',
            f', "metrics": {{"speculative_decoding": {{"num_draft_tokens": 4, "num_accepted_draft_tokens": 2, '
            f'"per_step_drafted": [{first}], "per_step_accepted": [{second}]}}}}',
        )
    )
    return Answer(whole(right_events(draw, usage="16", beside=beside)))


def odd_line(draw: random.Random) -> Answer:
    events = right_events(draw, usage="16")
    events.insert(draw.randrange(len(events)), draw.choice(LINES) + draw.choice((b"\n\n", b"\n", b"")))
    return Answer(whole(events))


def odd_head(draw: random.Random) -> Answer:
    fields = (draw.choice(FIELDS),) if draw.random() < 0.5 else ()
    status = draw.choice(STATUS_LINES) if not fields else b"HTTP/1.1 200 OK"
    return Answer(whole(right_events(draw, usage="16"), status=status, fields=fields), closes=True)


def bytes_exchanged(draw: random.Random) -> Answer:
    data = bytearray(b"".join(p for p in whole(right_events(draw, usage="16")) if isinstance(p, bytes)))
    for _ in range(draw.randint(1, 6)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return Answer([bytes(data)], closes=True)


def cut_off(draw: random.Random) -> Answer:
    pieces = whole(right_events(draw, usage="16"))
    return Answer(
        pieces[: draw.randrange(len(pieces))], is_reset=draw.random() < 0.5, closes=True, fault="cut"
    )


def burst(draw: random.Random) -> Answer:
    pieces = whole(right_events(draw, usage="16"))
    return Answer([b"".join(piece for piece in pieces if isinstance(piece, bytes))])


def nothing_more(draw: random.Random) -> Answer:
    """It stops in the middle and does not hang up."""
    pieces = whole(right_events(draw, usage="16"))
    return Answer([*pieces[: draw.randrange(len(pieces))], 30.0], closes=True)


def noise(draw: random.Random) -> Answer:
    return Answer([draw.randbytes(draw.randrange(400))], closes=True)


FAULTS: dict[str, Callable[[random.Random], Answer]] = {
    "usage": lying_usage,
    "drafts": lying_drafts,
    "line": odd_line,
    "head": odd_head,
    "bytes": bytes_exchanged,
    "cut": cut_off,
    "burst": burst,
    "noise": noise,
}
# Each costs a time limit, so they are drawn apart.
SLOW_SHARE = 0.005


@dataclass(slots=True)
class FuzzedServer:
    """Threads, one a connection. `wild_share` of completions and `wild_pages` of other pages have a fault."""

    seed: str
    wild_share: float = 0.7
    wild_pages: float = 0.0
    slow_share: float = SLOW_SHARE
    pause_s: float = 0.0
    faults: dict[int, str] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)
    _socket: socket.socket = field(
        default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=512)
    )
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(timeout=2.0)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(30.0)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, HangUp):
            data = b""
            while not self._stopping.is_set():
                data = self._one(connection, data)

    def _one(self, connection: socket.socket, data: bytes) -> bytes:
        """Reads a request and answers it; what was read beyond it."""
        while b"\r\n\r\n" not in data:
            data += self._more(connection)
        head, _, rest = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        while length and len(rest) < int(length[1]):
            rest += self._more(connection)
        body_bytes = int(length[1]) if length else 0
        if head.startswith(b"POST"):
            self._send(connection, self._completion(rest[:body_bytes]))
        else:
            path = head.split(b" ", 2)[1].decode("latin-1").partition("?")[0]
            self._send(connection, self._page(path))
        return rest[body_bytes:]

    def _more(self, connection: socket.socket) -> bytes:
        data = connection.recv(65536)
        if not data:
            raise HangUp
        return data

    def _completion(self, body: bytes) -> Answer:
        found = _NUMBER.search(body)
        number = int(found[1]) if found else next(self._numbers)
        draw = random.Random(f"{self.seed}:{number}")
        if draw.random() < self.slow_share:
            answer = nothing_more(draw)
            answer.fault = "slow"
        else:
            answer = drawn_answer(draw, wild_share=self.wild_share, pause_s=self.pause_s)
        self.faults[number] = answer.fault
        return answer

    def _page(self, path: str) -> Answer:
        draw = random.Random(f"{self.seed}:{path}:{next(self._numbers)}")
        if draw.random() < self.wild_pages:
            if draw.random() < 0.3:
                return FAULTS[draw.choice(("head", "bytes", "cut", "noise"))](draw)
            text = draw.choice(PAGES)
        elif path == "/v1/models":
            text = MODELS
        else:
            return Answer([b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"])
        data = text.encode("utf-8", "surrogatepass")
        return Answer([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)])

    def _send(self, connection: socket.socket, answer: Answer) -> None:
        for piece in answer.pieces:
            if isinstance(piece, bytes):
                connection.sendall(piece)
            elif piece < 0.1:
                time.sleep(piece)
            elif self._stopping.wait(piece):
                raise HangUp
        if answer.is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if answer.closes:
            raise HangUp
