"""Bodies of the fake server: what is refused, and how each engine's answers are worded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from speclift.core.errors import UsageError
from speclift.engines.metrics import read_page
from speclift.testing.fake_dialect import (
    TTFT_BOUNDS_S,
    Reply,
    ServedTotals,
    chunk_spans,
    metrics_text,
    read_body,
)
from speclift.testing.fake_truth import FakeAnswer, Truth, script_for


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "two words"}], **fields}


def reply_to(truth: Truth, **fields: Any) -> Reply:
    ask, form = read_body(chat(temperature=0, **fields), is_chat=True)
    return Reply(truth, script_for(truth, ask), form, id="x", created=0, prompt_s=0.5)


def script_of(truth: Truth, *, tokens: int) -> FakeAnswer:
    return reply_to(truth, max_tokens=tokens).script


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "must be a JSON object, saw list"),
        ({}, "messages must be a list"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": ["hello"]}, "each message must be an object"),
        ({"messages": [{"role": "user"}]}, "content is a string"),
        ({"messages": [{"role": "user", "content": []}]}, "or a list of texts"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "or a list of texts"),
        (chat(max_tokens=0), "max_tokens must lie in 1..100000, saw 0"),
        (chat(max_completion_tokens=10**9), "max_completion_tokens must lie in 1..100000"),
        (chat(max_tokens="many"), "max_tokens has the wrong type: saw 'many'"),
        (chat(max_tokens=True), "max_tokens has the wrong type: saw True"),
        (chat(temperature=-1), "temperature must be at least 0, saw -1"),
        (chat(temperature=float("nan")), "temperature must be at least 0, saw nan"),
        (chat(stream="yes"), "stream has the wrong type: saw 'yes'"),
        (chat(stream_options=[1]), "stream_options has the wrong type"),
        (chat(seed=1.5), "seed has the wrong type"),
        (chat(speclift_segment=3), "speclift_segment has the wrong type"),
        (chat(n=9), "n must lie in 1..8, saw 9"),
        (chat(grammar="root ::= [a]"), "grammar is nothing that this server knows"),
    ],
)
def test_a_malformed_chat_body_is_refused_with_what_was_wrong(body: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_body(body, is_chat=True)
    assert said in str(caught.value)


def as_read(payload: object) -> Any:
    """As whoever asked reads it."""
    return json.loads(json.dumps(payload))


@pytest.mark.parametrize(
    ("prompt", "fields", "expected"),
    [
        ("nothing said", {}, ""),
        ("marked [segment:code] inside", {}, "code"),
        ("said in the body", {"speclift_segment": "chat"}, "chat"),
        ("body wins over [segment:code]", {"speclift_segment": "chat"}, "chat"),
        ("[segment:] or [segment:two words] is no name", {}, ""),
    ],
)
def test_the_segment_comes_from_the_body_or_else_from_a_marker(
    prompt: str, fields: dict[str, Any], expected: str
) -> None:
    ask, _ = read_body({"prompt": prompt, **fields}, is_chat=False)
    assert ask.segment == expected


@pytest.mark.parametrize(
    ("size", "k", "expected"),
    [
        (1, 0, [[(0, 1)], [(1, 2)], [(2, 3)], [(3, 4)], [(4, 5)]]),
        (3, 0, [[(0, 1)], [], [], [(1, 4)], [(4, 5)]]),
        (9, 0, [[(0, 1)], [], [], [], [(1, 5)]]),
        (1, 3, [[(0, 1)], [(1, 2), (2, 3), (3, 4), (4, 5)]]),
        (3, 3, [[(0, 1)], [(1, 4), (4, 5)]]),
        ("step", 3, [[(0, 1)], [(1, 5)]]),
    ],
)
def test_the_first_token_leaves_at_once_and_later_ones_as_chunks_fill(
    size: int | str, k: int, expected: list[list[tuple[int, int]]]
) -> None:
    script = script_of(Truth(k=k, acceptance=1.0), tokens=5)
    assert list(chunk_spans(script, tokens_per_chunk=size)) == expected


@pytest.mark.parametrize(
    ("flavour", "is_chat", "include_usage", "expected"),
    [
        ("llamacpp", True, True, [(1, set()), (0, {"usage", "timings"})]),
        ("llamacpp", True, False, [(1, {"timings"})]),
        ("llamacpp", False, False, [(1, {"usage", "timings"})]),
        ("llamacpp", False, True, [(1, {"usage", "timings"})]),
        ("vllm", True, True, [(1, set()), (0, {"usage", "metrics"})]),
        ("vllm", True, False, [(1, set())]),
        ("vllm", False, True, [(1, set()), (0, {"usage", "metrics"})]),
        ("plain", True, True, [(1, set()), (0, {"usage"})]),
        ("plain", True, False, [(1, set())]),
    ],
)
def test_a_stream_closes_with_its_reason_and_the_engine_s_own_figures(
    flavour: str, is_chat: bool, include_usage: bool, expected: list[tuple[int, set[str]]]
) -> None:
    body = {**chat(stream=True, stream_options={"include_usage": include_usage}), "prompt": "two words"}
    truth = Truth(flavour=flavour, k=2)
    ask, form = read_body(body, is_chat=is_chat)
    reply = Reply(truth, script_for(truth, ask), form, id="x", created=0, prompt_s=0.5)
    chunks = as_read(reply.closing(decode_s=1.0))
    figures = {"usage", "timings", "metrics"}
    assert [(len(chunk["choices"]), figures & chunk.keys()) for chunk in chunks] == expected
    assert chunks[0]["choices"][0]["finish_reason"] == "length"


def test_running_timings_count_tokens_one_by_one_and_drafts_step_by_step() -> None:
    reply = reply_to(Truth(k=4), max_tokens=40, stream=True, timings_per_token=True)
    spans = chunk_spans(reply.script, tokens_per_chunk=1)
    timings = [
        (burst, as_read(reply.tokens(start, end, burst, decode_s=1.0))["timings"])
        for burst, ranges in zip(reply.script.bursts, spans, strict=True)
        for start, end in ranges
    ]
    assert [timing["predicted_n"] for _, timing in timings] == list(range(1, 41))
    assert "draft_n" not in timings[0][1]
    for burst, timing in timings[1:]:
        assert (timing["draft_n"], timing["draft_n_accepted"]) == (burst.drafted, burst.accepted)


def test_vllm_step_metrics_agree_with_the_script() -> None:
    reply = reply_to(Truth(flavour="vllm", k=3), max_tokens=60)
    metrics = as_read(reply.whole(decode_s=1.0))["metrics"]["speculative_decoding"]
    drafted_steps = [step for step in reply.script.steps if step.drafted]
    accepted = [step.accepted for step in drafted_steps]
    assert metrics == {
        "mean_acceptance_length": 1 + sum(accepted) / len(accepted),
        "draft_acceptance_rate": sum(accepted) / sum(step.drafted for step in drafted_steps),
        "acceptance_histogram": [accepted.count(j) for j in range(4)],
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(step.drafted for step in drafted_steps),
        "num_spec_tokens": 3,
        "per_step_accepted": accepted,
        "per_step_drafted": [step.drafted for step in drafted_steps],
    }


def test_vllm_counters_are_the_sum_of_the_step_metrics() -> None:
    truth, totals = Truth(flavour="vllm", k=3), ServedTotals()
    replies = [reply_to(truth, max_tokens=tokens) for tokens in range(2, 40)]
    for reply in replies:
        totals.add(reply.script)
    metrics = [as_read(reply.whole(decode_s=1.0))["metrics"]["speculative_decoding"] for reply in replies]
    accepted = [count for request in metrics for count in request["per_step_accepted"]]
    expected = {
        "generation_tokens_total{%s}": sum(range(2, 40)),
        "prompt_tokens_total{%s}": 2 * len(replies),
        "spec_decode_num_drafts_total{%s}": len(accepted),
        "spec_decode_num_draft_tokens_total{%s}": sum(request["num_draft_tokens"] for request in metrics),
        "spec_decode_num_accepted_tokens_total{%s}": sum(accepted),
        "num_requests_running{%s}": 2,
        "num_requests_waiting{%s}": 1,
    }
    for position in range(3):
        name = 'spec_decode_num_accepted_tokens_per_pos_total{%s,position="' + f'{position}"}}'
        expected[name] = sum(count > position for count in accepted)
    lines = metrics_text(truth, totals, running=2, waiting=1).splitlines()
    labels = 'engine="0",model_name="fake"'
    assert {f"vllm:{name % labels} {value}" for name, value in expected.items()} <= set(lines)


def test_vllm_s_histograms_count_every_request_once_and_cumulate() -> None:
    totals = ServedTotals(started_s=1000.5)
    for ttft_s, tokens in ((0.0005, 1), (0.02, 11), (0.03, 11), (9999.0, 11)):
        totals.add_times(ttft_s=ttft_s, decode_s=0.3, tokens=tokens)

    page = metrics_text(Truth(flavour="vllm", k=2), totals, running=0, waiting=0)
    reading = read_page(page, at_s=0.0, wall_s=0.0)

    ttft, tpot = reading.totals.ttft, reading.totals.tpot
    assert ttft is not None
    assert (
        dict(zip(ttft.bounds, ttft.counts, strict=True))
        == {
            **dict.fromkeys((0.001, 0.005, 0.01), 1.0),
            0.02: 2.0,  # a bound is its own bucket's
            **dict.fromkeys(TTFT_BOUNDS_S[4:], 3.0),
            float("inf"): 4.0,
        }
    )
    assert tpot is not None
    assert tpot.counts[:2] == (1.0, 1.0)  # of one token: zero, as vLLM has it
    assert tpot.total == reading.totals.requests == 4
    assert reading.started_s == 1000.5
    assert 'vllm:e2e_request_latency_seconds_bucket{engine="0",model_name="fake",le="0.5"} 3' in page
    assert "# TYPE vllm:e2e_request_latency_seconds histogram" in page
    assert reading.totals.prefix_queries == reading.totals.prefix_hits == 0
