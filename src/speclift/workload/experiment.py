"""The order of measurement: rounds of fresh launches, blocks that interleave the arms, mirrored.

A round launches every arm once. A block is one pass over the arms on the same requests; the next block runs
the arms in the opposite order, so that a steady drift of the machine cancels (ABBA, docs/method.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from speclift.core.arm import Arm
from speclift.core.errors import UsageError
from speclift.core.interim import InterimPlan
from speclift.core.traffic import Concurrency, Load, Rate, Request

LAUNCHES_DEFAULT = 3
# A closed loop of c streams gets this many requests per stream and turn: ramp-up and drain stay small.
TURN_REQUESTS_PER_STREAM = 8
# Days at a second each; every one of them is an object in memory before the first is sent.
REQUEST_COUNT_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One request at one temperature; None keeps the request's own. `repeat` counts the times it was sent before."""

    request_id: str
    temperature: float | None
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Requests that every arm is sent in turn."""

    number: int
    load: Load
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One arm's go at one block."""

    arm: str
    round: int
    block: int
    load: Load
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """Everything that decides what is measured. `together`: all arms of a round stay up side by side."""

    arms: tuple[Arm, ...]
    loads: tuple[Load, ...]
    requests: tuple[Request, ...]
    temperatures: tuple[float | None, ...]
    rounds: int
    together: bool
    seed: int
    # Requests per cell and launch; beyond the prompts these come again in the same order. None is each prompt once.
    request_count: int | None = None
    # Where the study is looked at on the way, and ends when it is settled; None where all of it is measured.
    looks: InterimPlan | None = None

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise UsageError(f"two arms share a name: {', '.join(names)}")
        if self.rounds < 1:
            raise UsageError(f"--launches must be at least 1, saw {self.rounds}")
        if self.request_count is not None and self.request_count > max(REQUEST_COUNT_MAX, len(self.requests)):
            raise UsageError(
                f"--requests {self.request_count} repeats {len(self.requests)} prompts; at most {REQUEST_COUNT_MAX} "
                "requests per cell and launch are made of repeats",
                hint="lower --requests, or give more distinct --prompts",
            )

    @property
    def items(self) -> tuple[Item, ...]:
        prompts = len(self.requests)
        count = prompts if self.request_count is None else self.request_count
        return tuple(
            Item(
                request_id=self.requests[index % prompts].id,
                temperature=temperature,
                repeat=index // prompts,
            )
            for index in range(count)
            for temperature in self.temperatures
        )


def turns(plan: StudyPlan, round_index: int) -> tuple[Turn, ...]:
    """One round in the order it is run; a control has no part in it."""
    return tuple(
        Turn(arm=arm.name, round=round_index, block=block.number, load=block.load, items=block.items)
        for arm, block in in_order(plan, blocks(plan), round_index)
    )


def blocks(plan: StudyPlan) -> tuple[Block, ...]:
    chunks = ((load, chunk) for load in plan.loads for chunk in turn_chunks(plan, load, plan.items))
    return tuple(Block(number=number, load=load, items=chunk) for number, (load, chunk) in enumerate(chunks))


def in_order(plan: StudyPlan, each: Sequence[Block], round_index: int) -> Iterator[tuple[Arm, Block]]:
    """Block by block on every arm where all are up together, else arm by arm; each time in the opposite order."""
    arms = [arm for arm in plan.arms if not arm.is_control]
    if plan.together:
        return ((arm, block) for block in each for arm in mirrored(arms, block.number + round_index))
    return ((arm, block) for arm in mirrored(arms, round_index) for block in each)


def mirrored(arms: Sequence[Arm], index: int) -> Sequence[Arm]:
    return arms if index % 2 == 0 else arms[::-1]


def turn_chunks(plan: StudyPlan, load: Load, items: tuple[Item, ...]) -> Iterable[tuple[Item, ...]]:
    """One request at a time where requests do not overlap; long turns where the load must build up, and on a baseline
    alone, which has nobody to alternate with and no drafts to tell apart by request."""
    is_alone = not any(arm.speculates for arm in plan.arms)
    match load:
        case Concurrency(streams=1) if plan.together and not is_alone:
            size = 1
        case Concurrency(streams=streams) if plan.together:
            size = streams * TURN_REQUESTS_PER_STREAM
        case Concurrency() | Rate():
            size = len(items)
    starts = list(range(0, len(items), size))
    if len(starts) > 1 and len(items) - starts[-1] < size / 2:
        starts.pop()  # a short rest joins the turn before it
    return [items[start:end] for start, end in zip(starts, [*starts[1:], len(items)], strict=True)]
