"""The fire on one server: how many at once, who met whom, what follows in a conversation, and when it is given up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast

from scripted_http import Answer, answered, scripted
from speclift.bench.soak_load import SoakLoad
from speclift.core.arm import Endpoint
from speclift.engines.protocol import Server
from speclift.lossless.soak.values import Promise, SoakAnswer, SoakRequest, Stage

FOREVER_S = 1000.0
PLAIN = SoakRequest(
    index=0,
    kind="copy",
    nonce="",
    path="/v1/chat/completions",
    body=json.dumps({"messages": []}),
    promise=Promise(),
    temperature=0.0,
)


class StandIn:
    """As much of a server as a fire needs."""

    def __init__(self, url: str, death: str | None) -> None:
        self.endpoint = Endpoint(base_url=url, model="m")
        self._death = death

    def death(self) -> str | None:
        return self._death


def said(_head: bytes, _body: bytes) -> bytes:
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    return answered(f"data: {event}\n\ndata: [DONE]\n\n".encode(), fields="Connection: close\r\n")


def burn(
    openings: Iterable[SoakRequest],
    *,
    answer: Answer = said,
    streams: int = 1,
    death: str | None = None,
    limit_s: float = 20.0,
    following: Callable[[SoakRequest], SoakRequest | None] = lambda _request: None,
) -> tuple[list[SoakAnswer], SoakLoad]:
    heard: list[SoakAnswer] = []

    def take(request: SoakRequest, told: SoakAnswer) -> SoakRequest | None:
        heard.append(told)
        return following(request)

    async def work() -> SoakLoad:
        async with scripted(answer) as server:
            fire = SoakLoad(
                cast(Server, StandIn(server.url, death)),
                arm="ngram-k4",
                launch=2,
                clock=asyncio.get_running_loop().time,
                limit_s=limit_s,
            )
            await fire.ask(openings, streams=streams, stage=Stage.DURING, left_s=lambda: FOREVER_S, take=take)
            return fire

    return heard, asyncio.run(work())


def requests(count: int) -> list[SoakRequest]:
    return [replace(PLAIN, index=4 * slot) for slot in range(count)]


def test_every_request_is_asked_once_and_says_what_it_was_put_through() -> None:
    heard, fire = burn(requests(12), streams=4)
    assert sorted(answer.index for answer in heard) == [4 * slot for slot in range(12)]
    assert {answer.exposure.arm for answer in heard} == {"ngram-k4"}
    assert {answer.exposure.launch for answer in heard} == {2}
    assert max(answer.exposure.streams for answer in heard) == 4
    assert all(answer.exposure.streams <= answer.exposure.streams_max <= 4 for answer in heard)
    assert sorted(answer.exposure.before for answer in heard) == list(range(12))
    assert sum(answer.exposure.joined for answer in heard) > 0
    assert fire.failure == ""


def test_the_turns_of_a_conversation_follow_each_other() -> None:
    def next_turn(request: SoakRequest) -> SoakRequest | None:
        return replace(request, turn=request.turn + 1, index=request.index + 1) if request.turn < 2 else None

    heard, _ = burn(requests(2), streams=2, following=next_turn)
    order = [answer.index for answer in heard]
    assert sorted(order) == [0, 1, 2, 4, 5, 6]
    assert [index for index in order if index < 4] == [0, 1, 2]


def test_a_server_that_died_is_asked_no_more() -> None:
    heard, fire = burn(
        requests(50),
        answer=lambda _head, _body: answered(b"no", status=500),
        death="code 134; log ends:\nboom",
    )
    assert len(heard) == 1
    assert fire.failure == "died: code 134; log ends:\nboom"
