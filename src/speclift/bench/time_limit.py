"""The budget, enforced: what is under way when the time is up is ended, whatever it waits for."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from speclift.bench.interrupts import watching
from speclift.core.deadline import Deadline
from speclift.core.errors import OperatingError
from speclift.core.quantities import duration
from speclift.engines.aside import started

# What precedes every launch, in words.
PREPARING = "prompts, models and servers were prepared"

Told = TypeVar("Told")


class BudgetSpent(OperatingError):
    """The time that the user gave is up; what was measured by then stands."""

    def __init__(self, deadline: Deadline, doing: str) -> None:
        super().__init__(
            f"the time budget of {duration(deadline.budget_s)} ended while {doing}",
            hint="use a longer --budget, or fewer --requests, arms or loads",
        )


@asynccontextmanager
async def ends_at(deadline: Deadline, doing: Callable[[], str]) -> AsyncIterator[None]:
    """BudgetSpent where the block has not ended by then; what it waited for is cancelled."""
    if deadline.is_over:
        raise BudgetSpent(deadline, doing())
    try:
        async with asyncio.timeout(deadline.left_s if deadline.is_set else None) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise BudgetSpent(deadline, doing()) from error
    except asyncio.CancelledError as error:
        # Before Python 3.13 a task group in which something failed leaves a cancellation counted that is over, and
        # the limit takes its own for somebody else's.
        if watching.is_interrupted or not limit.expired():
            raise
        raise BudgetSpent(deadline, doing()) from error


async def to_the_end(work: Awaitable[Told]) -> Told:
    """For what must not be cut short, such as stopping a server: a cancellation waits until it is done."""
    under_way = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not under_way.done():
        try:
            await asyncio.shield(under_way)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return under_way.result()


def in_time(call: Callable[[], Told], deadline: Deadline, *, doing: str) -> Told:
    """A blocking call that is not waited for beyond the deadline; a signal ends the waiting too."""
    if not deadline.is_set:
        return call()
    under_way = started(call)
    try:
        return under_way.result(timeout=max(0.0, deadline.left_s))
    except concurrent.futures.TimeoutError as error:
        if under_way.done():
            raise
        raise BudgetSpent(deadline, doing) from error
