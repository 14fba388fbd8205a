"""What every prototype relay does alike: read a request, choose an upstream, say it again, note what came back.

Prototypes are for measuring what an HTTP server costs (docs/adr/0008-gateway-http-server.md); none of them is hardened
against anybody.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import orjson

from speclift.client.wire import ResponseReader

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"host", b"te")
)
POOLS = (b"spec", b"plain")


@dataclass(slots=True)
class Request:
    line: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(slots=True)
class Observed:
    """What a gateway's metrics need of one answer."""

    begun_s: float = field(default_factory=time.perf_counter)
    first_s: float = 0.0
    bytes_total: int = 0

    def note(self, length: int) -> None:
        if not self.bytes_total:
            self.first_s = time.perf_counter()
        self.bytes_total += length


class Upstreams:
    """Two servers; the one with fewer requests under way is next, once the body was understood."""

    def __init__(self, ports: tuple[int, ...]) -> None:
        self.ports = ports
        self.under_way = [0] * len(ports)
        self._ttft_s_total = 0.0
        self._bytes_total = 0

    def choose(self, body: bytes) -> int:
        asked = orjson.loads(body)
        if not isinstance(asked.get("messages"), list):
            raise ValueError("no messages")
        pool = 0 if self.under_way[0] <= self.under_way[-1] else len(self.ports) - 1
        self.under_way[pool] += 1
        return pool

    def settle(self, pool: int, observed: Observed) -> None:
        self.under_way[pool] -= 1
        self._ttft_s_total += observed.first_s - observed.begun_s
        self._bytes_total += observed.bytes_total


def forwarded(request: Request, port: int) -> bytes:
    """The request as the upstream gets it: hop-by-hop fields are our own."""
    kept = b"".join(b"%b: %b\r\n" % pair for pair in request.fields if pair[0].lower() not in HOP_BY_HOP)
    own = b"Host: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n" % (port, len(request.body))
    return b"%b\r\n%b%b%b" % (request.line, kept, own, request.body)


def marked(data: bytes, pool: int) -> bytes:
    """An answer's first bytes with the pool it came from."""
    line, _, rest = data.partition(b"\r\n")
    return b"%b\r\nx-speclift-pool: %b\r\n%b" % (line, POOLS[pool], rest)


class HandRequests:
    """Requests out of a caller's bytes, by hand."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Request | None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return None
        line, *lines = self._data[:end].split(b"\r\n")
        fields = [(name, value.strip()) for name, _, value in (one.partition(b":") for one in lines)]
        length = next((int(value) for name, value in fields if name.lower() == b"content-length"), 0)
        if len(self._data) < end + 4 + length:
            return None
        body = self._data[end + 4 : end + 4 + length]
        self._data = self._data[end + 4 + length :]
        return Request(line, fields, body)


class HandAnswer(ResponseReader):
    """Where an answer ends, by the load generator's own reader."""

    __slots__ = ()


def announce(port: int) -> None:
    print(json.dumps({"schema": 1, "listen": f"127.0.0.1:{port}"}), flush=True)
