"""Waiting for sockets and moments, and keeping count of how late we were to look."""

from __future__ import annotations

import select
import sys
from array import array
from collections.abc import Callable
from typing import Any

from speclift.core.units import Seconds

# poll() waits in whole milliseconds; the last stretch before a moment is waited for by select().
COARSE_WAIT_S = 0.002
AGES_MAX = 1 << 16


class Poll:
    """epoll where there is one; moments are kept to some tens of microseconds."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if sys.platform == "linux" else None
        self._any: Any = self._epoll or select.poll()
        self.register: Callable[[int, int], None] = self._any.register
        self.modify: Callable[[int, int], None] = self._any.modify
        self.unregister: Callable[[int], None] = self._any.unregister

    def wait(self, patience_s: Seconds | None) -> list[tuple[int, int]]:
        """Descriptors and what happened to them; empty after `patience_s` or somewhat before it."""
        if self._epoll is None:
            events: list[tuple[int, int]] = self._any.poll(None if patience_s is None else patience_s * 1000)
            return events
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


class Ages:
    """How long bytes lay unread: an even sample of the reads, in bounded memory."""

    __slots__ = ("_seconds", "_skip", "_stride")

    def __init__(self) -> None:
        self._seconds = array("f")
        self._stride = 1
        self._skip = 0

    def add(self, age_s: Seconds) -> None:
        if self._skip:
            self._skip -= 1
            return
        self._skip = self._stride - 1
        self._seconds.append(age_s)
        if len(self._seconds) >= AGES_MAX:
            self._seconds = self._seconds[::2]
            self._stride *= 2

    def p99_s(self) -> Seconds:
        ordered = sorted(self._seconds)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0
