"""One request of a soak: what a caller hears of a stream, and that no server keeps it for ever or fills the memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from scripted_http import answered, scripted
from soaked import EXPOSURE
from speclift.bench.soak_load import send
from speclift.core.arm import Endpoint
from speclift.lossless.soak.values import Promise, SoakAnswer, SoakRequest

LIMIT_S = 5.0


def request(**fields: object) -> SoakRequest:
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4})
    plain = SoakRequest(
        index=0,
        kind="copy",
        nonce="",
        path="/v1/chat/completions",
        body=body,
        promise=Promise(),
        temperature=0.0,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def events(*payloads: object) -> bytes:
    lines = [f"data: {json.dumps(payload)}\n\n" for payload in payloads]
    return answered("".join([*lines, "data: [DONE]\n\n"]).encode())


def delta(text: str = "", *, index: int = 0, finish: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": index, "delta": {"content": text, **more}, "finish_reason": finish}]}


def heard(answer: bytes | None, asked: SoakRequest | None = None, *, limit_s: float = LIMIT_S) -> SoakAnswer:
    async def ask() -> SoakAnswer:
        async with scripted(lambda _head, _body: answer) as server:
            endpoint = Endpoint(base_url=server.url, model="m")
            return await send(endpoint, asked or request(), EXPOSURE, limit_s=limit_s)

    return asyncio.run(ask())


def test_a_stream_is_put_together_choice_by_choice() -> None:
    told = heard(
        events(
            delta("a", index=0),
            delta("x", index=1),
            delta("b", index=0, finish="stop"),
            delta("y", index=1, finish="length"),
            {"choices": [], "usage": {"completion_tokens": 4}},
        )
    )
    assert [(choice.text, choice.finish_reason) for choice in told.choices] == [
        ("ab", "stop"),
        ("xy", "length"),
    ]
    assert (told.tokens, told.error, told.status) == (4, "", 200)


def test_a_caller_leaves_after_so_many_chunks_and_the_server_sees_it_go() -> None:
    told = heard(events(*[delta("a")] * 9, delta(finish="stop")), request(leaves_after_chunks=2))
    assert told.left
    assert told.choices[0].text == "aa"
    assert told.error == ""


def test_a_stream_is_over_with_its_last_event_though_the_connection_stays_open() -> None:
    event = f"data: {json.dumps(delta('a', finish='stop'))}\n\ndata: [DONE]\n\n"
    # The scripted server closes what has no length.
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Without: content-length\r\n\r\n"
    told = heard(f"{head}{len(event):x}\r\n{event}\r\n".encode())
    assert (told.choices[0].text, told.error, told.is_hung) == ("a", "", False)
