"""Until when may a command work? One value that every stage is given; the clock comes in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from speclift.core.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A moment of `clock` by which all work has ended; `at_s` is infinite where it may take as long as it takes."""

    clock: Callable[[], Seconds]
    at_s: Seconds = math.inf
    # As the user gave it, for messages; of a part of the time the whole.
    budget_s: Seconds = math.inf

    @classmethod
    def after(cls, budget_s: Seconds | None, *, clock: Callable[[], Seconds]) -> Deadline:
        """From now on; None never ends."""
        if budget_s is None:
            return cls(clock=clock)
        return cls(clock=clock, at_s=clock() + budget_s, budget_s=budget_s)

    @property
    def is_set(self) -> bool:
        return self.at_s < math.inf

    @property
    def left_s(self) -> Seconds:
        return self.at_s - self.clock()

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def has(self, needed_s: Seconds) -> bool:
        """Whether so much time is left."""
        return needed_s <= self.left_s

    def within(self, limit_s: Seconds) -> Seconds:
        """As much of a limit as there is time for."""
        return max(0.0, min(limit_s, self.left_s))

    def keeping(self, reserve_s: Seconds) -> Deadline:
        """For a stage that leaves so much time to those after it."""
        return replace(self, at_s=self.at_s - reserve_s)
