"""Servers that answer: all are asked again and again, and at once where one failed to answer a caller. Speculation that
does not pay, by what servers count themselves, is off for a while, then tried again.

A pool that gets no requests tells nothing, so it cannot be waited for: after the time that a verdict looks back over it
is tried again, and twice as long after each time that it was in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from speclift.core.address import joined
from speclift.core.errors import EngineError
from speclift.core.live import Payoff, Watched
from speclift.core.quantities import duration
from speclift.core.units import Seconds
from speclift.http.client import KeptConnection
from speclift.live.gateway.upstream import PoolMember

# vLLM and llama.cpp both have it; llama.cpp says 503 there while it loads its model.
HEALTH_PATH = "/health"
CHECK_LIMIT_S = 2.0
CHECKED_EVERY_S = 2.0
# After a failure, doubled with each one more: a server that answers here and fails callers is not asked all the time.
AGAIN_MIN_S, AGAIN_MAX_S = 0.5, 10.0

HOLD_S: Seconds = 600.0
HOLD_MAX_S: Seconds = 8 * HOLD_S
# So long after it was tried again and still pays, the next turn is a first one.
FORGOTTEN_S: Seconds = 4 * HOLD_S


class HealthChecks:
    """Checks of all servers, each at its own pace."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._again_s: dict[str, Seconds] = {}

    async def begin(self, members: Iterable[PoolMember], *, api_key: str | None) -> None:
        """Each was asked once when this returns."""
        checked = list(members)
        await asyncio.gather(*(self._check_once(member, api_key) for member in checked))
        loop = asyncio.get_running_loop()
        for member in checked:
            self._wake[member.url] = asyncio.Event()
            self._tasks[member.url] = loop.create_task(self._keep_checking(member, api_key))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def suspect(self, member: PoolMember, words: str) -> None:
        """It failed a caller: out until it answers again."""
        self._again_s[member.url] = min(2 * self._again_s.get(member.url, AGAIN_MIN_S / 2), AGAIN_MAX_S)
        self._note(member, words)
        wake = self._wake.get(member.url)
        if wake is not None:
            wake.set()

    async def _keep_checking(self, member: PoolMember, api_key: str | None) -> None:
        connection, wake = KeptConnection(), self._wake[member.url]
        try:
            while True:
                try:
                    async with asyncio.timeout(CHECKED_EVERY_S):
                        await wake.wait()
                    # Others that fail while it waits are the same failure.
                    await asyncio.sleep(self._again_s.get(member.url, AGAIN_MIN_S))
                    wake.clear()
                except TimeoutError:
                    pass
                await self._check(connection, member, api_key)
                member.drop_old()
        finally:
            connection.close()

    async def _check_once(self, member: PoolMember, api_key: str | None) -> None:
        with closing(KeptConnection()) as connection:
            await self._check(connection, member, api_key)

    async def _check(self, connection: KeptConnection, member: PoolMember, api_key: str | None) -> None:
        trouble = ""
        try:
            status = await connection.status_of(
                joined(member.url, HEALTH_PATH), api_key=api_key, limit_s=CHECK_LIMIT_S
            )
            # Whoever has no such page answers all the same.
            if status >= 500:
                trouble = f"answers {status} to {HEALTH_PATH}"
        except EngineError as error:
            trouble = str(error)
        member.answers = not trouble
        wake = self._wake.get(member.url)
        if trouble or wake is None or not wake.is_set():
            self._note(member, trouble)
        # Else it failed a caller meanwhile, and will be asked again.

    def _note(self, member: PoolMember, trouble: str) -> None:
        was_up, member.is_up, member.trouble = member.is_up, not trouble, trouble
        if was_up and trouble:
            self._say(f"{member.pool.value} server {member.url} is out: {trouble}")
        elif member.is_up and not was_up:
            self._say(f"{member.pool.value} server {member.url} is back")

    def forgive(self, member: PoolMember) -> None:
        """It answered a caller to the end."""
        self._again_s.pop(member.url, None)


class TurnedAway:
    """The words that hold the speculative pool back, by looks at its servers."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._looks: dict[str, Watched | None] = dict.fromkeys(urls)
        self._words = ""
        self._until_s: Seconds = 0.0
        self._hold_s: Seconds = HOLD_S

    def take(self, watched: Watched, *, now_s: Seconds) -> None:
        self._looks[watched.url] = watched
        if self._words or not self._all_say_no():
            return
        if now_s - self._until_s > FORGOTTEN_S:
            self._hold_s = HOLD_S
        self._words = f"{_words(watched)}; off for {duration(self._hold_s)}"
        self._until_s = now_s + self._hold_s
        self._hold_s = min(2 * self._hold_s, HOLD_MAX_S)

    def against(self, *, now_s: Seconds) -> str:
        """'' where nothing speaks against it."""
        if self._words and now_s >= self._until_s:
            self._words = ""
            self._looks = dict.fromkeys(self._looks)
        return self._words

    def _all_say_no(self) -> bool:
        """True if no server with traffic still pays: one that does is reason enough to keep the pool."""
        payoffs = {look.verdict for look in self._looks.values() if look is not None and not look.unreachable}
        return Payoff.DOES_NOT_PAY in payoffs and payoffs <= {Payoff.DOES_NOT_PAY, Payoff.NO_TRAFFIC}


def _words(watched: Watched) -> str:
    length, point = watched.accepted_length, watched.break_even
    if length is None or point is None:
        return "its servers count too few accepted tokens"
    return (
        f"accepted length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}] "
        f"is under the break-even {point.accepted_length:.2f}"
    )
