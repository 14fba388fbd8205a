"""What is still to be sent: requests due at a moment of their own, and others that wait for a free stream."""

from __future__ import annotations

import math
from collections import deque

from speclift.client.exchange import Errand
from speclift.core.units import Seconds


class Agenda:
    """Timed jobs come in the order they are due."""

    __slots__ = ("timed", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Errand] = deque()
        self.timed: deque[Errand] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.timed)

    def add(self, job: Errand) -> None:
        (self.waiting if job.due is None else self.timed).append(job)

    def clear(self) -> None:
        self.waiting.clear()
        self.timed.clear()

    @property
    def next_due(self) -> Seconds:
        """Never, where nothing has a moment of its own."""
        return (self.timed[0].due or 0.0) if self.timed else math.inf

    def take(self, now: Seconds, *, has_free_stream: bool) -> Errand | None:
        """What goes out now: first what is due."""
        if self.next_due <= now:
            return self.timed.popleft()
        return self.waiting.popleft() if self.waiting and has_free_stream else None
