"""The load on one server: which request is sent when, with how many others under way, and what each was put through.

Knows no verdict and no launch: a server, a list of requests, so many at a time, until when.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

from speclift.bench.live import DEATH_SHOWS_WITHIN_S
from speclift.core.address import without_secrets
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.foreign_text import READ_BYTES_MAX, error_text, parse_json
from speclift.core.json_reading import as_object
from speclift.core.records import Outcome
from speclift.core.units import Seconds
from speclift.engines.aside import aside
from speclift.engines.protocol import Server
from speclift.http.answer import AnswerReader
from speclift.http.client import pieces, sent
from speclift.http.counts import count
from speclift.http.message import HttpError, ResponseReader, target_of
from speclift.lossless.soak.values import Exposure, SoakAnswer, SoakRequest, Stage

# A server that lets so many requests in a row, and at least a whole batch of them, come to no end is hung.
HUNG_IN_A_ROW_MIN = 3
LOOKS = 10
# Of the time of a step: so much longer callers wait whose answers had begun.
GRACE_SHARE = 0.5


class SoakLoad:
    """The load on one launch of one server. `clock` counts since the soak of its arm began."""

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
        # By number, as far as each has come.
        self._under_way: dict[int, Exposure] = {}
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
        take: Callable[[SoakRequest, SoakAnswer], SoakRequest | None],
    ) -> None:
        """All of them, each with the turns that follow it: `take` takes an answer and says what is asked next of the
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
                request = take(request, answer)
                await self._look_after(answer, streams)

        callers = [asyncio.create_task(stream()) for _ in range(streams)]
        try:
            await asyncio.gather(*callers)
        finally:
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

    async def _asked(self, request: SoakRequest, stage: Stage, *, leaves_after_s: Seconds) -> SoakAnswer:
        number = self._begin(stage)
        try:
            answer = await send(
                self._server.endpoint,
                request,
                self._under_way[number],
                limit_s=self._limit_s,
                leaves_after_s=leaves_after_s,
            )
        finally:
            exposure = self._under_way.pop(number)
        return replace(answer, exposure=replace(exposure, ended_s=self._clock()))

    def _begin(self, stage: Stage) -> int:
        number, now, now_s = self._sent, len(self._under_way) + 1, self._clock()
        for other, exposure in self._under_way.items():
            # Its prompt is read while the others are being answered.
            self._under_way[other] = replace(
                exposure, streams_max=max(exposure.streams_max, now), joined=exposure.joined + 1
            )
        self._under_way[number] = Exposure(
            arm=self._arm,
            launch=self._launch,
            stage=stage,
            sent_s=now_s,
            ended_s=now_s,
            streams=now,
            streams_max=now,
            before=number,
            joined=0,
        )
        self._sent += 1
        return number

    async def _look_after(self, answer: SoakAnswer, streams: int) -> None:
        """Looks whether the server is still there, if an answer makes one ask."""
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


# Some hundred tokens in chunks of 300 bytes each, with log-probabilities ten times that.
ANSWER_BYTES_MAX = 8 << 20
ERROR_CHARACTERS = 300


async def send(
    endpoint: Endpoint,
    request: SoakRequest,
    exposure: Exposure,
    *,
    limit_s: Seconds,
    leaves_after_s: Seconds = math.inf,
) -> SoakAnswer:
    """Never raises for what a server does; what went wrong is `error`, in its words where it has any. `leaves_after_s`:
    then this caller goes, whatever the request says of itself."""
    reader, response = AnswerReader(), ResponseReader()
    patience_s = min(leaves_after_s, math.inf if request.leaves_after_s is None else request.leaves_after_s)
    error, left, is_hung = "", False, False
    try:
        async with asyncio.timeout(min(limit_s, patience_s)):
            left = await _send(endpoint, request, reader, response)
        # An answer without a reason for its end is one, and a fault of its own.
        is_cut = bool(reader.choices) and reader.failure is not None and reader.failure[0] is Outcome.CUT
        error = "" if left or reader.failure is None or is_cut else reader.failure[1]
    except TimeoutError:
        left, is_hung = patience_s <= limit_s, patience_s > limit_s
        error = f"no end within {limit_s:g} s" if is_hung else ""
    except EngineError as refused:
        error = str(refused)
    except (OSError, HttpError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return _answer(request, exposure, reader, response, error, left=left, is_hung=is_hung)


def _answer(
    request: SoakRequest,
    exposure: Exposure,
    reader: AnswerReader,
    response: ResponseReader,
    error: str,
    *,
    left: bool,
    is_hung: bool,
) -> SoakAnswer:
    if reader.status_told is not None:
        error = f"{reader.status_told}: {error.partition(': ')[2]}"
    usage, drafts = reader.reported.usage, reader.reported.drafts
    return SoakAnswer(
        index=request.index,
        exposure=exposure,
        choices=tuple(choice.choice for _, choice in sorted(reader.choices.items())),
        tokens=count(usage.get("completion_tokens")),
        thinking_tokens=count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        drafted=drafts.drafted if drafts else None,
        accepted=drafts.accepted if drafts else None,
        error=without_secrets(error)[:ERROR_CHARACTERS],
        status=reader.status_told or response.status or None,
        left=left,
        is_hung=is_hung,
    )


async def _send(
    endpoint: Endpoint, request: SoakRequest, reader: AnswerReader, response: ResponseReader
) -> bool:
    """True where this caller left before the end."""
    target = target_of(endpoint.base_url, api_key=endpoint.api_key)
    body = as_object(parse_json(request.body))
    is_streamed = body.get("stream") is not False
    fields: dict[str, object] = {"model": request.model or endpoint.model, **body, "stream": is_streamed}
    if is_streamed:
        fields.setdefault("stream_options", {"include_usage": True})
    async with sent(target, target.request(request.path, json.dumps(fields).encode())) as stream:
        parts = _bounded(pieces(stream, response))
        if not is_streamed:
            whole = b"".join([part async for part in parts])
            _require_success(response, whole)
            reader.take_whole(whole)
            return False
        refusal = b""
        async for part in parts:
            if response.status != 200:
                refusal += part[: READ_BYTES_MAX - len(refusal)]
                continue
            # Event by event: this caller may leave after any of them.
            for line in part.splitlines(keepends=True):
                reader.feed(0.0, line)
                if request.leaves_after_chunks is not None and (
                    reader.chunk_count >= request.leaves_after_chunks
                ):
                    return True
                if reader.is_over or reader.failure is not None:
                    return False
        _require_success(response, refusal)
        reader.end()
        return False


async def _bounded(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    size = 0
    async for part in parts:
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise EngineError(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
        yield part


def _require_success(response: ResponseReader, body: bytes) -> None:
    if response.status != 200:
        raise EngineError(f"{response.status}: {error_text(body, limit=ERROR_CHARACTERS)}")
