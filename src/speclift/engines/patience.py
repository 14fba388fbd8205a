"""A connection on which everything together, connecting to the last byte, has one deadline.

A time limit for each read would let a server that sends a byte now and then hold us for ever.
"""

from __future__ import annotations

import io
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from speclift.core.units import Seconds

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Asked = ParamSpec("Asked")
Told = TypeVar("Told")

# How long a wait goes on without looking whether anybody still wants the answer.
SLICE_S = 0.25


class GivenUp(OSError):
    """Whoever asked does not want the answer any more."""


class WaitLimit:
    def __init__(self, limit_s: Seconds, stop: threading.Event | None = None) -> None:
        self._until = time.monotonic() + limit_s
        self._stop = stop

    def slice_s(self) -> Seconds:
        """How long the next wait may take; TimeoutError where time is up."""
        if self._stop is not None and self._stop.is_set():
            raise GivenUp("the request was cancelled")
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("time is up")
        return min(left_s, SLICE_S)


class PatientSocket(io.RawIOBase):
    """What http.client reads from: a file of itself."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, deadline: WaitLimit) -> None:
        self._deadline = deadline
        self._socket = _connected(host, port, deadline)
        if tls is not None:
            wrapped = tls.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
            self._socket = wrapped
            self._patiently(wrapped.do_handshake)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._patiently(self._socket.send, view) :]

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._patiently(self._socket.recv_into, buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """As http.client asks for it."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _patiently(self, act: Callable[Asked, Told], *arguments: Asked.args, **named: Asked.kwargs) -> Told:
        while True:
            left_s = self._deadline.slice_s()
            self._socket.settimeout(left_s)
            try:
                return act(*arguments, **named)
            except TimeoutError:
                continue


def _connected(host: str, port: int, deadline: WaitLimit) -> socket.socket:
    """To the first of the host's addresses that takes a connection."""
    failure: OSError = ConnectionRefusedError("no address to connect to")
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            connection.setblocking(False)
            _connect(connection, where, deadline)
        except OSError as error:
            connection.close()
            if isinstance(error, (GivenUp, TimeoutError)):
                raise
            failure = error
        else:
            return connection
    raise failure


def _connect(connection: socket.socket, where: tuple[object, ...], deadline: WaitLimit) -> None:
    try:
        connection.connect(where)
    except BlockingIOError:
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(connection.fileno(), select.POLLOUT)
        while not poll.poll(deadline.slice_s() * 1000):
            pass
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code)) from None  # of the kind that the number says
