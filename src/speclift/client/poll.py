"""Waiting for sockets and for moments."""

from __future__ import annotations

import select
import sys
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
