"""Servers that misbehave: each ends the command with its cause in words, never with a traceback.

To add a case: a row of the table, with what the server does at a path and what the user must be told.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from server import (
    COMPLETIONS,
    EVENTS,
    METRICS,
    MODELS,
    SLOTS,
    Behaviour,
    HostileServer,
    Talk,
    answers,
    chunk,
    every,
    head,
    raw,
    redirects,
    resets,
    streams_events,
    zipped,
)
from watched import SMALL, attach

from running import Cli
from speclift.core.arm import ServerSettings, baseline_arm
from speclift.core.engine_spec import AttachSettings
from speclift.engines.attach.kind import Attach, AttachedServer

LOGIN = "<html><head><style>p {}</style></head><body><p>Please sign in</p></body></html>"
DEEP = "[" * 100_000
DIGITS = "9" * 5000
# As it might stand in an error: megabytes on which a careless search for tags would spend minutes.
SLOW_PAGE = "<script " * 500_000
NO_LIST = "does not list models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the server does at a path, and words that the user must be told."""

    path: str
    what: str
    behaviour: Behaviour
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


def at_models(what: str, behaviour: Behaviour, *words: str) -> Case:
    return Case(path=MODELS, what=what, behaviour=behaviour, words=words)


def at_completions(what: str, behaviour: Behaviour, *words: str) -> Case:
    return Case(path=COMPLETIONS, what=what, behaviour=behaviour, words=("6 x ", *words))


def says(text: str) -> Behaviour:
    return answers(f'{{"data": {text}}}')


