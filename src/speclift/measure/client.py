"""One streamed request to one record. A failed or timed-out request is a record, never a gap."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import aiohttp

from speclift.core.arm import Endpoint
from speclift.core.records import Outcome, Place, Record
from speclift.core.traffic import Request
from speclift.core.units import Seconds
from speclift.measure.clock import now_s
from speclift.measure.stream import ERROR_TEXT_MAX, StreamResult, read_stream

REQUEST_LIMIT_S = 300.0
# Servers close idle connections (llama.cpp after 5 s); reusing one at that moment would look like a crash.
KEEP_ALIVE_S = 1.5


@dataclass(slots=True)
class _ConnectionUse:
    """Whether one request went out on a connection that had served another before."""

    is_reused: bool = False


def _reuse_trace() -> aiohttp.TraceConfig:
    async def note(_session: object, context: SimpleNamespace, _params: object) -> None:
        context.trace_request_ctx.is_reused = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note)
    return trace


class Client:
    """Connections to one server. Keep-alive, no limit of its own: the load decides what is in flight."""

    def __init__(self, endpoint: Endpoint, *, seed: int, limit_s: Seconds = REQUEST_LIMIT_S) -> None:
        self.endpoint = endpoint
        self._seed = seed
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._session = aiohttp.ClientSession(
            base_url=endpoint.base_url,
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=limit_s),
            trace_configs=[_reuse_trace()],
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, request: Request, place: Place, *, intended_s: Seconds) -> Record:
        path = "/v1/chat/completions" if request.messages else "/v1/completions"
        body = self.body(request, place.temperature)
        reads: list[tuple[Seconds, bytes]] = []
        sent_s = now_s()
        use = _ConnectionUse()
        failure = await self._post(path, body, reads, use)
        if failure is not None and failure.outcome is Outcome.DISCONNECTED and use.is_reused:
            # A kept-alive connection that the server closes as we write to it says nothing about the server
            # (llama.cpp does so now and then right after a stream). The clock keeps running meanwhile.
            failure = await self._post(path, body, reads, _ConnectionUse())
        end_s = now_s()
        return _record(place, failure, reads, intended_s=intended_s, sent_s=sent_s, end_s=end_s)

    async def _post(
        self, path: str, body: dict[str, Any], reads: list[tuple[Seconds, bytes]], use: _ConnectionUse
    ) -> StreamResult | None:
        """None where the whole answer arrived in `reads`."""
        try:
            async with self._session.post(path, json=body, trace_request_ctx=use) as response:
                if response.status != 200:
                    text = (await response.text(errors="replace"))[:ERROR_TEXT_MAX]
                    return StreamResult(outcome=Outcome.HTTP_ERROR, error=f"{response.status}: {text}")
                async for data in response.content.iter_any():
                    reads.append((now_s(), data))
        except TimeoutError:
            return StreamResult(outcome=Outcome.TIMEOUT, error="no complete answer in time")
        except (aiohttp.ClientError, OSError) as error:
            outcome = Outcome.CUT if reads else Outcome.DISCONNECTED
            return StreamResult(outcome=outcome, error=f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX])
        return None

    def body(self, request: Request, temperature: float | None) -> dict[str, Any]:
        """The same request gets the same seed on every arm, so that engines that honour it say the same."""
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": request_seed(self._seed, request.id),
            **dict(self.endpoint.extra_body),
        }
        if request.messages:
            body["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
        else:
            body["prompt"] = request.prompt
        if temperature is not None:
            body["temperature"] = temperature
        if request.top_p is not None:
            body["top_p"] = request.top_p
        return body


def request_seed(study_seed: int, request_id: str) -> int:
    text = f"{study_seed}:{request_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1


def _record(
    place: Place,
    failure: StreamResult | None,
    reads: list[tuple[Seconds, bytes]],
    *,
    intended_s: Seconds,
    sent_s: Seconds,
    end_s: Seconds,
) -> Record:
    """What arrived before a failure is kept; the failure decides the outcome."""
    result = (
        read_stream(reads) if reads else (failure or StreamResult(outcome=Outcome.CUT, error="empty answer"))
    )
    outcome, error = (failure.outcome, failure.error) if failure else (result.outcome, result.error)
    return Record(
        place=place,
        outcome=outcome,
        error=error,
        intended_s=intended_s,
        sent_s=sent_s,
        end_s=end_s,
        first_token_s=result.first_token_s,
        last_token_s=result.last_token_s,
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        finish_reason=result.finish_reason,
        text=result.text,
        drafted=result.drafted,
        accepted=result.accepted,
        steps=result.steps,
    )


async def sleep_until(moment_s: Seconds) -> None:
    delay_s = moment_s - now_s()
    if delay_s > 0:
        await asyncio.sleep(delay_s)
