"""The fire on one server: which request is sent when, with how many others under way, and what each was put through.

Knows no verdict and no launch: a server, a list of requests, so many at a time, until when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from speclift.bench.live import DEATH_SHOWS_WITHIN_S
from speclift.bench.soak_asking import Heard, hear
from speclift.core.units import Seconds
from speclift.engines.aside import aside
from speclift.engines.protocol import Server
from speclift.lossless.soak.values import Exposure, SoakAnswer, SoakRequest, Stage

# A server that lets so many requests in a row, and at least a whole batch of them, come to no end is hung.
HUNG_IN_A_ROW_MIN = 3
LOOKS = 10
# Of the time of a step: so much longer callers wait whose answers had begun.
GRACE_SHARE = 0.5


@dataclass(slots=True)
class UnderWay:
    """A request that was sent and has not ended."""

    sent_s: Seconds
    streams: int
    streams_max: int
    before: int
    joined: int = 0


class Fire:
    """On one launch of one server. `clock` counts since the soak of its arm began."""

    def __init__(
        self,
        server: Server,
        *,
        arm: str,
        launch: int,
        clock: Callable[[], Seconds],
        limit_s: Seconds,
    ) -> None:
        self._server = server
        self._arm, self._launch = arm, launch
        self._clock, self._limit_s = clock, limit_s
        self._sent = 0
        self._flights: dict[int, UnderWay] = {}
        self._hung_in_a_row = 0
        # How the server failed, with the tail of its log; empty while it works.
        self.failure = ""

    async def ask(
        self,
        openings: Iterable[SoakRequest],
        *,
        streams: int,
        stage: Stage,
        left_s: Callable[[], Seconds],
        heed: Callable[[SoakRequest, SoakAnswer], SoakRequest | None],
    ) -> None:
        """All of them, each with the turns that follow it: `heed` takes an answer and says what is asked next of the
        same conversation. Nothing new is sent once no time is left or the server failed; callers that are under way
        then wait a little longer, and leave."""
        coming = iter(openings)
        grace_s = GRACE_SHARE * max(0.0, left_s())

        async def stream() -> None:
            request: SoakRequest | None = None
            while left_s() > 0 and not self.failure:
                request = request or next(coming, None)
                if request is None:
                    return
                answer = await self._asked(request, stage, leaves_after_s=left_s() + grace_s)
                request = heed(request, answer)
                await self._look_after(answer, streams)

        under_way = [asyncio.create_task(stream()) for _ in range(streams)]
        try:
            await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _asked(self, request: SoakRequest, stage: Stage, *, leaves_after_s: Seconds) -> SoakAnswer:
        flight, number = self._take_off(), self._sent
        self._flights[number] = flight
        try:
            heard = await hear(
                self._server.endpoint, request, limit_s=self._limit_s, leaves_after_s=leaves_after_s
            )
        finally:
            del self._flights[number]
        return self._answer(request, heard, flight, stage)

    def _take_off(self) -> UnderWay:
        now = len(self._flights) + 1
        for other in self._flights.values():
            other.streams_max = max(other.streams_max, now)
            # Its prompt is read while the others are being answered.
            other.joined += 1
        flight = UnderWay(sent_s=self._clock(), streams=now, streams_max=now, before=self._sent)
        self._sent += 1
        return flight

    def _answer(self, request: SoakRequest, heard: Heard, flight: UnderWay, stage: Stage) -> SoakAnswer:
        return SoakAnswer(
            index=request.index,
            exposure=Exposure(
                arm=self._arm,
                launch=self._launch,
                stage=stage,
                sent_s=flight.sent_s,
                ended_s=self._clock(),
                streams=flight.streams,
                streams_max=flight.streams_max,
                before=flight.before,
                joined=flight.joined,
            ),
            choices=heard.choices,
            tokens=heard.tokens,
            thinking_tokens=heard.thinking_tokens,
            drafted=heard.drafted,
            accepted=heard.accepted,
            error=heard.error,
            status=heard.status,
            left=heard.left,
            is_hung=heard.is_hung,
        )

    async def _look_after(self, answer: SoakAnswer, streams: int) -> None:
        """Whether the server is still there, where an answer makes one ask."""
        self._hung_in_a_row = self._hung_in_a_row + 1 if answer.is_hung else 0
        if self._hung_in_a_row >= max(HUNG_IN_A_ROW_MIN, streams):
            self.failure = (
                f"hangs: {self._hung_in_a_row} requests in a row came to no end in {self._limit_s:.0f} s"
            )
        elif answer.error and not answer.is_hung:
            self.failure = self.failure or await self._death()

    async def _death(self) -> str:
        """A dying engine cuts its streams before its end is known."""
        for _ in range(LOOKS):
            death = await aside(self._server.death)
            if death is not None:
                return f"died: {death}"
            await asyncio.sleep(DEATH_SHOWS_WITHIN_S / LOOKS)
        return ""
