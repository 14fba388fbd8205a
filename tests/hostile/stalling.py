"""A server that answers some paths and hangs, drips or refuses on others, as it is told."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MODELS = json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}).encode()
DRIP_S = 0.3


# Set as soon as somebody asked for what stalls.
stalled = threading.Event()


@contextmanager
def stalling_server(*, hanging: tuple[str, ...] = (), dripping: tuple[str, ...] = ()) -> Iterator[str]:
    """The URL of a server on which paths that begin so hang or drip; it lists a model and has nothing else."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    over = threading.Event()
    stalled.clear()

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            words = connection.recv(65536).split(b" ")
            if len(words) < 2:  # somebody looked whether anybody is there
                return
            path = words[1].decode()
            if any(path.startswith(start) for start in (*hanging, *dripping)):
                stalled.set()
            if any(path.startswith(start) for start in hanging):
                over.wait()
            elif any(path.startswith(start) for start in dripping):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.is_set():
                    connection.sendall(b" ")
                    time.sleep(DRIP_S)
            else:
                is_known = path == "/v1/models"
                body = MODELS if is_known else b"{}"
                status = b"200 OK" if is_known else b"404 Not Found"
                head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body))
                connection.sendall(head + body)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.close()
