"""Bytes as servers send them: one real llama.cpp stream, and hand-made ones for what it does not show."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import record, request
from speclift.bench.asking import read_answer
from speclift.core.records import AnswerRead, Outcome, Step
from speclift.http.answer import CALLS_MAX, CHOICES_MAX, AnswerReader, read_stream
from speclift.lossless.answers import Answer, compare
from speclift.lossless.questions import Question

# xllamacpp 2026.10.11549 (llama.cpp b11549), SmolLM2-135M, n-gram drafts of 4, timings_per_token, usage.
RECORDED = (Path(__file__).parent.parent / "recorded" / "llamacpp-b11549-chat-ngram.sse").read_bytes()
DONE = b"data: [DONE]\n\n"


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def usage(completion_tokens: Any, prompt_tokens: Any = 5) -> bytes:
    counts = {"completion_tokens": completion_tokens, "prompt_tokens": prompt_tokens}
    return event({"choices": [], "usage": counts})


def timings(tokens: Any, drafted: Any, accepted: Any) -> dict[str, Any]:
    return {"timings": {"predicted_n": tokens, "draft_n": drafted, "draft_n_accepted": accepted}}


def read(*reads: bytes) -> AnswerRead:
    """The n-th read arrives at second n."""
    return read_stream(enumerate(reads, start=1))


def timeless(result: AnswerRead) -> AnswerRead:
    return replace(result, first_token_s=None, last_token_s=None)


def cut_at(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


class TestARecordedLlamaCppStream:
    def test_gives_text_counts_and_every_decode_step(self) -> None:
        result = read(RECORDED)

        assert result.outcome is Outcome.OK
        assert result.text == (
            "The keeper counts the boats. The keeper counts the boats. The café is open. The keeper counts the boats."
        )
        assert (result.prompt_tokens, result.output_tokens, result.finish_reason) == (71, 24, "stop")
        assert (result.drafted, result.accepted) == (24, 12)
        none = Step(drafted=0, accepted=0)
        all_four, no_one = Step(drafted=4, accepted=4), Step(drafted=4, accepted=0)
        assert result.steps == (
            *(none, all_four, no_one, all_four, no_one, no_one),
            *(none, none, none, none, all_four),
        )

    def test_the_steps_agree_with_the_totals(self) -> None:
        result = read(RECORDED)
        assert result.steps is not None

        assert sum(step.drafted for step in result.steps) == result.drafted
        assert sum(step.accepted for step in result.steps) == result.accepted
        assert 1 + len(result.steps) + sum(step.accepted for step in result.steps) == result.output_tokens

    @given(st.lists(st.integers(0, len(RECORDED)), max_size=30))
    def test_the_network_may_cut_it_anywhere(self, places: list[int]) -> None:
        assert timeless(read(*cut_at(RECORDED, places))) == timeless(read(RECORDED))

    @given(st.integers(0, len(RECORDED)))
    def test_cut_off_anywhere_it_is_a_cut_or_whole_answer_and_never_another_text(self, end: int) -> None:
        result = read(RECORDED[:end])

        assert result.outcome in (Outcome.OK, Outcome.CUT)
        assert (result.outcome is Outcome.OK) == (
            b'"finish_reason":"stop"' in RECORDED[:end] and result.finish_reason == "stop"
        )
        assert read(RECORDED).text.startswith(result.text)

    @given(st.lists(st.integers(0, len(RECORDED) - 1), min_size=1, max_size=4), st.data())
    def test_damaged_bytes_give_a_result_and_never_an_exception(
        self, places: list[int], data: st.DataObject
    ) -> None:
        damaged = bytearray(RECORDED)
        for place in places:
            damaged[place] = data.draw(st.integers(0, 255))

        assert isinstance(read(bytes(damaged)), AnswerRead)


class TestFraming:
    WHOLE = chunk("Hé") + chunk("llo \U0001f6a2") + chunk(finish="length") + usage(4) + DONE

    def test_utf8_and_lines_may_be_split_between_reads(self) -> None:
        raw = (
            'data: {"choices": [{"delta": {"content": "\U0001f6a2é"}, "finish_reason": "stop"}]}\n\n'.encode()
        )

        for place in range(len(raw)):
            assert read(raw[:place], raw[place:]).text == "\U0001f6a2é"

    @pytest.mark.parametrize(
        "variant",
        [
            WHOLE.replace(b"\n", b"\r\n"),
            b": ping\n\n" + WHOLE.replace(b"\n\n", b"\n\n:\n\n"),
            WHOLE + DONE + DONE,
            WHOLE.removesuffix(DONE),
            WHOLE.replace(b"data: ", b"data:"),
            WHOLE.replace(b"data: ", b"event: message\nid: 7\nretry: 9\ndata: "),
            WHOLE.rstrip(b"\n"),
            WHOLE.removesuffix(DONE).rstrip(b"\n"),
            b"\n\n" + WHOLE,
        ],
        ids=[
            "CRLF",
            "keep-alive comments",
            "[DONE] twice",
            "no [DONE]",
            "no space after data:",
            "event and id lines",
            "no line end at the end",
            "usage as the last bytes",
            "blank lines first",
        ],
    )
    def test_what_servers_do_differently_changes_nothing(self, variant: bytes) -> None:
        assert read(variant) == read(self.WHOLE)
        assert read(variant).text == "Héllo \U0001f6a2"


class TestTokens:
    def test_are_counted_by_the_server_when_a_chunk_carries_several(self) -> None:
        result = read(chunk("one two three"), chunk(" four", "length"), usage(6))

        assert result.output_tokens == 6
        assert _tpot_s(result) == pytest.approx((2 - 1) / 5)

    def test_without_either_they_are_unknown_and_never_the_number_of_chunks(self) -> None:
        result = read(chunk("a"), chunk("b"), chunk("c"), chunk(finish="length"), DONE)

        assert result.outcome is Outcome.OK
        assert result.output_tokens is None
        assert _tpot_s(result) is None


class TestTheLastToken:
    def test_after_a_stop_it_is_the_finish_chunk_because_the_end_token_has_no_text(self) -> None:
        assert read(chunk("a"), chunk("b"), chunk(finish="stop"), usage(3)).last_token_s == 3

    def test_at_the_length_limit_it_is_the_last_text(self) -> None:
        assert read(chunk("a"), chunk("b"), chunk(finish="length"), usage(2)).last_token_s == 2

    def test_an_answer_without_text_has_no_times(self) -> None:
        result = read(chunk(finish="stop"), usage(1))

        assert result.outcome is Outcome.OK
        assert (result.first_token_s, result.last_token_s, result.text) == (None, None, "")


class TestDrafts:
    def test_no_counts_at_all_is_not_the_same_as_none_drafted(self) -> None:
        silent = read(chunk("a"), chunk("b", "stop"))
        plain = read(chunk("a", timings={"predicted_n": 1}), chunk("b", "stop", timings={"predicted_n": 2}))

        assert (silent.drafted, silent.accepted, silent.steps) == (None, None, None)
        assert (plain.drafted, plain.accepted) == (0, 0)

    def test_vllm_lists_its_steps_on_the_last_chunk(self) -> None:
        speculative = {
            "num_draft_tokens": 6,
            "num_accepted_draft_tokens": 3,
            "per_step_drafted": [3, 3],
            "per_step_accepted": [1, 2],
        }
        result = read(chunk("abc"), chunk("de", "stop", metrics={"speculative_decoding": speculative}))

        assert result.steps == (Step(drafted=3, accepted=1), Step(drafted=3, accepted=2))
        assert (result.drafted, result.accepted) == (6, 3)


class TestFailures:
    def test_a_stream_without_a_finish_reason_was_cut_and_keeps_what_came(self) -> None:
        result = read(chunk("half an"), DONE)

        assert (result.outcome, result.error) == (Outcome.CUT, "the stream ended without a finish_reason")
        assert (result.text, result.first_token_s) == ("half an", 1)

    def test_an_error_object_ends_it(self) -> None:
        result = read(
            chunk("a"), event({"error": {"code": 500, "message": "out of memory"}}), chunk("b", "stop")
        )

        assert result.outcome is Outcome.HTTP_ERROR
        assert "out of memory" in result.error
        assert result.text == "a"

    def test_log_probabilities_are_kept_only_for_whom_they_are(self) -> None:
        data = event({"choices": [{"text": "a", "logprobs": {"tokens": ["a"]}, "token_ids": [1]}]})
        for keeps, kept in ((False, ([], None)), (True, ([{"tokens": ["a"]}] * 2, [1, 1]))):
            reader = AnswerReader(keeps_tokens=keeps)
            reader.feed(0.0, data + data)
            assert (reader.choices[0].logprobs, reader.choices[0].token_ids) == kept

    @pytest.mark.parametrize(
        "data",
        [
            b"data: not json\n\n",
            b"data: {\n\n",
            b"data: \xff\n\n",
            b"data: [1]\n\n",
            b"data: 3\n\n",
            b"data: " + b"[" * 100_000 + b"\n\n",
        ],
        ids=["words", "half an object", "not UTF-8", "a list", "a number", "nested without end"],
    )
    def test_bytes_that_are_not_the_protocol_are_malformed(self, data: bytes) -> None:
        result = read(chunk("a"), data, chunk("b", "stop"))

        assert (result.outcome, result.text) == (Outcome.MALFORMED, "a")
        assert "in the stream" in result.error

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"<html><p>Bad gateway</p></html>", "not an event stream: Bad gateway"),
            (b'{"error": {"message": "no room"}}', "not an event stream: no room"),
            (DONE, "without a finish_reason"),
            (
                b"".join(event({"choices": [{"index": n, "text": "a"}]}) for n in range(CHOICES_MAX + 1)),
                "more than 128 choices",
            ),
            (
                event(
                    {
                        "choices": [
                            {"delta": {"tool_calls": [{"index": n} for n in range(CALLS_MAX + 1)]}},
                        ]
                    }
                ),
                "more than 64 tool calls",
            ),
        ],
    )
    def test_what_is_no_answer_is_named(self, body: bytes, words: str) -> None:
        assert words in read(body).error


def _tpot_s(result: AnswerRead) -> float | None:
    return replace(
        record(),
        first_token_s=result.first_token_s,
        last_token_s=result.last_token_s,
        output_tokens=result.output_tokens,
    ).tpot_s


class TestWhoeverReadsIt:
    """The client, the gate and the soak read one answer alike: a baseline is not to differ from itself."""

    THOUGHT_TWICE: ClassVar = {"reasoning": "think", "reasoning_content": "think", "content": "hello"}
    CALL: ClassVar = {
        "content": None,
        "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}],
    }

    @pytest.mark.parametrize(("said", "text"), [(THOUGHT_TWICE, "thinkhello"), (CALL, "f{}")])
    def test_gives_the_same_text_streamed_or_whole(self, said: dict[str, Any], text: str) -> None:
        streamed = event({"choices": [{"index": 0, "delta": said, "finish_reason": "stop"}]}) + DONE
        whole = json.dumps({"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}).encode()
        question = Question(case="q", request=request(), temperature=0.0, seed=1)

        assert read(streamed).text == text
        assert read_answer(question, whole).text == text
        assert read_answer(replace(question, stream=True), streamed).text == text
        recorded = Answer(case="q", text=read(streamed).text, finish_reason="stop", tokens=None)
        assert compare(recorded, read_answer(question, whole)).divergence is None
