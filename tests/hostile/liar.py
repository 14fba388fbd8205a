"""An OpenAI-compatible server that streams honest text at a steady pace and lies about it: in its counts, in its
metrics, or by keeping answers back until they are whole."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = 16
WORDS = tuple(f"word-{number}" for number in range(TOKENS))

# Number of the answer and of its tokens to what stands beside the text: in every chunk, and in the last one.
Says = Callable[[int, int], dict[str, Any]]


def honest(_: int, tokens: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    tpot_s: float = 0.002
    at_the_end: Says = honest
    # Whether the n-th answer is kept back until it is whole.
    is_held_back: Callable[[int], bool] = lambda _: False
    # The n-th reading of /metrics; None: there is none.
    metrics: Callable[[int], str] | None = None


def _chunk(payload: dict[str, Any]) -> bytes:
    data = f"data: {json.dumps(payload)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


@contextmanager
def liar(truth: Truth) -> Iterator[str]:
    """Its address."""
    answers, readings = itertools.count(), itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else the kernel holds small writes back until the client has said that it got the one before.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._page(200, json.dumps({"data": [{"id": "m"}]}))
            elif self.path == "/metrics" and truth.metrics is not None:
                self._page(200, truth.metrics(next(readings)))
            else:
                self._page(404, "")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number, tokens = next(answers), min(TOKENS, body["max_tokens"])
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            chunks = [_chunk(_text(f"{word} ")) for word in WORDS[:tokens]]
            ends = [
                {"choices": [{"delta": {}, "finish_reason": "length"}]},
                {"choices": [], **truth.at_the_end(number, tokens)},
            ]
            last = b"".join(_chunk(end) for end in ends) + b"0\r\n\r\n"
            if truth.is_held_back(number):
                time.sleep(truth.tpot_s * tokens)
                self.wfile.write(b"".join(chunks) + last)
                return
            for chunk in chunks:
                time.sleep(truth.tpot_s)
                self.wfile.write(chunk)
            self.wfile.write(last)

        def _page(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _text(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
