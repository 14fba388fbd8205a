"""Servers that never end: every read has a size and one deadline, so time and memory are bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from server import (
    COMPLETIONS,
    EVENTS,
    METRICS,
    MODELS,
    Behaviour,
    HostileServer,
    after,
    answers,
    chunk,
    drips,
    endless,
    event,
    hangs,
    head,
    many,
)
from watched import SMALL, attach, watch

from running import Cli
from samples import place, request
from speclift.client.client import Client, now_s
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.records import Outcome, Record
from speclift.engines.attach.detect import PROBE_LIMIT_S, detect, vllm_facts
from speclift.engines.metrics import SAMPLES_MAX, parse_counters
from speclift.http.client import fetch, fetched

# Beside the imports, which take 130 MB, and far below what the server would send.
MEMORY_MAX_BYTES = 400 << 20
CHUNKED = head(kind=EVENTS, transfer_encoding="chunked")
# Long enough that something comes, where something does.
LIMIT_S = 0.4
# So long may a machine that is busy with other things take besides the limit.
SLACK_S = 10.0

pytestmark = pytest.mark.timeout(110)

NEVER_ENDING: dict[str, Behaviour] = {
    "drips a body": drips(b'{"data": [', every_s=0.05),
    "drips a head": drips(b"X-More: 1\r\n", every_s=0.05, start=b"HTTP/1.1 200 OK\r\n"),
    "drips a status line": drips(b"HTTP/1.1 200 OK", every_s=0.05, start=b""),
    "drips chunks": drips(b"1\r\n \r\n", every_s=0.05, start=head(transfer_encoding="chunked")),
    "drips interim answers": drips(b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0.001, start=b""),
    "says nothing": hangs,
    "drips trailers": drips(b"X: 1\r\n", every_s=0.05, start=head(transfer_encoding="chunked") + b"0\r\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", NEVER_ENDING.values(), ids=NEVER_ENDING.keys())
def test_the_limit_is_for_the_whole_answer(behaviour: Behaviour) -> None:
    began_s = time.monotonic()
    with HostileServer({MODELS: behaviour}) as server:
        with pytest.raises(EngineError, match=f"did not answer completely within {LIMIT_S} s"):
            fetch(f"{server.url}{MODELS}", limit_s=LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S + SLACK_S


@pytest.mark.slow
def test_an_error_whose_body_never_ends_is_that_error() -> None:
    slow = drips(b"boom ", every_s=0.01, start=head(503))
    with HostileServer({MODELS: slow}) as server, pytest.raises(EngineError, match="answered 503: boom boom"):
        fetch(f"{server.url}{MODELS}", limit_s=1.0)


@pytest.mark.slow
def test_whoever_does_not_want_the_answer_any_more_is_free_at_once() -> None:
    async def ask_and_leave(url: str) -> float:
        asking = asyncio.create_task(fetched(url, limit_s=60.0))
        await asyncio.sleep(0.3)
        asking.cancel()
        began_s = time.monotonic()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()
        return time.monotonic() - began_s

    with HostileServer({MODELS: hangs}) as server:
        assert asyncio.run(ask_and_leave(f"{server.url}{MODELS}")) < SLACK_S


def test_nobody_at_the_address_is_found_out_within_the_limit() -> None:
    began_s = time.monotonic()
    with pytest.raises(EngineError, match="did not answer"):
        fetch(
            "http://192.0.2.1:9/v1/models", limit_s=LIMIT_S
        )  # a network for documentation: nothing is there
    assert time.monotonic() - began_s < LIMIT_S + SLACK_S


@pytest.mark.slow
def test_pages_that_a_server_need_not_have_share_one_limit() -> None:
    began_s = time.monotonic()
    told = dict.fromkeys(("/version", "/props", "/server_info", "/get_server_info"), hangs)
    with HostileServer(told) as server:
        assert str(detect(server.url, None, limit_s=2 * LIMIT_S)) == "unknown"
        assert time.monotonic() - began_s < 2 * LIMIT_S + SLACK_S / 2
    assert server.asked_for("/server_info") == []  # /props took it all


TOO_LARGE: dict[str, Behaviour] = {
    "a body without a length": endless(b"x" * 1000),
    "a chunk that never ends": endless(
        b"x" * 1000, start=head(transfer_encoding="chunked") + b"ffffffffff\r\n"
    ),
    "chunks": endless(b"40\r\n" + b"x" * 64 + b"\r\n", start=head(transfer_encoding="chunked")),
}


@pytest.mark.parametrize("behaviour", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_a_page_of_any_size_is_broken_off(behaviour: Behaviour) -> None:
    with HostileServer({MODELS: behaviour}) as server, pytest.raises(EngineError, match="more than 8 MiB"):
        fetch(f"{server.url}{MODELS}", limit_s=60.0)


@pytest.mark.slow
def test_a_page_of_any_size_takes_little_time_and_memory(tmp_path: Path) -> None:
    with HostileServer({MODELS: TOO_LARGE["a chunk that never ends"]}) as server:
        seen = watch("measure", *attach(server.url), *SMALL, "--study", "s", cwd=tmp_path)
    assert seen.result.code == 1, seen.result.stderr
    assert "/v1/models sent more than 8 MiB" in seen.result.stderr
    assert seen.memory_bytes < MEMORY_MAX_BYTES
    assert seen.wall_s < PROBE_LIMIT_S + 3 * SLACK_S


def samples() -> Iterator[bytes]:
    return (b"a%d 1\n" % number for number in count())


@pytest.mark.slow
def test_millions_of_samples_take_little_memory_and_leave_the_study_as_it_is(tmp_path: Path) -> None:
    with HostileServer({METRICS: many(samples())}) as server:
        seen = watch("measure", *attach(server.url), *SMALL, "--json", "--study", "s", cwd=tmp_path)
    assert seen.result.code == 0, seen.result.stderr
    assert {cell["failed"] for cell in seen.result.document["cells"]} == {0}
    assert seen.memory_bytes < MEMORY_MAX_BYTES
    assert seen.wall_s < PROBE_LIMIT_S + 3 * SLACK_S


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speclift.engines.attach.kind.PROBE_LIMIT_S", LIMIT_S)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_metrics_that_drip_leave_the_study_as_it_is(cli: Cli) -> None:
    with HostileServer({METRICS: drips(b"a 1\n")}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--json", "--study", "s")
    assert result.code == 0, result.stderr
    assert {cell["failed"] for cell in result.document["cells"]} == {0}
    assert len(server.asked_for(METRICS)) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_metrics_that_hang_later_cost_their_limit_once_and_are_a_finding(cli: Cli) -> None:
    page = after(1, hangs, answers("llamacpp:tokens_total 1\n", kind="text/plain"))
    with HostileServer({METRICS: page}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--requests", 24, "--json", "--study", "s")
    assert result.code == 0, result.stderr
    assert len(server.asked_for(METRICS)) == 2
    assert "metrics-lost" in {finding["check"] for finding in result.document["findings"]}


def test_more_samples_than_an_engine_has_are_refused() -> None:
    page = "".join(f"a{number} 1\n" for number in range(SAMPLES_MAX + 1))
    with pytest.raises(EngineError, match="more than 100,000 samples"):
        parse_counters(page)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "vllm:cache_config_info{" + "a" * 4_000_000 + "} 1\n",
        "vllm:cache_config_info{" + 'a="' * 1_000_000 + "} 1\n",
        "vllm:cache_config_info{" + "a=" * 1_000_000,
        "a" * 4_000_000,
        "a{" * 2_000_000,
        "a 1" + "0" * 4_000_000,
        "a" + " " * 4_000_000,
    ],
    ids=["a long word", "quotes", "no end", "a long name", "braces", "a long number", "spaces"],
)
def test_a_metrics_page_is_read_in_time_with_its_length(page: str) -> None:
    began_s = time.thread_time()
    vllm_facts(parse_counters(page), longest=None)
    assert time.thread_time() - began_s < SLACK_S


# Measured traffic


def one_record(behaviour: Behaviour, *, limit_s: float) -> Record:
    async def send(url: str) -> Record:
        endpoint = Endpoint(base_url=url, model="m")
        async with Client(endpoint, seed=0, limit_s=limit_s) as client:
            return await client.send(request(max_tokens=8), place(), intended_s=now_s())

    with HostileServer({COMPLETIONS: behaviour, "/v1/completions": behaviour}) as server:
        return asyncio.run(send(server.url))


SLOW_STREAMS: dict[str, Behaviour] = {
    **NEVER_ENDING,
    "drips events": drips(event(chunk("a")), every_s=0.01, start=CHUNKED),
    "drips comments": drips(b": ping\n\n", every_s=0.01, start=head(kind=EVENTS)),
    "drips an error": drips(b"boom ", every_s=0.01, start=head(503)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("behaviour", SLOW_STREAMS.values(), ids=SLOW_STREAMS.keys())
def test_a_stream_that_never_ends_is_a_timeout_and_says_what_came(behaviour: Behaviour) -> None:
    began_s = time.monotonic()
    record = one_record(behaviour, limit_s=LIMIT_S)
    assert record.outcome in (Outcome.TIMEOUT, Outcome.MALFORMED)
    assert f"{LIMIT_S} s" in record.error or "HTTP" in record.error
    assert time.monotonic() - began_s < LIMIT_S + 2 * SLACK_S


@pytest.mark.slow
def test_a_timeout_within_an_error_names_the_error() -> None:
    record = one_record(SLOW_STREAMS["drips an error"], limit_s=1.0)
    assert "bytes received; 503: boom boom" in record.error


ENDLESS_STREAMS: dict[str, tuple[Behaviour, str]] = {
    "events": (endless(event(chunk("word ")), start=CHUNKED), "too long for max_tokens"),
    "events with unlike texts": (
        endless(b"".join(event(chunk(f"{n}\n")) for n in range(99)), start=CHUNKED),
        "too long for max_tokens",
    ),
    "comments": (endless(b": ping\n", start=head(kind=EVENTS)), "too long for max_tokens"),
    "a line": (endless(b"x", start=head(kind=EVENTS) + b"data: "), "more than"),
    "an error": (endless(b"boom <script ", start=head(500)), "500: boom"),
    "heads": (endless(b"HTTP/1.1 100 Continue\r\n\r\n", start=b""), "one interim answer after the other"),
    "trailers": (endless(b"X: 1\r\n", start=CHUNKED + b"0\r\n"), "the trailers are too long"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("behaviour", "words"), ENDLESS_STREAMS.values(), ids=ENDLESS_STREAMS.keys())
def test_a_stream_of_any_size_is_broken_off(behaviour: Behaviour, words: str) -> None:
    began_s = time.monotonic()
    record = one_record(behaviour, limit_s=60.0)
    assert record.outcome in (Outcome.MALFORMED, Outcome.HTTP_ERROR)
    assert words in record.error
    assert len(record.text) <= 16 * 1024
    assert time.monotonic() - began_s < 6 * SLACK_S


@pytest.mark.slow
def test_endless_streams_take_little_memory_and_say_why(tmp_path: Path) -> None:
    with HostileServer({COMPLETIONS: endless(event(chunk("word ")), start=CHUNKED)}) as server:
        seen = watch("measure", *attach(server.url), *SMALL, "--study", "s", cwd=tmp_path)
    assert seen.result.code == 1
    assert "6 x malformed: the answer is too long for max_tokens" in seen.result.stderr
    assert seen.memory_bytes < MEMORY_MAX_BYTES


@pytest.mark.slow
def test_a_server_that_hangs_is_found_out_before_anything_is_measured(cli: Cli) -> None:
    slow = drips(event(chunk("a")), every_s=0.05, start=CHUNKED)
    with HostileServer({COMPLETIONS: slow}) as server:
        result = cli("measure", *attach(server.url), *SMALL, "--budget", "6s", "--study", "s")
    assert result.code == 1
    assert "hangs: 2 requests in a row got no complete answer in 2 s" in " ".join(result.stderr.split())
    assert "bytes received" in result.stderr
    assert len(server.asked_for(COMPLETIONS)) == 2


def test_no_thread_of_a_server_is_left() -> None:
    with HostileServer({MODELS: hangs}) as server:
        with pytest.raises(EngineError):
            fetch(f"{server.url}{MODELS}", limit_s=0.2)
        before = threading.active_count()
    assert threading.active_count() < before
