"""Fits a study into its time: decided from elapsed time alone, never from results. Pure: the clock comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from speclift.core.traffic import Load, Rate
from speclift.core.units import Seconds
from speclift.workload.experiment import Item, Turn


def cut_short(planned: Iterable[Turn], is_done: Callable[[Turn, Item], bool]) -> Iterator[str]:
    """How many of the requests planned were sent, in words, load by load; nothing of a load that has them all."""
    asked, sent = Counter[Load](), Counter[Load]()
    for turn in planned:
        asked[turn.load] += len(turn.items)
        sent[turn.load] += sum(is_done(turn, item) for item in turn.items)
    for load, count in asked.items():
        if sent[load] < count:
            yield f"{sent[load]} of the {count} requests planned at {load.label} were sent to each arm in time"


class BlockLimiter:
    """Decides in round 0, from elapsed time alone, which blocks the budget leaves out in every round.

    Each load gets an equal share; time a load leaves over goes to the next. An open loop cannot be cut into
    pieces, so it is shortened to the requests that arrive within its share.
    """

    def __init__(self, own: Sequence[Turn], share_s: Seconds | None, clock: Callable[[], Seconds]) -> None:
        self._clock = clock
        self._share_s = share_s
        self._start_s = clock()
        self._loads = list(dict.fromkeys(turn.load for turn in own))
        self._arms = len({turn.arm for turn in own})
        self._decided: set[int] = set()
        self._load_start_s: dict[Load, Seconds] = {}

    def limit_for(self, turn: Turn) -> int | None:
        """A new limit for this turn's block, or None to leave it as it is."""
        if self._share_s is None or turn.block in self._decided:
            return None
        self._decided.add(turn.block)
        now = self._clock()
        begun_s = self._load_start_s.setdefault(turn.load, now)
        loads_left = len(self._loads) - self._loads.index(turn.load)
        share_s = (self._share_s - (begun_s - self._start_s)) / loads_left
        if isinstance(turn.load, Rate):
            fitting = int(share_s / self._arms * turn.load.per_s)
            return max(1, fitting) if fitting < len(turn.items) else None
        is_first = begun_s == now
        return 0 if not is_first and now - begun_s >= share_s else None
