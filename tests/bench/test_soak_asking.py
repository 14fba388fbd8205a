"""One request of a soak: what a caller hears of a stream, and that no server keeps it for ever or fills the memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from scripted_http import answered, scripted
from soaked import EXPOSURE
from speclift.bench import soak_load
from speclift.bench.soak_load import send
from speclift.core.arm import Endpoint
from speclift.core.records import ToolCall
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


def test_pieces_of_tool_calls_are_joined_by_their_place() -> None:
    def piece(index: int, **function: str) -> dict[str, object]:
        return delta(tool_calls=[{"index": index, "function": function}])

    told = heard(
        events(
            piece(0, name="find", arguments='{"a"'),
            piece(1, name="note", arguments="{}"),
            piece(0, arguments=": 1}"),
            delta(finish="tool_calls"),
        )
    )
    assert told.choices[0].calls == (
        ToolCall(name="find", arguments='{"a": 1}'),
        ToolCall(name="note", arguments="{}"),
    )


def test_thoughts_are_kept_apart_from_the_text() -> None:
    told = heard(events(delta(reasoning_content="hm"), delta("yes", finish="stop")))
    assert (told.choices[0].thoughts, told.choices[0].text) == ("hm", "yes")


def test_a_caller_leaves_after_so_many_chunks_and_the_server_sees_it_go() -> None:
    told = heard(events(*[delta("a")] * 9, delta(finish="stop")), request(leaves_after_chunks=2))
    assert told.left
    assert told.choices[0].text == "aa"
    assert told.error == ""


def test_a_caller_that_is_in_a_hurry_leaves_without_a_complaint() -> None:
    told = heard(None, request(leaves_after_s=0.01))
    assert told.left
    assert not told.is_hung


def test_a_server_that_never_answers_is_hung() -> None:
    told = heard(None, limit_s=0.05)
    assert told.is_hung
    assert "no end within 0.05 s" in told.error


def test_a_whole_answer_is_read_where_no_stream_was_asked_for() -> None:
    whole = {
        "choices": [{"message": {"content": "all"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 1},
    }
    told = heard(answered(json.dumps(whole).encode()), request(body=json.dumps({"stream": False})))
    assert (told.choices[0].text, told.tokens) == ("all", 1)


def test_a_refusal_says_its_status_and_words() -> None:
    told = heard(answered(b'{"error": {"message": "no tools here"}}', status=400))
    assert (told.status, told.error) == (400, "400: no tools here")


REFUSED = {"error": {"message": "no budget here", "code": 400}}


def test_a_refusal_in_the_first_event_of_a_stream_is_one() -> None:
    told = heard(events(REFUSED))
    assert (told.status, told.error) == (400, "400: no budget here")


def test_an_error_after_the_first_token_is_none() -> None:
    told = heard(events(delta("a"), REFUSED))
    assert (told.status, told.error) == (200, "error in the stream: no budget here")


@pytest.mark.parametrize("code", [200, 10**9, "400", None, {}])
def test_a_code_that_is_no_status_leaves_the_servers_own(code: object) -> None:
    assert heard(events({"error": {"message": "no", "code": code}})).status == 200


ODD: dict[str, tuple[bytes, str]] = {
    "an error in mid-stream": (events(delta("a"), {"error": {"message": "out of memory"}}), "out of memory"),
    "a page": (answered(b"<html><p>Bad gateway</p></html>"), "Bad gateway"),
    "a body that is cut off": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\nConnection: close\r\n\r\ndata: {",
        "mid-answer",
    ),
    "no HTTP": (b"hello, who is there?\r\n\r\nConnection: close\r\n\r\n", "not an HTTP answer"),
}


@pytest.mark.parametrize(("answer", "words"), ODD.values(), ids=ODD.keys())
def test_what_is_no_answer_is_an_error_in_words(answer: bytes, words: str) -> None:
    assert words in heard(answer).error


def test_a_stream_is_over_with_its_last_event_though_the_connection_stays_open() -> None:
    event = f"data: {json.dumps(delta('a', finish='stop'))}\n\ndata: [DONE]\n\n"
    # The scripted server closes what has no length.
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Without: content-length\r\n\r\n"
    told = heard(f"{head}{len(event):x}\r\n{event}\r\n".encode())
    assert (told.choices[0].text, told.error, told.is_hung) == ("a", "", False)


def test_an_endless_answer_is_given_up_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_load, "ANSWER_BYTES_MAX", 1 << 20)
    told = heard(events(*[delta("word " * 1000)] * 500))
    assert "more than 1 MiB" in told.error


def test_a_line_without_an_end_is_given_up() -> None:
    told = heard(answered(b"data: " + b"a" * (5 << 20)))
    assert "a line of more than 4 MiB" in told.error
