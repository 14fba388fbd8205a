"""A server that does to each connection what a test says, and keeps count of what came."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)


class Peer:
    """One accepted connection, as the script sees it."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.number = number
        self._socket = connection
        self._buffer = b""

    def request(self) -> bytes | None:
        """The body of the next request; None where the client left."""
        while True:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if end and length is not None and len(rest) >= int(length[1]):
                self._buffer = rest[int(length[1]) :]
                return rest[: int(length[1])]
            data = self._socket.recv(1 << 20)
            if not data:
                return None
            self._buffer += data

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def reset(self) -> None:
        """Ends the connection with RST instead of FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._socket.close()


Script = Callable[[Peer], None]


class ScriptedServer:
    """Runs `script` in a thread for every connection; when it returns, the connection is closed."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._run, args=(connection, self.connections), daemon=True).start()

    def _run(self, connection: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                self._script(Peer(connection, number))
        except OSError:  # the client left, or TLS failed, which the test sees from its side
            connection.close()