MODEL_CASES = [
    at_models("is a login page", answers(LOGIN), NO_LIST),
    at_models("is 500", answers("boom", status=500), "answered 500: boom"),
    at_models("is 401", answers({"detail": "who?"}, status=401), "answered 401: who?", "--api-key-env"),
    at_models("is 500 with megabytes of tags", answers(SLOW_PAGE, status=500), "answered 500"),
    at_models("is reset", resets, "did not answer", "reset"),
    at_models("is zipped", zipped({"data": []}), "compression (gzip)"),
    at_models("is no HTTP", raw(b"SSH-2.0-OpenSSH\r\n"), "did not answer"),
    at_models("has an odd status", raw(b"HTTP/1.1 \xb2\xb900 OK\r\n\r\n"), "did not answer"),
    at_models("has an odd length", raw(head(content_length="many") + b"{}"), "not a content length"),
    at_models("is cut", raw(head(content_length=99) + b'{"data"'), "did not answer"),
    at_models("is cut in a chunk", raw(head(transfer_encoding="chunked") + b"5\r\nab"), "did not answer"),
    at_models("has a negative chunk", raw(head(transfer_encoding="chunked") + b"-5\r\nab"), "/v1/models"),
    at_models("is deep", answers(DEEP), NO_LIST),
    at_models("is deep inside", says(DEEP), NO_LIST),
    at_models("is 5,000 digits", answers(DIGITS), NO_LIST),
    at_models("lists 5,000 digits", says(f'[{{"id": {DIGITS}}}]'), NO_LIST),
    at_models("is null", answers("null"), NO_LIST),
    at_models("lists a number", says("7"), NO_LIST),
    at_models("lists a text", says('"abc"'), NO_LIST),
    at_models("lists pairs", says('[[["id", "m"]]]'), NO_LIST),
    at_models("lists models without a name", says("[{}]"), NO_LIST),
    at_models("lists a name that is a number", says('[{"id": 7}]'), NO_LIST),
    at_models("lists a name that is an object", says('[{"id": {"a": 1}}]'), NO_LIST),
    at_models("lists no models", says("[]"), "lists no models"),
]
COMPLETION_CASES = [
    at_completions("is 429", answers("slow down", status=429), "429: slow down", "limits the request rate"),
    at_completions("is 500", answers({"error": {"message": "boom"}}, status=500), "500: boom"),
    at_completions("is 500 with megabytes of tags", answers(SLOW_PAGE, status=500), "http-error: 500"),
    at_completions("is 500 with colours", answers("\x1b[31mred", status=500), "500: \\x1b[31mred"),
    at_completions("is 500 and deep", answers('{"error":' + DEEP, status=500), "500: "),
    at_completions("is reset", resets, "ConnectionResetError"),
    at_completions("is a login page", answers(LOGIN, kind="text/html"), "event stream: Please sign in"),
    at_completions("is zipped", zipped({"id": "m"}), "compression (gzip)"),
    at_completions(
        "is no stream", answers({"object": "chat.completion"}), "not an event stream", "chat.completion"
    ),
    at_completions("is empty", answers(""), "an empty answer"),
    at_completions("is cut in a chunk", streams_events(chunk("a"), ends=b""), "closed the connection"),
    at_completions("ends without a finish", streams_events(chunk("a")), "without a finish_reason"),
    at_completions("says an error", streams_events({"error": {"message": "no memory"}}), "no memory"),
    at_completions("says an odd error", streams_events({"error": [1, 2]}), "in the stream: ", "[1, 2]"),
    at_completions("is no HTTP", raw(b"SSH-2.0-OpenSSH\r\n"), "not an HTTP answer"),
    at_completions("has an odd status", raw(b"HTTP/1.1 \xb2\xb900 OK\r\n\r\n"), "not an HTTP answer"),
    at_completions("has an odd length", raw(head(content_length="\xb2")), "not a content length"),
    at_completions("has a long length", raw(head(content_length=DIGITS)), "not a content length"),
    at_completions("ends after its head", raw(head(content_length=9)), "closed the connection"),
    at_completions("is deep", streams_events(DEEP), "not a valid chunk in the stream"),
    at_completions("has choices of another type", streams_events({"choices": 7}), "not a valid chunk"),
    at_completions("has text of another type", streams_events(chunk(7)), "not a valid chunk"),  # type: ignore[arg-type]
    at_completions(
        "is 5,000 digits", streams_events('{"choices": [], "usage": ' + DIGITS + "}"), "not a valid chunk"
    ),
    at_completions("moves away", redirects("http://127.0.0.1:9/v1"), "302: moved to http://127.0.0.1:9/v1"),
]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", [*MODEL_CASES, *COMPLETION_CASES], ids=str)
def test_a_server_that_misbehaves_is_an_operating_error_with_its_cause(case: Case, cli: Cli) -> None:
    with HostileServer({case.path: case.behaviour}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--study", "s")
    assert result.code == 1, result.stderr
    said = " ".join(result.stderr.split())
    assert [word for word in case.words if word not in said] == [], result.stderr


@pytest.mark.timeout(60)
def test_an_arm_that_fails_says_its_causes_as_the_baseline_does(cli: Cli) -> None:
    bad = every(2, answers("boom", status=500), answers("slow down", status=429))
    with HostileServer() as good, HostileServer({COMPLETIONS: bad}) as server:
        result = cli("measure", *attach(good.url, server.url), *SMALL, "--json", "--study", "s")
    assert result.code == 0, result.stderr
    (finding,) = [each for each in result.document["findings"] if each["check"] == "failed-requests"]
    assert finding["message"].startswith("spec: 4 of 4 requests failed\n  2 x http-error: ")
    assert "429: slow down" in finding["message"]
    assert "500: boom" in finding["message"]


# Pages that a server need not have: what they say wrongly is not used.

LLAMA = {"/props": answers({"build_info": "b1"})}
ODD_SLOTS = [
    DEEP,
    DIGITS,
    "7",
    "null",
    '"abc"',
    "[7]",
    "[[]]",
    '[{"n_ctx": "many"}]',
    f'[{{"n_ctx": {"9" * 4000}}}]',
    '[{"n_ctx": -1, "speculative": [1]}]',
    '[{"n_ctx": 1e400}]',
]
ODD_METRICS = [
    "\x00\xff",
    "vllm:generation_tokens_total",
    f"vllm:generation_tokens_total {DIGITS}",
    f'vllm:cache_config_info{{num_gpu_blocks="{DIGITS}",block_size="16"}} 1',
    'vllm:cache_config_info{num_gpu_blocks="²",block_size="１"} 1',
    "vllm:generation_tokens_total{" * 1000,
]


def attached(server: HostileServer) -> AttachedServer:
    engine = Attach(ServerSettings(model=""), AttachSettings(baseline_url=server.url))
    assert len(engine.version()) < 200
    return asyncio.run(engine.launch(baseline_arm(), log=Path("unused")))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("page", ODD_SLOTS, ids=lambda page: page[:30])
def test_slots_of_another_shape_are_no_slots(page: str) -> None:
    with HostileServer({**LLAMA, SLOTS: answers(page)}) as server:
        assert attached(server).kv_tokens is None
    assert server.asked_for(SLOTS)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("page", ODD_METRICS, ids=lambda page: page[:30])
def test_metrics_of_another_shape_are_no_metrics(page: str) -> None:
    told = {"/version": answers({"version": "0.32.0"}), METRICS: answers(page, kind="text/plain")}
    told[MODELS] = answers({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": "long"}]})
    with HostileServer(told) as server:
        up = attached(server)
        assert asyncio.run(up.counters()).values == {}
    assert (up.kv_tokens, up.settings) == (None, {})


@pytest.mark.timeout(60)
@pytest.mark.parametrize("field", ["owned_by", "max_model_len", "version"])
@pytest.mark.parametrize(
    "value", [[], {}, 7, None, True, "x" * 100_000, 10**400], ids=lambda value: str(value)[:9]
)
def test_a_field_of_another_type_is_as_if_it_were_not_there(field: str, value: object) -> None:
    told = {
        MODELS: answers({"data": [{"id": "m", field: value}]}),
        "/version": answers({"version": value if field == "version" else "1"}),
    }
    with HostileServer(told) as server:
        up = attached(server)
    assert all(len(text) < 200 for text in up.settings.values())


@pytest.mark.timeout(60)
def test_a_study_on_a_server_that_says_odd_things_of_itself_is_measured(cli: Cli) -> None:
    odd = {**LLAMA, SLOTS: answers(f'[{{"n_ctx": {"9" * 4000}}}]'), METRICS: answers("\x00 \xff" + DIGITS)}
    with HostileServer(odd) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--json", "--study", "s")
    assert result.code == 0, result.stderr


# Servers that behave.


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_server_that_behaves_is_measured(cli: Cli) -> None:
    with HostileServer() as server:
        result = cli("measure", *attach(server.url, server.url), *SMALL, "--json", "--study", "s")
    assert result.code == 0, result.stderr
    assert {cell["failed"] for cell in json.loads(result.stdout)["cells"]} == {0}


@pytest.mark.timeout(60)
def test_comments_before_and_within_a_stream_are_no_trouble(cli: Cli) -> None:
    def commented(talk: Talk) -> None:
        body = b": wait\n\n" + b"".join(
            b"data: " + json.dumps(each).encode() + b"\n\n: ping\n\n"
            for each in (chunk("a"), chunk("b"), chunk(None, finish="stop", usage={"completion_tokens": 3}))
        )
        talk.send(head(kind=EVENTS, content_length=len(body)) + body)

    with HostileServer({COMPLETIONS: commented}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--json", "--study", "s")
    assert result.code == 0, result.stderr
    assert {cell["failed"] for cell in json.loads(result.stdout)["cells"]} == {0}
