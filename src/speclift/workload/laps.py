"""Which requests does each lap of a study send that is looked at on the way?

A lap is a window on the requests, the same share of every segment. Windows move on through the requests and begin again
at their end; where servers were started anew a window reaches back into the one before, because two launches are only
told apart on prompts that both of them saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speclift.core.looks import LAST_LOOK_SHARE, Looks
from speclift.workload.experiment import Item

# Of a window, what the one before has sent too.
REACH_BACK = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From `start` to `end` in passes over all requests; 1.25 to 1.5 is the second quarter, met for the second time."""

    start: float
    end: float

    def holds(self, phase: float) -> bool:
        """`phase` is a request's place in one pass, between 0 and 1."""
        return (phase - self.start) % 1.0 < self.end - self.start


def next_window(before: Window | None, size: float, *, is_new_launch: bool) -> Window:
    if before is None:
        return Window(start=0.0, end=size)
    start = before.end - REACH_BACK * min(size, before.end - before.start) if is_new_launch else before.end
    return Window(start=start, end=start + size)


def windowed(items: Sequence[Item], segment_of: Mapping[str, str], window: Window) -> tuple[Item, ...]:
    """The items whose place in their own segment lies in the window."""
    sizes = Counter(segment_of[item.request_id] for item in items)
    seen: Counter[str] = Counter()
    kept = []
    for item in items:
        segment = segment_of[item.request_id]
        if window.holds((seen[segment] + 0.5) / sizes[segment]):
            kept.append(item)
        seen[segment] += 1
    return tuple(kept)
