"""The lossless gate on servers that answer in other shapes than they should: a result or a message, no traceback."""

from __future__ import annotations

from typing import Any

import pytest
from server import (
    COMPLETIONS,
    Behaviour,
    HostileServer,
    Talk,
    after,
    answers,
    raw,
    streams,
    streams_events,
)
from watched import attach

from running import Cli

SIZE = ("--segment", "chat", "--max-tokens", 4, "--temperature", "0,1", "--detect", 0.5, "--requests", 3)
DEEP = "[" * 100_000
WHOLE: dict[str, Any] = {"text": "a b", "message": {"content": "a b"}, "finish_reason": "length"}

pytestmark = pytest.mark.timeout(100)


def whole(**fields: object) -> Behaviour:
    """A completion that is streamed where that was asked for, with these fields in its choice where not."""
    plain = answers({"choices": [{**WHOLE, **fields}], "usage": {"completion_tokens": 2}})
    flowing = streams(tpot_s=0.0)

    def behave(talk: Talk) -> None:
        (flowing if talk.body.get("stream") else plain)(talk)

    return behave


ODD_ANSWERS: dict[str, Behaviour] = {
    "logprobs are a list": whole(logprobs=[1]),
    "logprobs hold words": whole(logprobs={"content": [{"token": 7, "logprob": "x", "top_logprobs": 7}]}),
    "logprobs are old and odd": whole(
        logprobs={"tokens": [1], "token_logprobs": ["x"], "top_logprobs": ["x"]}
    ),
    "token ids are words": whole(token_ids=["a", None]),
    "prompt ids are a number": whole(token_ids=[1], prompt_token_ids=7),
    "a finish reason is a list": whole(finish_reason=[1]),
    "the text is a number": whole(message={"content": 7}),
    "choices are a number": answers({"choices": 7}),
    "a choice is a number": answers({"choices": [7]}),
    "it is deep": answers(DEEP),
    "it is deep inside": answers('{"choices": ' + DEEP),
    "it has 5,000 digits": answers('{"choices": [{"finish_reason": ' + "9" * 5000 + "}]}"),
    "it streams choices that are none": streams_events({"choices": 7}, {"choices": [7]}),
    "it streams what is deep": streams_events(DEEP),
    "it is no HTTP": raw(b"hello\r\n"),
}


@pytest.mark.parametrize("behaviour", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
def test_answers_of_another_shape_end_in_a_result_or_a_message(behaviour: Behaviour, cli: Cli) -> None:
    told = {COMPLETIONS: behaviour, "/v1/completions": behaviour}
    with HostileServer(told) as server, HostileServer(told) as other:
        result = cli("verify", *attach(server.url, other.url), *SIZE, "--json")
    assert result.code in {0, 1, 5, 6}, result.stderr
    assert result.code != 1 or "error: " in result.stderr


def without(*fields: str, answered: list[str]) -> Behaviour:
    """A server that refuses these fields, as strict ones refuse what they do not know; and which it answered."""
    refusing = answers({"error": {"message": "Extra inputs are not permitted"}}, status=400)

    def behave(talk: Talk) -> None:
        seed = talk.body.get("seed", 0)
        words = "".join(f" word{(place * 7919 + seed) % 9973}" for place in range(talk.body["max_tokens"]))
        said = {"content": [{"token": words, "logprob": -0.1, "top_logprobs": []}]}
        listed = {"logprobs": said} if talk.body.get("logprobs") else {}
        talking = (
            streams(tpot_s=0.0) if talk.body.get("stream") else whole(message={"content": words}, **listed)
        )
        if set(fields) & set(talk.body):
            return refusing(talk)
        answered.extend(talk.body)
        return talking(talk)

    return behave


@pytest.mark.parametrize(
    "fields",
    [(), ("return_token_ids",), ("logprobs",), ("logprobs", "return_token_ids")],
    ids=lambda fields: " and ".join(fields) or "nothing",
)
def test_what_a_server_refuses_beside_the_text_leaves_nothing_unasked(
    fields: tuple[str, ...], cli: Cli
) -> None:
    answered: list[str] = []
    behaviour = without(*fields, answered=answered)
    told = {COMPLETIONS: behaviour, "/v1/completions": behaviour}
    with HostileServer(told) as server, HostileServer(told) as other:
        flags = ("--segment", "chat", "--max-tokens", 4, "--requests", 3, "--temperature", 0)
        result = cli("verify", *attach(server.url, other.url), *flags, "--json")
    greedy = result.document["greedy"]
    assert greedy["refused"] == 0, greedy["message"]
    assert all(check["tokens"] > 0 for check in greedy["checks"]), greedy["checks"]
    assert "pass" in {edge["result"] for edge in result.document["arms"][0]["edges"]}
    assert ("logprobs" in answered) == ("logprobs" not in fields)


def scored(row: object) -> Behaviour:
    """As vLLM lists prompt_logprobs, with this in the place of a token's."""

    def behave(talk: Talk) -> None:
        ids = talk.body.get("prompt")
        rows = [row] * (len(ids) if isinstance(ids, list) else 2)
        choice = {**WHOLE, "token_ids": [1, 2], "prompt_token_ids": [3], "prompt_logprobs": rows}
        answers({"choices": [choice], "usage": {"completion_tokens": 2}})(talk)

    return behave


ROWS: dict[str, object] = {
    "a number": 7,
    "null": None,
    "words": {"a": "b"},
    "no probability": {"1": {}},
    "another token alone": {"9": {"logprob": -1.0}},
    "a huge number": {"1": {"logprob": 10**400}, "2": {"logprob": 1e308}},
    "a positive one": {"1": {"logprob": 1e6}, "2": {"logprob": 1e6}},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_probabilities_of_another_shape_are_not_scored(row: object, cli: Cli) -> None:
    told = {COMPLETIONS: scored(row), "/v1/completions": scored(row)}
    with HostileServer(told) as server, HostileServer(told) as other:
        result = cli("verify", *attach(server.url, other.url), *SIZE, "--json")
    assert result.code in {0, 1, 5, 6}, result.stderr


LLAMA_PAGES = ["7", "[]", '{"tokens": 7}', '{"tokens": ["a"]}', '{"completion_probabilities": 7}', DEEP, "{}"]


@pytest.mark.parametrize("page", LLAMA_PAGES, ids=lambda page: page[:30])
def test_pages_that_llama_cpp_would_have_otherwise_are_not_scored_with(page: str, cli: Cli) -> None:
    listed = answers({"tokens": [1]})
    law = answers({"completion_probabilities": [{"top_probs": [{"id": 1, "prob": 0.9}]}]})
    told = {
        "/props": answers({"build_info": "b1", "eos_token": 7}),
        "/tokenize": after(2, answers(page), listed),
        "/completion": after(2, answers(page), law),
        "/apply-template": answers(page),
        COMPLETIONS: whole(logprobs={"content": [{"id": 1, "token": "a", "logprob": -0.1}]}),
    }
    with HostileServer(told) as server, HostileServer(told) as other:
        result = cli("verify", *attach(server.url, other.url), *SIZE, "--json")
    assert result.code in {0, 1, 5, 6}, result.stderr
