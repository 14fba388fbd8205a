"""HTTP/1.1 bytes as servers send them: recorded ones of vLLM, llama.cpp and SGLang, hand-made ones for the rest."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from json import dumps, loads
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.records import AnswerRead, Outcome, Step
from speclift.http.answer import AnswerReader
from speclift.http.message import HttpError, ResponseReader

RECORDED = Path(__file__).parent.parent / "recorded"
# Real: multi-token chunks under speculation, the totals on a usage-only last chunk.
VLLM = (RECORDED / "vllm-0.32.0-chat-ngram.http").read_bytes()
# Real: the head comes alone, two events share the first chunk, timings on every chunk.
LLAMACPP = (RECORDED / "llamacpp-b11549-chat-ngram.http").read_bytes()
# Recorded from SGLang 0.5.23's own server code with a stand-in for the model (its scheduler and detokenizer): a null
# reasoning_content on every delta, one piece that stands for two tokens, the totals on a usage-only last chunk.
SGLANG = (RECORDED / "sglang-0.5.23-chat.http").read_bytes()


def chunked(*parts: str, head: str = "", end: str = "0\r\n\r\n") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in (part.encode() for part in parts))
    return f"HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n".encode() + body + end.encode()


def play(pieces: list[bytes]) -> tuple[ResponseReader, AnswerRead, list[bool]]:
    """As sender.py does it; piece n arrives at second n. Also which pieces were taken without reading JSON."""
    response, stream, framed = ResponseReader(), AnswerReader(), []
    for arrived_s, piece in enumerate(pieces, start=1):
        may_be_framed = stream.has_frame and response.is_between_chunks
        if may_be_framed and stream.take_framed(piece):
            stream.note_last(arrived_s)
            framed.append(True)
            continue
        framed.append(False)
        body = response.feed(piece)
        if body:
            stream.feed(arrived_s, body)
    return response, stream.result(), framed


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    return [piece for piece in pieces if piece]


def one_chunk_each(data: bytes) -> list[bytes]:
    """The head, then one HTTP chunk per read."""
    head, _, rest = data.partition(b"\r\n\r\n")
    pieces = [head + b"\r\n\r\n"]
    while rest:
        size = int(rest[: rest.index(b"\r\n")], 16)
        end = rest.index(b"\r\n") + 2 + size + 2
        pieces.append(rest[:end])
        rest = rest[end:]
    return pieces


def older_behind_a_proxy(data: bytes) -> bytes:
    """Made of the recorded one: 0.5.9 named every field (protocol.py), proxies add a comment and a second [DONE]."""
    events, named = [], dict.fromkeys(("role", "content", "reasoning_content", "tool_calls"))
    for piece in one_chunk_each(data)[1:-2]:
        event = loads(piece[piece.index(b"{") : piece.rindex(b"}") + 1])
        for choice in event["choices"]:
            choice["delta"] = named | choice["delta"]
        event.setdefault("usage", None)
        events.append(f"data: {dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n")
    return chunked(*events[:2], ": keep-alive\n\n", *events[2:], "data: [DONE]\n\n", "data: [DONE]\n\n")


OLDER_SGLANG = older_behind_a_proxy(SGLANG)
STREAMS = {"vLLM": VLLM, "llama.cpp": LLAMACPP, "SGLang": SGLANG, "older SGLang": OLDER_SGLANG}


def timeless(result: AnswerRead) -> AnswerRead:
    return replace(result, first_token_s=None, last_token_s=None)


class TestRecordedStreams:
    def test_vllm_carries_several_tokens_in_a_chunk_and_its_counts_on_the_last(self) -> None:
        response, result, _ = play(one_chunk_each(VLLM))

        assert (response.status, response.is_done, response.keeps_alive) == (200, True, True)
        assert result.outcome is Outcome.OK
        assert result.text.endswith("The café is open. The keeper counts the boats. The café is open.")
        assert (result.prompt_tokens, result.output_tokens, result.finish_reason) == (71, 34, "stop")
        assert (result.drafted, result.accepted) == (24, 23)
        assert result.steps is not None
        assert result.steps.count(Step(drafted=4, accepted=4)) == 5

    def test_llamacpp_sends_its_head_alone_and_two_events_in_the_first_chunk(self) -> None:
        _, result, _ = play(one_chunk_each(LLAMACPP))

        assert result.outcome is Outcome.OK
        assert (result.prompt_tokens, result.output_tokens, result.finish_reason) == (71, 34, "stop")
        assert (result.drafted, result.accepted) == (28, 23)
        assert result.first_token_s == 2

    def test_sglang_says_null_for_what_it_has_not(self) -> None:
        for data in (SGLANG, OLDER_SGLANG):
            _, result, _ = play([data])

            assert result.outcome is Outcome.OK
            assert result.text == 'The café is "open" at 9 \U0001f6a2'
            assert (result.prompt_tokens, result.output_tokens, result.finish_reason) == (35, 7, "length")

    @pytest.mark.parametrize("name", STREAMS)
    @given(places=st.lists(st.integers(0, 20_000), max_size=40))
    def test_the_network_may_cut_it_anywhere(self, name: str, places: list[int]) -> None:
        data = STREAMS[name]

        assert timeless(play(cut(data, places))[1]) == timeless(play([data])[1])

    @pytest.mark.parametrize("name", STREAMS)
    def test_reading_chunks_without_json_changes_nothing(self, name: str) -> None:
        pieces = one_chunk_each(STREAMS[name])
        response, stream = ResponseReader(), AnswerReader()
        for arrived_s, piece in enumerate(pieces, start=1):
            stream.feed(arrived_s, response.feed(piece))

        assert play(pieces)[1] == stream.result()

    @pytest.mark.parametrize("name", STREAMS)
    @given(end=st.integers(0, 20_000))
    def test_cut_off_anywhere_it_never_gives_another_text(self, name: str, end: int) -> None:
        data = STREAMS[name]
        response, result, _ = play([data[: end % len(data)] or b"H"])

        assert not response.is_done
        assert play([data])[1].text.startswith(result.text)


class TestFramedChunks:
    FIRST = 'data: {"choices":[{"delta":{"content":"one"},"finish_reason":null}]}\n\n'

    @pytest.mark.parametrize(
        "second",
        [
            'data: {"choices":[{"delta":{"content":"a\\nb"},"finish_reason":null}]}\n\n',
            'data: {"choices":[{"delta":{"content":""},"finish_reason":null}]}\n\n',
            'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n',
            'data: {"choices":[{"delta":{"content":"x","content":"y"},"finish_reason":null}]}\n\n',
            'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}],"usage":{"completion_tokens":3}}\n\n',
            'data: {"choices":[{"delta":{"refusal":"x"},"finish_reason":null}]}\n\n',
            FIRST + FIRST,
            ": ping\n\n" + FIRST,
        ],
        ids=[
            "an escape",
            "no text",
            "a finish",
            "a key twice",
            "usage",
            "another key",
            "two events",
            "a comment",
        ],
    )
    def test_what_differs_in_more_than_plain_text_is_read_as_json(self, second: str) -> None:
        pieces = one_chunk_each(chunked(self.FIRST, second))
        _, result, framed = play(pieces)
        stream = AnswerReader()
        stream.feed(2, self.FIRST.encode())
        stream.feed(3, second.encode())

        assert framed == [False] * len(framed)
        assert timeless(result) == timeless(stream.result())

    @given(st.text(max_size=12))
    def test_any_text_comes_out_as_json_would_give_it(self, text: str) -> None:
        second = self.FIRST.replace('"one"', dumps(text, ensure_ascii=False))
        _, result, _ = play(one_chunk_each(chunked(self.FIRST, second)))

        assert result.text == "one" + text

    def test_a_wrong_chunk_size_is_not_overlooked(self) -> None:
        head, first, _ = one_chunk_each(chunked(self.FIRST))[:3]
        second = b"7" + first[1:]

        with pytest.raises(HttpError):
            play([head, first, second, b"\r\n" * 40])


class TestBodies:
    @pytest.mark.parametrize(
        ("data", "body", "keeps_alive"),
        [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", True),
            (b"HTTP/1.1 200 OK\r\ncontent-length:5\r\nConnection: close\r\n\r\nhello", b"hello", False),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
            (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nhi", b"hi", True),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
            (chunked("he", "llo"), b"hello", True),
            (chunked("hello").replace(b"5\r\n", b"5;name=value\r\n"), b"hello", True),
            (chunked("hello").replace(b"5\r\n", b"0005\r\n"), b"hello", True),
            (chunked("hello", end="0\r\nX-Trailer: 1\r\n\r\n"), b"hello", True),
            (chunked("hello") + b"HTTP/1.1 200 OK\r\n", b"hello", False),
        ],
        ids=[
            "counted", "counted and closed", "counted as none", "no content", "HTTP/1.0", "HTTP/1.0 kept alive",
            "an interim answer first", "chunked", "a chunk extension", "zeros before the size", "a trailer",
            "bytes nobody asked for",
        ],
    )  # fmt: skip
    def test_are_read_whole_or_byte_by_byte(self, data: bytes, body: bytes, keeps_alive: bool) -> None:
        for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
            response = ResponseReader()

            assert b"".join([response.feed(piece) for piece in pieces]) == body
            assert (response.is_done, response.keeps_alive) == (True, keeps_alive)

    @pytest.mark.parametrize(
        "data",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 OK\r\n\r\n",
            b"HTTP/1.1 \xb2\xb900 OK\r\n\r\n",
            b"HTTP/1.1 2000 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        ],
    )
    def test_what_is_not_http_is_refused(self, data: bytes) -> None:
        with pytest.raises(HttpError):
            ResponseReader().feed(data)

    @pytest.mark.parametrize(
        "start",
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 ",
            b"HTTP/1.1 200 OK\r\nContent-Length: ",
        ],
    )
    @given(data=st.binary(max_size=200), places=st.lists(st.integers(0, 200), max_size=5))
    def test_no_bytes_whatever_raise_anything_else(
        self, start: bytes, data: bytes, places: list[int]
    ) -> None:
        response = ResponseReader()
        for piece in [start, *cut(data or b"x", places), b"\r\n\r\n"]:
            try:
                response.feed(piece)
            except HttpError:
                return
