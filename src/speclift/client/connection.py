"""The connections to one server: bytes out, bytes in with the moment they arrived, TLS in between where asked; waited
for together, kept alive between requests, replaced when the server or time ends them.

On Linux that moment is the kernel's (SO_TIMESTAMPNS): the bytes may lie unread while the program is busy, and
the time stamp is still right. Where several packets are read at once it is the last one's. An idle connection is kept
for KEEP_ALIVE_S; there are never more idle ones than there were requests at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable

from speclift.core.units import Seconds

# poll() waits in whole milliseconds; the last stretch before a moment is waited for by select(). That takes one more
# call, a wake-up in between takes more than that.
COARSE_WAIT_S = 0.05


class Poll:
    """epoll where there is one; moments are kept to some tens of microseconds."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._poll = select.poll()
        used = self._epoll or self._poll
        self.register: Callable[[int, int], None] = used.register
        self.modify: Callable[[int, int], None] = used.modify
        self.unregister: Callable[[int], None] = used.unregister

    def wait(self, patience_s: Seconds | None) -> list[tuple[int, int]]:
        """Descriptors and what happened to them; empty after `patience_s` or somewhat before it."""
        if self._epoll is None:
            return self._poll.poll(None if patience_s is None else patience_s * 1000)
        if patience_s is None:
            return self._epoll.poll()
        if patience_s > COARSE_WAIT_S:
            return self._epoll.poll(patience_s - COARSE_WAIT_S / 2)
        if patience_s > 0:
            select.select([self._epoll], [], [], patience_s)
        return self._epoll.poll(0)

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()


READ_BYTES = 16 * 1024
# SO_TIMESTAMPNS in asm-generic/socket.h; the message comes back under the same number.
_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("@qq")
CONTROL_BYTES = socket.CMSG_SPACE(_STAMP.size)
# An older stamp means that the wall clock was set meanwhile: then the time of reading is the better guess.
_AGE_MAX_S = 60.0

# When bytes arrived: the kernel's time stamp as it comes, or a reading of time.perf_counter. Most stamps are
# never looked at, so they are translated only where one is.
Stamp = bytes | Seconds
Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


def resolve(host: str, port: int) -> tuple[Address, ...]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]


def turn_stamps_on() -> socket.socket | None:
    """The kernel stamps packets only while some socket asks for it; this one asks for as long as it is open."""
    keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        keeper.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        keeper.close()
        return None
    return keeper


def ask_for_stamps(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def receive_stamped(connection: socket.socket) -> tuple[bytes, Stamp]:
    data, control, _, _ = connection.recvmsg(READ_BYTES, CONTROL_BYTES)
    return data, control[0][2] if control else time.perf_counter()


def moment_of(stamp: Stamp) -> Seconds:
    """On time.perf_counter. The two clocks are compared each time, so that neither a wall clock that is set nor one
    that is being steered moves a time stamp."""
    if isinstance(stamp, float):
        return stamp
    seconds, nanoseconds = _STAMP.unpack(stamp)
    now = time.perf_counter()
    age_s = time.time() - seconds - nanoseconds * 1e-9
    return now - age_s if 0 < age_s < _AGE_MAX_S else now


class Connection:
    """Non-blocking throughout: what cannot be sent now is kept until the socket is writable."""

    __slots__ = (
        *("_encrypted", "_received", "_request", "_socket", "_tls", "_unsent", "_wakes_at"),
        *("address", "fd", "idle_since", "is_reused", "is_up", "receive_raw"),
    )

    def __init__(self, address: Address, tls: ssl.SSLContext | None, server_name: str) -> None:
        family, where = address
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(self._socket)
        self.receive_raw = self._socket.recvmsg
        self.fd = self._socket.fileno()
        self.is_up = False
        self.is_reused = False
        self.address = 0  # which of the server's addresses it goes to
        self.idle_since: Seconds = 0.0
        self._wakes_at = 1
        self._unsent = b""
        self._request = b""  # what waits for the TLS handshake
        self._tls: ssl.SSLObject | None = None
        if tls is not None:
            self._received, self._encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = tls.wrap_bio(self._received, self._encrypted, server_hostname=server_name)
        code = self._socket.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            self._socket.close()
            raise OSError(code, os.strerror(code))

    @property
    def is_tls(self) -> bool:
        return self._tls is not None

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, data: bytes) -> None:
        """Sends at once what it can; `flush` when writable sends the rest."""
        if self._tls is None:
            self._unsent += data
        else:
            self._request = data
            self._encrypt(self._tls)
        self.flush()

    def flush(self) -> None:
        try:
            # On loopback the connection stands when connect returns, whatever connect says.
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        self.is_up = self.is_up or self._tls is None
        self._unsent = self._unsent[sent:] if sent < len(self._unsent) else b""

    def receive(self) -> tuple[bytes, Stamp] | None:
        """Bytes and when they arrived; b'' at the end; None where nothing came for us."""
        try:
            data, control, _, _ = self.receive_raw(READ_BYTES, CONTROL_BYTES)
        except BlockingIOError:
            return None
        stamp = control[0][2] if control else time.perf_counter()
        if self._tls is None or not data:
            return data, stamp
        return self._decrypt(self._tls, data, stamp)

    @property
    def gathers(self) -> bool:
        """Whether bytes may lie unread without waking anybody."""
        return self._wakes_at > 1

    def wake_at(self, byte_count: int) -> None:
        """With fewer bytes unread the connection is not readable, unless it ended."""
        if byte_count != self._wakes_at:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, byte_count)
            self._wakes_at = byte_count

    def close(self) -> None:
        self._socket.close()

    def _encrypt(self, tls: ssl.SSLObject) -> None:
        """The request where the handshake is done, else the handshake's next step."""
        if not self.is_up:
            try:
                tls.do_handshake()
                self.is_up = True
            except ssl.SSLWantReadError:
                pass
        if self.is_up and self._request:
            tls.write(self._request)
            self._request = b""
        self._unsent += self._encrypted.read()

    def _decrypt(self, tls: ssl.SSLObject, data: bytes, stamp: Stamp) -> tuple[bytes, Stamp] | None:
        self._received.write(data)
        if not self.is_up:
            self._encrypt(tls)
            self.flush()
        parts = []
        while self.is_up:
            try:
                parts.append(tls.read(READ_BYTES))
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                return b"".join(parts), stamp  # the server said good-bye; b'' where that is all it said
        return (b"".join(parts), stamp) if parts else None


