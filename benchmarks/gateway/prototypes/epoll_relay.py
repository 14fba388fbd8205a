"""A relay of plain sockets and one epoll, as the load generator's sender is one: python epoll_relay.py PORT PORT"""

from __future__ import annotations

import select
import socket
import sys

from forwarding import HandAnswer, HandRequests, Observed, Upstreams, announce, forwarded, marked

READ_BYTES = 65536
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class Caller:
    __slots__ = ("peer", "requests", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.requests = HandRequests()
        self.peer: Upstream | None = None
        self.unsent = b""


class Upstream:
    __slots__ = ("answer", "observed", "peer", "pool", "sock")

    def __init__(self, sock: socket.socket, pool: int) -> None:
        self.sock = sock
        self.pool = pool
        self.peer: Caller | None = None
        self.answer: HandAnswer
        self.observed: Observed


class Relay:
    def __init__(self, ports: tuple[int, ...]) -> None:
        self._upstreams = Upstreams(ports)
        self._idle: list[list[Upstream]] = [[] for _ in ports]
        self._ends: dict[int, Caller | Upstream] = {}
        self._epoll = select.epoll()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)

    def run(self) -> None:
        listener = self._listener.fileno()
        self._epoll.register(listener, _IN)
        announce(self._listener.getsockname()[1])
        while True:
            for fd, mask in self._epoll.poll():
                end = self._ends.get(fd)
                if type(end) is Upstream:
                    self._relay(end)
                elif type(end) is Caller:
                    if mask & _OUT:
                        self._go_on(end)
                    if mask & ~_OUT:
                        self._hear(end)
                elif fd == listener:
                    self._accept()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            self._add(Caller(_prepared(sock)))

    def _add(self, end: Caller | Upstream) -> None:
        self._ends[end.sock.fileno()] = end
        self._epoll.register(end.sock.fileno(), _IN)

    def _hear(self, caller: Caller) -> None:
        data = _received(caller.sock)
        if not data:
            self._drop(caller)
            if caller.peer is not None:
                self._drop(caller.peer)
            return
        request = caller.requests.feed(data)
        if request is None:
            return
        pool = self._upstreams.choose(request.body)
        port = self._upstreams.ports[pool]
        if self._idle[pool]:
            upstream = self._idle[pool].pop()
        else:
            # Loopback: a connection is made before connect() returns.
            upstream = Upstream(_prepared(socket.create_connection(("127.0.0.1", port))), pool)
            self._add(upstream)
        upstream.peer, caller.peer = caller, upstream
        upstream.answer, upstream.observed = HandAnswer(), Observed()
        upstream.sock.sendall(forwarded(request, port))

    def _relay(self, upstream: Upstream) -> None:
        data = _received(upstream.sock)
        caller = upstream.peer
        if not data or caller is None:
            if caller is None:
                self._idle[upstream.pool].remove(upstream)
            else:
                self._drop(caller)
            self._drop(upstream)
            return
        upstream.answer.feed(data)
        observed = upstream.observed
        if not observed.bytes_total:
            data = marked(data, upstream.pool)
        observed.note(len(data))
        self._say(caller, data)
        if upstream.answer.is_done:
            upstream.peer = caller.peer = None
            self._upstreams.settle(upstream.pool, observed)
            self._idle[upstream.pool].append(upstream)

    def _say(self, caller: Caller, data: bytes) -> None:
        try:
            sent = 0 if caller.unsent else caller.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # its end is read next
        if sent < len(data):
            caller.unsent += data[sent:]
            self._epoll.modify(caller.sock.fileno(), _IN | _OUT)
            if caller.peer is not None:
                self._epoll.modify(caller.peer.sock.fileno(), 0)

    def _go_on(self, caller: Caller) -> None:
        caller.unsent = caller.unsent[caller.sock.send(caller.unsent) :]
        if not caller.unsent:
            self._epoll.modify(caller.sock.fileno(), _IN)
            if caller.peer is not None:
                self._epoll.modify(caller.peer.sock.fileno(), _IN)

    def _drop(self, end: Caller | Upstream) -> None:
        self._ends.pop(end.sock.fileno(), None)
        end.sock.close()


def _prepared(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(READ_BYTES)
    except OSError:
        return b""


if __name__ == "__main__":
    Relay(tuple(int(port) for port in sys.argv[1:])).run()
