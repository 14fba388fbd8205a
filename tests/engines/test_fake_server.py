"""The fake server as a real process: its protocol, its counters and its faults. No assertion on durations."""

from __future__ import annotations

import http.client
import json
import math
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice, pairwise
from subprocess import PIPE, Popen
from typing import Any
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.slow

FAST = ("ttft_s=0.002", "tpot_s=0.0005")
STANDARD_ERRORS = 4.5  # false alarm under 1 in 100 000 per check
LIMIT_S = 20.0
# The environment may name a proxy; a server on this machine is not behind it.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Fake:
    """One server process and a client for it."""

    def __init__(self, *truth: str, options: tuple[str, ...] = ()) -> None:
        words = [word for pair in (*FAST, *truth) for word in ("--truth", pair)]
        command = [sys.executable, "-m", "speclift.testing.fake_server", "--port", "0", *words, *options]
        self.process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url: str = json.loads(line)["url"] if line else ""

    def get(self, path: str) -> str:
        return self._read(urllib.request.Request(self.url + path)).decode()

    def post(self, body: Any, *, path: str = "/v1/chat/completions") -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._read(urllib.request.Request(self.url + path, data=data))

    def _read(self, request: urllib.request.Request) -> bytes:
        with OPENER.open(request, timeout=LIMIT_S) as response:
            return bytes(response.read())

    def answer(self, prompt: str = "say it", **fields: Any) -> dict[str, Any]:
        return dict(json.loads(self.post(chat_body(prompt, **fields))))

    def stream(self, prompt: str = "say it", **fields: Any) -> list[dict[str, Any]]:
        return events(self.post(chat_body(prompt, stream=True, **fields)))

    def counters(self) -> dict[str, int]:
        """By name without the engine's prefix; a position follows its name after a slash."""
        sample = re.compile(r'^\w+:(\w+)(?:\{position="(\d+)"\})? (\d+)$', flags=re.MULTILINE)
        found = sample.findall(self.get("/metrics"))
        return {f"{name}/{position}" if position else name: int(value) for name, position, value in found}

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None  # communicate() would flush it

    def wait(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, errors

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def chat_body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "temperature": 0, **fields}


def events(body: bytes) -> list[dict[str, Any]]:
    *blocks, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks]


def token_chunks(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]


def streamed_text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"]["content"] for chunk in token_chunks(chunks))


def whole_text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


