"""The connections to one server: kept alive between requests, replaced when the server or time ends them.

An idle connection is kept for KEEP_ALIVE_S; there are never more idle ones than there were requests at once.
"""

from __future__ import annotations

import select
import ssl

from speclift.client.connection import Address, Connection, resolve
from speclift.client.poll import Poll
from speclift.core.units import Seconds

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
