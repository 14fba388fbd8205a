"""What a gateway learns of an answer while it passes it on."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from speclift.core.records import AnswerRead
from speclift.http.answer import read_stream
from speclift.http.counts import Limits
from speclift.http.message import ResponseReader
from speclift.live.gateway.observed import (
    LINE_BYTES_MAX,
    ObservedAnswer,
)


def event(payload: object, *, line_end: str = "\n") -> bytes:
    return f"data: {json.dumps(payload)}{line_end}{line_end}".encode()


def delta(reason: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


ROLE = event(delta(role="assistant", content=None))
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 12, "completion_tokens": 5}


def usage(**fields: object) -> bytes:
    return event({"choices": [], "usage": {**USAGE, **fields}})


def words(*texts: str) -> list[bytes]:
    return [event(delta(content=text)) for text in texts]


def seen_of(*bodies: bytes, limits: Limits | None = None, keeps_text: bool = False) -> AnswerRead:
    """The reads of an answer, one second after the other."""
    observed = ObservedAnswer(limits=limits or Limits(), keeps_text=keeps_text)
    for second, body in enumerate(bodies):
        observed.feed(float(second), body)
    return observed.result()


def test_a_stream_says_when_its_text_came_and_how_long_it_is() -> None:
    seen = seen_of(ROLE, *words("a", "b", "c"), event(delta("length")), usage(), DONE)
    assert (seen.first_token_s, seen.last_token_s) == (1.0, 3.0)
    assert (seen.prompt_tokens, seen.output_tokens, seen.finish_reason) == (12, 5, "length")
    assert seen.tpot_s == pytest.approx(0.5)
    assert seen.error == ""
    assert seen.text == ""


@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_however_it_is_cut_into_reads_it_says_the_same(size: int, line_end: str) -> None:
    parts = [delta(role="assistant"), *(delta(content=f"w{n}") for n in range(200)), delta("stop")]
    body = b"".join(event(part, line_end=line_end) for part in parts) + usage() + DONE
    seen = seen_of(*(body[place : place + size] for place in range(0, len(body), size)))
    assert (seen.output_tokens, seen.finish_reason) == (5, "stop")
    assert seen.first_token_s is not None
    assert seen.last_token_s is not None
    assert 0 <= seen.first_token_s <= seen.last_token_s


RECORDED = Path(__file__).parents[2] / "recorded"


@pytest.mark.parametrize("size", [90, 333, 1500])
@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        ("llamacpp-b11549-chat-ngram.http", True),
        ("vllm-0.32.0-chat-ngram.http", True),
        ("sglang-0.5.23-chat.http", False),
    ],
)
def test_of_a_real_stream_it_says_what_the_load_generator_says(name: str, drafts: bool, size: int) -> None:
    body = ResponseReader().feed((RECORDED / name).read_bytes())
    reads = [(place / 1e4, body[place : place + size]) for place in range(0, len(body), size)]
    observed = ObservedAnswer(keeps_text=True)
    for arrived_s, read in reads:
        observed.feed(arrived_s, read)
    seen, told = observed.result(), read_stream(reads)
    assert (bool(told.drafted), bool(told.output_tokens)) == (drafts, True)
    assert (seen.first_token_s, seen.last_token_s) == (told.first_token_s, told.last_token_s)
    assert (seen.prompt_tokens, seen.output_tokens) == (told.prompt_tokens, told.output_tokens)
    assert (seen.drafted, seen.accepted, seen.finish_reason) == (
        told.drafted,
        told.accepted,
        told.finish_reason,
    )
    assert seen.text == told.text


@pytest.mark.parametrize(
    ("details", "drafted", "accepted"),
    [
        ({"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1}, 4, 3),
        ({"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 2}, 2, 0),
        # What servers say that know no predictions.
        ({"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}, None, None),
        ({"accepted_prediction_tokens": 3}, None, None),
        ({"accepted_prediction_tokens": -3, "rejected_prediction_tokens": 1}, None, None),
        ({"accepted_prediction_tokens": "3", "rejected_prediction_tokens": 1}, None, None),
        ("many", None, None),
    ],
)
def test_the_standard_fields_of_predictions_are_read(
    details: object, drafted: int | None, accepted: int | None
) -> None:
    seen = seen_of(*words("a"), usage(completion_tokens_details=details), DONE)
    assert (seen.drafted, seen.accepted) == (drafted, accepted)


def test_an_error_in_the_stream_is_said() -> None:
    seen = seen_of(*words("a"), event({"error": {"message": "out of memory", "code": 500}}), DONE)
    assert seen.error == "out of memory"
    assert len(seen_of(event({"error": {"message": "x" * 9000}})).error) == 200


def test_an_answer_that_comes_whole_has_counts_and_no_first_token() -> None:
    body = {
        "choices": [{"message": {"content": "Yes.", "reasoning": "Hm. "}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    raw = b" \n" + json.dumps(body, indent=1).encode()
    seen = seen_of(b"  ", raw[:9], raw[9:], keeps_text=True)
    assert (seen.first_token_s, seen.last_token_s, seen.tpot_s) == (None, None, None)
    assert (seen.prompt_tokens, seen.output_tokens, seen.finish_reason) == (12, 5, "stop")
    assert seen.text == "Hm. Yes."
    assert seen_of(raw).text == ""


@pytest.mark.parametrize("text", ["plain", 'ünïcode 🦊\n\r\t\x1b[31m"quoted"\\', "x" * 30_000])
def test_text_is_kept_where_that_was_asked_for(text: str) -> None:
    seen = seen_of(ROLE, *words(text, "!"), event(delta("stop")), usage(), DONE, keeps_text=True)
    assert seen.text == text + "!"


@pytest.mark.slow
def test_the_last_event_may_be_as_long_as_every_step_of_an_answer() -> None:
    steps = [3] * 100_000
    counts = {"num_draft_tokens": 10**6, "num_accepted_draft_tokens": 300_000}
    speculative = {**counts, "per_step_accepted": steps, "per_step_drafted": [5] * 100_000}
    last = event({"usage": {"completion_tokens": 400_000}, "metrics": {"speculative_decoding": speculative}})
    assert 600_000 < len(last) < LINE_BYTES_MAX
    pieces = [last[place : place + 65_536] for place in range(0, len(last), 65_536)]
    seen = seen_of(*words(*["word"] * 50), *pieces, DONE)
    assert (seen.output_tokens, seen.drafted) == (400_000, 10**6)


def endless(kind: str) -> bytes:
    return {
        "no line end": b"data: " + b"x" * 65_530,
        "binary": bytes(range(1, 9)) * 8192,
        "blank lines": b"\n" * 65_536,
        "spaces": b" " * 65_536,
        "one document": b'{"a' * 20_000,
        "comments": b": ping\n\n" * 8192,
        "long lines": b"data: " + b"y" * 60_000 + b"\n",
    }[kind]


@pytest.mark.parametrize(
    ("kind", "keeps_text"),
    [
        *((kind, False) for kind in ("no line end", "binary", "blank lines", "spaces", "one document")),
        *((kind, False) for kind in ("comments", "long lines")),
        *((kind, True) for kind in ("no line end", "binary", "one document", "long lines")),
    ],
)
def test_an_endless_answer_takes_bounded_memory(kind: str, keeps_text: bool) -> None:
    observed = ObservedAnswer(keeps_text=keeps_text)
    body = endless(kind)
    tracemalloc.start()
    try:
        for second in range(150):
            observed.feed(float(second), body)
        held = tracemalloc.get_traced_memory()[0]
        observed.result()
    finally:
        tracemalloc.stop()
    # The reader that keeps text has a line of its own.
    assert held < (6 << 20 if keeps_text else 3 << 20)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 31, 32, 33, 100])
@pytest.mark.parametrize("together", [1, 3])
def test_chunks_that_are_passed_on_unread_change_nothing_of_what_is_seen(count: int, together: int) -> None:
    texts = words(*(f"word {number}" for number in range(count)))
    tokens = {"prompt_tokens": 12, "completion_tokens": count}
    last = [event(delta("length")), event({"choices": [], "usage": tokens})]
    reads = [b"".join(texts[place : place + together]) for place in range(0, count, together)] + last
    lazy, written, now = ObservedAnswer(), bytearray(), [0.0]
    lazy.feed(0.0, ROLE)
    pass_on = lazy.passing(written.extend, lambda: now[0])
    assert pass_on is None, "no text has come yet"
    lazy.feed(1.0, reads[0])
    pass_on = lazy.passing(written.extend, lambda: now[0])
    assert pass_on is not None
    for second, body in enumerate(reads[1:], start=2):
        now[0] = float(second)
        assert pass_on(b"%x\r\n%b\r\n" % (len(body), body))
        assert lazy.heard_s == second
    assert lazy.ends_with((b"\n\n",))
    lazy.feed(now[0] + 1, DONE)
    assert lazy.result() == seen_of(ROLE, *reads, DONE)
