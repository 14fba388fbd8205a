"""Waiting for sockets and for moments."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Any

from speclift.core.units import Seconds

# poll() waits in whole milliseconds; the last stretch before a moment is waited for by select(). That takes one more
# call, a wake-up in between takes more than that.
COARSE_WAIT_S = 0.05


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
