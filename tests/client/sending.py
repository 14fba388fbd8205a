"""A sender at work on a scripted server: answers to give, requests to send, a loop to run."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable

from scripted import Peer, Script, ScriptedServer

from speclift.client.exchange import Errand, Sent
from speclift.client.sender import Sender
from speclift.http.message import target_of

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
PATIENCE_S = 20.0


def chunk(payload: object) -> bytes:
    data = b"data: " + json.dumps(payload).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str, finish: str | None = None) -> bytes:
    return chunk({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})


USAGE = chunk({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
ANSWER = HEAD + token("one") + token(" two", "length") + USAGE + END


def counted(status: str, body: bytes, *fields: str) -> bytes:
    lines = "".join(f"{field}\r\n" for field in (*fields, f"Content-Length: {len(body)}"))
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def answering(answer: bytes) -> Script:
    """Every request gets these bytes."""

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(answer)

    return script


def once(*steps: bytes | float) -> Script:
    """One request gets these bytes, with pauses in seconds between; then the server closes."""

    def script(peer: Peer) -> None:
        peer.request()
        for step in steps:
            if isinstance(step, float):
                peer.pause(step)
            else:
                peer.send(step)

    return script


def sender_for(
    server: ScriptedServer | None,
    sent: list[Sent],
    *,
    limit_s: float = PATIENCE_S,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    connections_max: int = 100,
) -> Sender:
    port = server.port if server else free_port()
    return Sender(host, port, tls=tls, limit_s=limit_s, connections_max=connections_max, on_sent=sent.append)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def work(sender: Sender, *, until: Callable[[], bool] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (until() if until else sender.is_idle):
        assert time.monotonic() < deadline, "the sender did not come to an end"
        sender.turn(0.05)


def post(id: int = 0, due: float | None = None) -> Errand:
    return Errand(id, due, target_of("http://127.0.0.1", api_key=None).request("/v1/completions", b"{}"))


def ask(script: Script, *, times: int = 1, limit_s: float = PATIENCE_S) -> tuple[list[Sent], int]:
    """Requests one after the other; what became of them and how many connections it took."""
    sent: list[Sent] = []
    with ScriptedServer(script) as server:
        sender = sender_for(server, sent, limit_s=limit_s)
        for index in range(times):
            sender.submit(post(index))
            work(sender)
        sender.close()
        return sent, server.connections