Serve = Callable[..., Fake]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Servers by their truth, each started once; a test that needs its own gives it a seed of its own."""
    started: dict[tuple[tuple[str, ...], tuple[str, ...]], Fake] = {}

    def get(*truth: str, options: tuple[str, ...] = ()) -> Fake:
        if (truth, options) not in started:
            started[truth, options] = Fake(*truth, options=options)
        return started[truth, options]

    yield get
    for fake in started.values():
        fake.stop()


def test_it_listens_on_loopback_only(serve: Serve) -> None:
    # A server on all addresses would answer on this one too.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", urlsplit(serve().url).port or 0), timeout=LIMIT_S)


@pytest.mark.parametrize("truth", [(), ("k=4",), ("flavour=vllm", "k=3"), ("flavour=plain", "k=3")])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 33])
def test_token_counts_are_exact(serve: Serve, truth: tuple[str, ...], max_tokens: int) -> None:
    fake = serve(*truth)
    answer = fake.answer("three words here", max_tokens=max_tokens)
    chunks = fake.stream("three words here", max_tokens=max_tokens, stream_options={"include_usage": True})
    expected = {"prompt_tokens": 3, "completion_tokens": max_tokens, "total_tokens": max_tokens + 3}
    assert answer["usage"] == chunks[-1]["usage"] == expected
    assert len(streamed_text(chunks).split()) == len(token_chunks(chunks)) == max_tokens
    assert streamed_text(chunks) == whole_text(answer)


@pytest.mark.parametrize(("prompt", "expected"), [("unmarked", 0.7), ("marked [segment:code]", 0.9)])
def test_drafts_are_accepted_at_the_rate_of_their_segment(serve: Serve, prompt: str, expected: float) -> None:
    fake = serve("flavour=vllm", "k=3", "acceptance.code=0.9")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: fake.answer(f"{prompt} {i}", max_tokens=24), range(50)))
    accepted = tried = 0
    for answer in answers:
        metrics = answer["metrics"]["speculative_decoding"]
        for hits, drafted in zip(metrics["per_step_accepted"], metrics["per_step_drafted"], strict=True):
            accepted += hits
            tried += hits + (hits < drafted)  # the tokens after a rejected one are never judged
    assert tried > 300
    assert abs(accepted - tried * expected) < STANDARD_ERRORS * math.sqrt(tried * expected * (1 - expected))


def test_metrics_are_the_sum_of_the_responses(serve: Serve) -> None:
    fake = serve("k=4", "seed=3")
    timings = [fake.answer(f"sum {i}", max_tokens=20)["timings"] for i in range(10)]
    counters = fake.counters()
    accepted = sum(timing["draft_n_accepted"] for timing in timings)
    assert counters["tokens_predicted_total"] == sum(timing["predicted_n"] for timing in timings) == 200
    assert counters["prompt_tokens_total"] == 20
    assert counters["spec_decode_num_draft_tokens_total"] == sum(timing["draft_n"] for timing in timings)
    assert counters["spec_decode_num_accepted_tokens_total"] == accepted
    assert counters["n_decode_total"] == 200 - 10 - accepted
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    assert sum(counters[f"{name}/{position}"] for position in range(4)) == accepted


def test_a_truth_changes_in_mid_run(serve: Serve) -> None:
    fake = serve("k=4", "acceptance=1.0", "acceptance.chat=0.5", "seed=77")
    before = fake.answer("one thing", max_tokens=41)["timings"]

    assert json.loads(fake.post({"acceptance": 0.0}, path="/truth")) == {"changed": ["acceptance"]}
    after = fake.answer("one thing", max_tokens=41)["timings"]

    assert before["draft_n_accepted"] == before["draft_n"] > 0
    assert after["draft_n_accepted"] == 0


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"acceptance": 2}', b'{"nonsense": 1}', b'{"flavour": "vllm"}', b'{"k": "x"}']
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(serve: Serve, body: bytes) -> None:
    fake = serve("k=4", "acceptance=1.0", "seed=78")

    assert status_of(partial(fake.post, body, path="/truth")) == 400
    assert fake.answer("one thing", max_tokens=41)["timings"]["draft_n_accepted"] > 0


def test_a_plain_server_has_no_engine_extras(serve: Serve) -> None:
    fake = serve("flavour=plain", "k=3")
    assert set(fake.answer()) == {"id", "object", "created", "model", "choices", "usage"}
    assert [status_of(partial(fake.get, path)) for path in ("/metrics", "/slots", "/props")] == [404] * 3


def test_the_log_orders_the_server_s_own_times_and_counts(serve: Serve) -> None:
    fake = serve("k=4")
    sent_s = time.time()
    answer = fake.answer("for the log", max_tokens=25)
    entry = json.loads(fake.get("/truth/log"))[-1]
    # Both clocks run on this machine; the server read its epoch once, hence the slack of a second.
    times = [sent_s - 1, entry["received_s"], entry["first_token_s"], entry["last_token_s"], time.time() + 1]
    assert times == sorted(times)
    timings = answer["timings"]
    counts = (answer["id"], 25, timings["draft_n"], timings["draft_n_accepted"])
    assert tuple(entry[name] for name in ("id", "tokens", "drafted", "accepted")) == counts


def test_requests_beyond_the_slots_wait_for_one(serve: Serve) -> None:
    fake = serve("slots=1")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: fake.answer(f"queue {i}"), range(3)))
    log = json.loads(fake.get("/truth/log"))
    assert len(log) == 3
    assert all(after["first_token_s"] >= before["last_token_s"] for before, after in pairwise(log))


def status_of(call: Callable[[], object]) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        call()
    caught.value.close()
    return caught.value.code


def test_cut_share_closes_the_connection_in_mid_stream(serve: Serve) -> None:
    fake = serve("cut_share=1")
    with pytest.raises(http.client.IncompleteRead) as caught:
        fake.stream()
    assert caught.value.partial.count(b"data: ") == 1 + 6  # the role and half of the tokens
    with pytest.raises(http.client.RemoteDisconnected):
        fake.answer()
    assert json.loads(fake.get("/truth/log")) == []


def test_garbage_share_sends_one_line_that_is_not_json_among_good_ones(serve: Serve) -> None:
    fake = serve("garbage_share=1")
    body = fake.post(chat_body("x", stream=True))
    (bad,) = (block for block in body.split(b"\n\n") if b"\xff" in block)
    assert len(token_chunks(events(body.replace(bad + b"\n\n", b"")))) == 12
    for data in (bad.removeprefix(b"data: "), fake.post(chat_body("x"))):
        with pytest.raises(ValueError, match="decode"):
            json.loads(data)


@contextmanager
def stalled_stream(fake: Fake) -> Iterator[None]:
    with closing(http.client.HTTPConnection(urlsplit(fake.url).netloc, timeout=LIMIT_S)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body("x", stream=True)))
        with connection.getresponse() as response:
            tokens = (line for line in response if b'"content": " ' in line)
            assert len(list(islice(tokens, 6))) == 6  # half of them: what comes next is the stall
            yield


def test_a_stalled_request_hangs_in_mid_stream_and_is_dropped_when_its_client_leaves(serve: Serve) -> None:
    fake = serve("stall_share=1", "stall_s=600", "slots=1")
    with stalled_stream(fake):
        assert fake.counters()["requests_processing"] == 1
    while fake.counters()["requests_processing"]:  # for ever, were the request kept: the test would time out
        time.sleep(0.01)


def test_a_silent_fallback_answers_rightly_but_never_drafts(serve: Serve) -> None:
    fake = serve("k=4", "silent_fallback=1")
    answer = fake.answer()
    assert whole_text(answer) == whole_text(serve().answer())
    assert "draft_n" not in answer["timings"]
    assert fake.counters()["spec_decode_num_draft_tokens_total"] == 0


def test_a_server_that_is_never_ready_listens_and_says_503(serve: Serve) -> None:
    fake = serve("never_ready=1")
    assert status_of(partial(fake.get, "/health")) == 503
    assert status_of(fake.answer) == 503


def test_crash_after_aborts_once_that_many_requests_were_answered(serve: Serve) -> None:
    fake = serve("crash_after=2")
    assert [fake.answer()["usage"]["completion_tokens"] for _ in range(2)] == [12, 12]
    code, errors = fake.wait()
    assert code == -signal.SIGABRT
    assert "aborting after 2 finished requests" in errors


def test_end_of_input_ends_the_server_only_when_asked(serve: Serve) -> None:
    asked, other = serve("seed=5", options=("--exit-on-eof",)), serve("seed=5")
    for fake in (asked, other):
        fake.close_input()
    assert asked.wait() == (0, "")
    assert json.loads(other.get("/health")) == {"status": "ok"}


@pytest.mark.parametrize(
    ("truth", "code", "said"),
    [
        ("crash_on_start=1", -signal.SIGABRT, "told to crash on start"),
        ("acceptence=0.5", 2, "unknown truth 'acceptence'. Did you mean 'acceptance'?"),
    ],
)
def test_a_server_that_cannot_start_prints_no_url_and_says_why(
    serve: Serve, truth: str, code: int, said: str
) -> None:
    fake = serve(truth)
    seen_code, errors = fake.wait()
    assert (fake.url, seen_code) == ("", code)
    assert said in errors
