"""The soak's traffic: made from a seed, reproducible at any place, and holding what its promises say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from speclift.core.records import AnswerChoice, ToolCall
from speclift.core.traffic import Message, Request
from speclift.lossless.soak.prompts import SoakDialect, nonces_in
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, refused_kinds, soak_traffic
from speclift.lossless.soak.values import Exposure, SoakAnswer, SoakRequest, Stage

OWN = Request(id="p1", messages=(Message(role="user", content="What is a heron?"),), max_tokens=64)
EXPOSURE = Exposure(
    arm="spec",
    launch=1,
    stage=Stage.DURING,
    sent_s=0.0,
    ended_s=1.0,
    streams=1,
    streams_max=1,
    before=0,
    joined=0,
)


def every_kind(**changed: object) -> SoakTraffic:
    settings = {
        "seed": 5,
        "dialect": SoakDialect.VLLM,
        "prompts": (OWN,),
        "adapters": ("tuned",),
        "banned": ((22, "7"),),
    }
    return soak_traffic(**{**settings, **changed})  # type: ignore[arg-type]


def first_of(traffic: SoakTraffic, kind: SoakKind) -> SoakRequest:
    return next(traffic.opening(slot) for slot in range(2000) if traffic.kind_of(slot) is kind)


def answered(request: SoakRequest, *calls: ToolCall, text: str = "", **changed: object) -> SoakAnswer:
    choice = AnswerChoice(text=text, finish_reason="stop", calls=calls)
    return SoakAnswer(**{"index": request.index, "exposure": EXPOSURE, "choices": (choice,), **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("context_tokens", [16, 256, 2048])
def test_whatever_the_limit_every_kind_of_request_can_be_made(context_tokens: int) -> None:
    for tokens_max in (*range(1, 130), 512, 4096):
        traffic = every_kind(tokens_max=tokens_max, context_tokens=context_tokens)
        for kind in sorted(traffic.kinds):
            request = replace(traffic, kinds=frozenset({kind})).opening(tokens_max)
            assert (request.promise.tokens_max or 0) >= 1, (tokens_max, kind)


def test_a_nonce_stands_in_its_own_prompt_and_in_no_other() -> None:
    traffic = every_kind()
    requests = [traffic.opening(slot) for slot in range(400)]
    owners: dict[str, set[int]] = {}
    for request in requests:
        for nonce in nonces_in(request.body):
            owners.setdefault(nonce, set()).add(request.index)
        assert request.nonce in request.body

    assert all(len(indices) == 1 for indices in owners.values())


def test_the_users_own_prompts_are_sent_as_they_are() -> None:
    request = first_of(every_kind(), SoakKind.OWN)

    assert json.loads(request.body)["messages"] == [{"role": "user", "content": "What is a heron?"}]
    assert request.nonce == ""
    assert nonces_in(request.body) == ()


def test_what_is_copied_stands_in_the_prompt_with_the_nonce() -> None:
    traffic = every_kind()
    for kind in (SoakKind.COPY, SoakKind.STOP, SoakKind.LONG, SoakKind.PREFIX, SoakKind.UNICODE):
        request = first_of(traffic, kind)
        assert request.nonce in request.copies
        assert request.copies in json.loads(request.body)["messages"][-1]["content"]


def test_a_stop_string_stands_once_in_the_text_across_two_words() -> None:
    traffic = every_kind()
    stops = [traffic.opening(slot) for slot in range(400) if traffic.kind_of(slot) is SoakKind.STOP]

    for request in stops:
        (stop,) = request.promise.stops
        assert json.loads(request.body)["stop"] == [stop]
        assert request.copies.count(stop) == 1
        assert " " in stop.strip()
        assert request.copies.index(stop) > len(request.copies) // 4


@pytest.mark.parametrize("name", ["grammar", "thinking_budget_tokens", "structured_outputs", "min_tokens"])
def test_a_server_of_no_known_engine_is_asked_nothing_beyond_the_api(name: str) -> None:
    traffic = every_kind(dialect=SoakDialect.OPENAI)

    assert all(name not in json.loads(traffic.opening(slot).body) for slot in range(300))


def test_a_session_goes_on_from_what_was_answered() -> None:
    traffic = every_kind()
    request = first_of(traffic, SoakKind.AGENT)
    call = ToolCall(name="find_order", arguments=json.dumps({"order": request.nonce, "colour": "red"}))
    later = traffic.following(request, answered(request, call))
    assert later is not None
    asked = json.loads(later.body)["messages"]

    assert (later.session, later.turn, later.index) == (request.session, 1, request.index + 1)
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "user"]
    assert asked[1]["tool_calls"][0]["function"]["arguments"] == call.arguments
    assert later.nonce == request.nonce


@pytest.mark.parametrize("arguments", ["{", "", "[" * 100_000])
def test_a_session_does_not_go_on_from_arguments_that_are_no_json(arguments: str) -> None:
    traffic = every_kind()
    request = first_of(traffic, SoakKind.AGENT)

    assert (
        traffic.following(request, answered(request, ToolCall(name="add_note", arguments=arguments))) is None
    )


def test_a_session_goes_on_from_the_calls_that_the_limit_left_whole() -> None:
    """A small model that has to call tools may call without end."""
    traffic = every_kind()
    request = first_of(traffic, SoakKind.AGENT)
    whole = ToolCall(name="find_order", arguments='{"order": 1}')
    cut = ToolCall(name="find_order", arguments='{"ord')
    limit = request.promise.tokens_max

    def following(*calls: ToolCall) -> SoakRequest | None:
        choice = AnswerChoice(text="", finish_reason="tool_calls", calls=calls)
        return traffic.following(request, answered(request, choices=(choice,), tokens=limit))

    later = following(whole, cut)
    assert later is not None
    (call,) = json.loads(later.body)["messages"][1]["tool_calls"]
    assert call["function"] == {"name": "find_order", "arguments": whole.arguments}
    assert following(whole) is not None
    assert following(cut) is None
    # What vLLM says of arguments that had not begun.
    assert following(ToolCall(name="find_order", arguments="{}")) is None


def test_what_the_baseline_refuses_each_time_is_not_offered() -> None:
    traffic = every_kind()
    schema, copy = first_of(traffic, SoakKind.SCHEMA), first_of(traffic, SoakKind.COPY)
    refused = answered(schema, choices=(), error="no grammar backend", status=400)

    assert refused_kinds([("schema", refused), ("schema", refused), ("copy", answered(copy))]) == {
        SoakKind.SCHEMA: "no grammar backend"
    }
    assert refused_kinds([("schema", refused)]) == {}
    assert refused_kinds([("schema", refused), ("schema", refused), ("schema", answered(schema))]) == {}