# Servers close idle connections (llama.cpp after 5 s); reusing one at that moment would look like a crash.
KEEP_ALIVE_S = 1.5


class Pool:
    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, poll: Poll) -> None:
        self._host = host
        self._tls = tls
        self._poll = poll
        self._addresses, self._unresolved = _resolved(host, port)
        self._preferred = 0  # the address that worked last
        self._idle: dict[int, Connection] = {}  # by descriptor, the longest idle first

    @property
    def has_idle(self) -> bool:
        return bool(self._idle)

    def take(self, now: Seconds) -> Connection | None:
        """The connection that was used last, unless that is too long ago."""
        if self._idle:
            _, connection = self._idle.popitem()
            if now - connection.idle_since < KEEP_ALIVE_S:
                connection.is_reused = True
                return connection
            self.drop(connection)
        return None

    def connect(self, tried: int = 0) -> Connection:
        """To the first address that does not refuse at once, leaving out as many as were tried before."""
        error = self._unresolved or ConnectionError("every address refused")
        for index in range(tried, len(self._addresses)):
            place = (self._preferred + index) % len(self._addresses)
            try:
                connection = Connection(self._addresses[place], self._tls, self._host)
            except OSError as failure:
                error = failure
                continue
            connection.address = place
            self._poll.register(connection.fd, select.POLLIN)
            return connection
        raise error

    def tried_with(self, connection: Connection) -> int:
        """How many addresses were tried, this connection's included."""
        return (connection.address - self._preferred) % len(self._addresses) + 1

    def has_more(self, tried: int) -> bool:
        return tried < len(self._addresses)

    def prefer(self, connection: Connection) -> None:
        """Its address answers: others are tried after it from now on."""
        self._preferred = connection.address

    def keep(self, connection: Connection, now: Seconds) -> None:
        connection.wake_at(1)
        connection.idle_since = now
        self._idle[connection.fd] = connection

    def stir(self, fd: int) -> None:
        """An idle connection has something to say: mostly that the server closed it."""
        connection = self._idle.get(fd)
        if connection is None:
            return
        try:
            if connection.receive() is None:
                return
        except OSError:
            pass
        del self._idle[fd]
        self.drop(connection)

    def tidy(self, now: Seconds) -> None:
        while self._idle:
            connection = next(iter(self._idle.values()))
            if now - connection.idle_since < KEEP_ALIVE_S:
                return
            del self._idle[connection.fd]
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        self._poll.unregister(connection.fd)
        connection.close()

    def close(self) -> None:
        for connection in self._idle.values():
            self.drop(connection)
        self._idle.clear()


def _resolved(host: str, port: int) -> tuple[tuple[Address, ...], OSError | None]:
    """A name that does not resolve fails its requests; it does not end the program that sends them."""
    try:
        return resolve(host, port), None
    except OSError as error:
        return (), error
