"""The fake server as a real process: its protocol, its counters and its faults. No assertion on durations."""

from __future__ import annotations

import json
import math
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, Popen
from typing import Any

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


def test_a_truth_changes_in_mid_run(serve: Serve) -> None:
    fake = serve("k=4", "acceptance=1.0", "acceptance.chat=0.5", "seed=77")
    before = fake.answer("one thing", max_tokens=41)["timings"]

    assert json.loads(fake.post({"acceptance": 0.0}, path="/truth")) == {"changed": ["acceptance"]}
    after = fake.answer("one thing", max_tokens=41)["timings"]

    assert before["draft_n_accepted"] == before["draft_n"] > 0
    assert after["draft_n_accepted"] == 0


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
