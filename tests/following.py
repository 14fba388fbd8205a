"""A real server whose traffic changes from what drafts easily to what does not, and the watch that looks on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from speclift.client.client import Client, now_s
from speclift.core.arm import Endpoint
from speclift.core.live import Payoff, Watched
from speclift.core.records import Place
from speclift.core.traffic import Concurrency, Message, Request
from speclift.live.ask import WatchAsk
from speclift.verbs.watch import watch
from speclift.verbs.watch_plan import WatchPlan, WatchTarget

TEXT = "The small red fox jumped over the quiet stream and ran into the green forest near the old stone mill."
WORDS = (
    *("iron", "cloud", "lamp", "river", "paper", "stone", "glass", "mint"),
    *("wolf", "sand", "clock", "field", "rope", "bell", "frost", "plum"),
)


def copying(number: int) -> str:
    return (
        f"Repeat this text exactly, word for word, five times.\n\n{TEXT}\n{TEXT}\n{TEXT}\n{TEXT} ({number})"
    )


def inventing(number: int) -> str:
    words = [WORDS[(number * 7 + place * (3 + number % 5)) % len(WORDS)] for place in range(6)]
    return f"Invent {number} names that nobody has heard of, all unlike each other, from: {', '.join(words)}."


@dataclass
class Seen:
    """The looks while each kind of traffic ran."""

    before: list[Watched] = field(default_factory=list)
    after: list[Watched] = field(default_factory=list)


async def followed(
    endpoint: Endpoint, ask: WatchAsk, *, streams: int, limit_s: float, max_tokens: int = 48
) -> Seen:
    """Copying until it pays, then inventing until it does not; TimeoutError where either does not come."""
    seen, looks = Seen(), asyncio.Event()
    current = seen.before

    def hear(watched: Watched) -> None:
        current.append(watched)
        looks.set()

    async def until(payoff: Payoff) -> None:
        async with asyncio.timeout(limit_s):
            while not current or current[-1].verdict is not payoff:
                looks.clear()
                await looks.wait()

    plan = WatchPlan(targets=(WatchTarget(url=endpoint.base_url),), ask=ask)
    watching = asyncio.create_task(watch(plan, tell=hear))
    try:
        async with traffic(endpoint, copying, streams=streams, max_tokens=max_tokens):
            await until(Payoff.PAYS)
        current = seen.after
        async with traffic(endpoint, inventing, streams=streams, max_tokens=max_tokens):
            await until(Payoff.DOES_NOT_PAY)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    return seen


class traffic:
    """Requests one after the other on every stream, for the length of the block."""

    def __init__(
        self, endpoint: Endpoint, prompt: Callable[[int], str], *, streams: int, max_tokens: int
    ) -> None:
        self._endpoint, self._prompt, self._streams, self._max_tokens = endpoint, prompt, streams, max_tokens

    async def __aenter__(self) -> None:
        numbers = count()
        self._client = await Client(self._endpoint, seed=7).__aenter__()
        self._tasks = [asyncio.create_task(self._ask(numbers)) for _ in range(self._streams)]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._client.__aexit__(None, None, None)

    async def _ask(self, numbers: Iterator[int]) -> None:
        while True:
            number = next(numbers)
            content = self._prompt(number)
            request = Request(
                id=str(number), messages=(Message(role="user", content=content),), max_tokens=self._max_tokens
            )
            place = Place(
                arm="any",
                launch=1,
                round=0,
                block=0,
                load=Concurrency(streams=1),
                request_id=request.id,
                segment=request.segment,
                temperature=0.0,
            )
            record = await self._client.send(request, place, intended_s=now_s())
            assert record.is_ok, record.error
