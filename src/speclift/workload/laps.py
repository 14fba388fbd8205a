"""Which requests does each lap of a study send that is looked at on the way?

A lap is a window on the requests, the same share of every segment. Windows move on through the requests and begin again
at their end; where servers were started anew a window reaches back into the one before, because two launches are only
told apart on prompts that both of them saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from speclift.core.arm import BASELINE
from speclift.core.interim import LAST_LOOK_SHARE, InterimPlan, Scope, Wanted
from speclift.core.traffic import Concurrency, Load, Rate, Request
from speclift.workload.experiment import Block, Item, StudyPlan, Turn, blocks, in_order, turn_chunks

# Of a window, what the one before has sent too.
REACH_BACK = 0.25
# The first look may only drop what is hopeless; it is given little of the error.
FIRST_LOOK_SHARE = 0.03
# Fewer distinct prompts ship nothing.
REQUESTS_MIN = 8
# With fewer requests a stream a closed loop is mostly ramp-up and drain.
REQUESTS_PER_STREAM_MIN = 4
# An open loop needs a while to build up whatever queue it will have.
OPEN_LOOP_REQUESTS_MIN = 30


def interim_plan_for(launches: int, *, together: bool, repeats: bool = False) -> InterimPlan | None:
    """Short laps at first, then longer ones, as many requests in all as `launches` passes over them. Servers that are
    up one at a time start anew for every lap, so theirs are longer; of one launch each they have a single one. Where
    prompts repeat, the requests are there to see the tail, and every lap sends all of them."""
    if launches == 1 and (repeats or not together):
        return None
    if repeats:
        sizes = (1.0,) * launches
    elif not together:
        sizes = (0.5, 0.5, *(1.0 for _ in range(launches - 1)))
    else:
        sizes = (0.3, 0.3, 0.4) if launches == 1 else (0.3, 0.3, 0.3, 0.55, 0.55, *[1.0] * (launches - 2))
    before_last = 1.0 - LAST_LOOK_SHARE
    # Of many looks the first has no more than any other: shares do not fall.
    first = min(FIRST_LOOK_SHARE, before_last / (len(sizes) - 1)) if len(sizes) > 2 else before_last
    between = max(first, (before_last - first) / max(1, len(sizes) - 2))
    return InterimPlan(sizes=sizes, shares=(first, *(between for _ in sizes[2:]), LAST_LOOK_SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """`round` counts the launches; laps of one round are measured on the same servers."""

    number: int
    round: int
    blocks: tuple[Block, ...]


def laps(plan: StudyPlan, rounds: Sequence[int]) -> Iterator[Lap]:
    """As many laps as rounds are given for. Blocks are numbered through all of them."""
    assert plan.looks is not None, "a study that is measured whole has rounds, not laps"
    segment_of = {request.id: request.segment for request in plan.requests}
    progress = {load: _Progress(load, plan) for load in plan.loads}
    # Of a handful of prompts a window holds more than its size says.
    left = dict.fromkeys(plan.loads, plan.rounds * len(plan.items))
    block_count = 0
    for number, (size, round_index) in enumerate(zip(plan.looks.sizes, rounds, strict=False)):
        own = []
        for load in plan.loads:
            window = progress[load].next_window(size, round_index)
            items = () if window is None else windowed(plan.items, segment_of, window)[: left[load]]
            left[load] -= len(items)
            for chunk in turn_chunks(plan, load, items) if items else ():
                own.append(Block(number=block_count, load=load, items=chunk))
                block_count += 1
        yield Lap(number=number, round=round_index, blocks=tuple(own))


def lap_turns(plan: StudyPlan, lap: Lap, wanted: Wanted) -> tuple[Turn, ...]:
    """What the arms are still wanted for, in the order it is run; the baseline runs what any of them does."""
    requests = {request.id: request for request in plan.requests}
    either = tuple(dict.fromkeys(scope for scopes in wanted.values() for scope in scopes))
    scopes = {arm.name: either if arm.name == BASELINE else wanted.get(arm.name, ()) for arm in plan.arms}

    def turn(name: str, block: Block) -> Turn | None:
        items = _wanted_of(block, scopes[name], requests)
        if not items:
            return None
        return Turn(arm=name, round=lap.round, block=block.number, load=block.load, items=items)

    found = (turn(arm.name, block) for arm, block in in_order(plan, lap.blocks, lap.round))
    return tuple(each for each in found if each is not None)


def control_turns(plan: StudyPlan, last: Lap | None) -> tuple[Turn, ...]:
    """Once, after everything that decides: it pairs with the last round, the nearest in time, or with the last lap."""
    round_index, own = (plan.rounds - 1, blocks(plan)) if last is None else (last.round, last.blocks)
    return tuple(
        Turn(arm=arm.name, round=round_index, block=block.number, load=block.load, items=block.items)
        for arm in plan.arms
        if arm.is_control
        for block in own
    )


def _wanted_of(block: Block, scopes: Iterable[Scope], requests: Mapping[str, Request]) -> tuple[Item, ...]:
    """Where requests overlap they make each other's load: all of a block is sent as long as any of it is wanted."""

    def is_wanted(item: Item) -> bool:
        request = requests[item.request_id]
        temperature = request.temperature if item.temperature is None else item.temperature
        return any(scope.admits(request.segment, block.load, temperature) for scope in scopes)

    kept = tuple(filter(is_wanted, block.items))
    return kept if block.load == Concurrency(streams=1) or not kept else block.items


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From `start` to `end` in passes over all requests; 1.25 to 1.5 is the second quarter, met for the second time."""

    start: float
    end: float

    def holds(self, phase: float) -> bool:
        """`phase` is a request's place in one pass, between 0 and 1."""
        return (phase - self.start) % 1.0 < self.end - self.start


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


class _Progress:
    """How far one load has come through the requests."""

    def __init__(self, load: Load, plan: StudyPlan) -> None:
        prompts = max(Counter(request.segment for request in plan.requests).values())
        # An arc as long as the largest segment's distances holds one of its requests wherever it lies.
        self._least = min(1.0, max(_requests_min(load) / len(plan.items), 1.0 / prompts))
        self._left = float(plan.rounds)
        self._before: Window | None = None
        self._round = -1
        self._of_round = 0.0

    def next_window(self, size: float, round_index: int) -> Window | None:
        """None where the load has had all its requests, or this launch has sent each of them once."""
        is_new, self._round = round_index != self._round, round_index
        self._of_round = 0.0 if is_new else self._of_round
        room = min(1.0 - self._of_round, self._left)
        if room < 1e-9:
            return None
        size = min(max(size, self._least), room)
        # A rest too short for a lap of its own joins this one: all that was asked for is sent.
        size = room if room - size < self._least / 2 else size
        self._before = _moved_on(self._before, size, reaches_back=is_new)
        self._left -= size
        self._of_round += size
        return self._before


def _requests_min(load: Load) -> int:
    """Fewer would be another load than the one that is named."""
    match load:
        case Concurrency(streams=1):
            return REQUESTS_MIN
        case Concurrency(streams=streams):
            return max(REQUESTS_MIN, streams * REQUESTS_PER_STREAM_MIN)
        case Rate():
            return OPEN_LOOP_REQUESTS_MIN


def _moved_on(before: Window | None, size: float, *, reaches_back: bool) -> Window:
    if before is None:
        return Window(start=0.0, end=size)
    back = REACH_BACK * min(size, before.end - before.start) if reaches_back else 0.0
    return Window(start=before.end - back, end=before.end - back + size)
