"""A proxy that passes everything on but tampers with the text of completions: a server whose output changed."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WRONG_SHARE, RARE_SHARE = 0.01, 0.005
# Tokens of both tests' engines; whatever the right one was, this is rarely it.
WRONG = (" zoro", " fima", " Quebec", " 77")

Tamper = Callable[[list[str], random.Random], list[str]]


def corrupt(parts: list[str], draws: random.Random) -> list[str]:
    return [draws.choice(WRONG) if part and draws.random() < WRONG_SHARE else part for part in parts]


def rarely(parts: list[str], draws: random.Random) -> list[str]:
    return [draws.choice(WRONG) if part and draws.random() < RARE_SHARE else part for part in parts]


def swap(parts: list[str], draws: random.Random) -> list[str]:
    """Two neighbouring tokens change places once per answer."""
    full = [index for index, part in enumerate(parts) if part]
    if len(full) < 4:
        return parts
    at = draws.randrange(len(full) - 1)
    parts[full[at]], parts[full[at + 1]] = parts[full[at + 1]], parts[full[at]]
    return parts


def truncate(parts: list[str], draws: random.Random) -> list[str]:
    full = [index for index, part in enumerate(parts) if part]
    for index in full[len(full) * 3 // 4 :]:
        parts[index] = ""
    return parts


def nothing(parts: list[str], draws: random.Random) -> list[str]:
    return parts


TAMPERS: dict[str, Tamper] = {
    "corrupt": corrupt,
    "rarely": rarely,
    "swap": swap,
    "truncate": truncate,
    "nothing": nothing,
}


@contextmanager
def proxy(upstream: str, tamper: str, *, seed: int = 0) -> Iterator[str]:
    """The URL of the proxy."""
    draws = random.Random(seed)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _pass_on(self, body: bytes | None) -> None:
            request = urllib.request.Request(
                upstream + self.path, data=body, headers={"Content-Type": "application/json"}
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(request, timeout=120) as response:
                    status, data = response.status, response.read()
            except urllib.error.HTTPError as error:
                status, data = error.code, error.read()
            if body is not None and "completions" in self.path and status == 200:
                data = tampered(data, TAMPERS[tamper], draws)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tampered(data: bytes, tamper: Tamper, draws: random.Random) -> bytes:
    if not data.startswith(b"data:"):
        answer = json.loads(data)
        holder = answer["choices"][0].get("message") or answer["choices"][0]
        key = "content" if "content" in holder else "text"
        words = holder[key].split(" ")
        parts = [words[0], *(f" {word}" for word in words[1:])]
        holder[key] = "".join(tamper(parts, draws))
        return json.dumps(answer).encode()
    events = [line for line in data.decode().split("\n\n") if line]
    payloads = [None if event.endswith("[DONE]") else json.loads(event[5:]) for event in events]
    deltas = [
        choice["delta"]
        for payload in payloads
        if payload is not None
        for choice in payload["choices"]
        if isinstance(choice.get("delta", {}).get("content"), str)
    ]
    for delta, part in zip(deltas, tamper([delta["content"] for delta in deltas], draws), strict=True):
        delta["content"] = part
    shown = ["data: [DONE]" if payload is None else f"data: {json.dumps(payload)}" for payload in payloads]
    return ("\n\n".join(shown) + "\n\n").encode()
