"""A server that ends TLS before another on this machine and lets in only who has the key, as a gateway would."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


def certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that is its own authority; its key lies beside it."""
    path = folder / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    names = ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, *names, "-keyout", str(folder / "key.pem"), "-out", str(path)],
        check=True,
        capture_output=True,
    )
    return path


class TlsFront:
    def __init__(self, server: ThreadingHTTPServer, asked: list[str]) -> None:
        self.url = f"https://127.0.0.1:{server.server_port}"
        # Paths of the requests that were let in.
        self.asked = asked


@contextmanager
def tls_front(behind: str, *, certificate: Path, key: str) -> Iterator[TlsFront]:
    asked: list[str] = []
    address = urlsplit(behind).netloc

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != f"Bearer {key}":
                self.send_error(401, "who are you?")
                return
            asked.append(self.path)
            connection = http.client.HTTPConnection(address)
            connection.request(
                self.command, self.path, body=body, headers={"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.end_headers()
            while data := answer.read1():
                self.wfile.write(data)
            connection.close()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield TlsFront(server, asked)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
