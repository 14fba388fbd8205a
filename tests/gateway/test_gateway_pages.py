"""What a gateway shows of itself, as its service asks for it."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

import pytest

from gateway_samples import POOLS
from routed import routed
from running import finish, hosted, start
from speclift.core.routing import ServerPool
from speclift.http.pages import WebRequest
from speclift.routing.learning import Learner
from speclift.studies.prompt_files import read_workload
from speclift.verbs.gateway import GatewayPages

ASKED = WebRequest(path="/", query={}, nonce="n")


def test_page_json_and_metrics_say_the_same() -> None:
    learner = Learner(canary=0.05)
    pages = GatewayPages(
        pools=lambda: POOLS,
        policy=lambda: "mine.toml",
        learner=learner,
        wall_clock=lambda: 1e9,
        clock=lambda: 5.0,
    )
    for _ in range(3):
        learner.note(routed(), now_s=5.0)
        learner.share("chat", ServerPool.SPEC)
        pages.note(routed())
    page, now, metrics = (
        pages.routes()[path](ASKED).body for path in ("/speclift/", "/speclift/api/now", "/metrics")
    )
    document = json.loads(now)
    assert document["requests"] == 3
    assert (document["segments"][0]["spec_share"], document["policy"]) == (0.95, "mine.toml")
    assert b"100% of requests went to the speculative pool" in page
    assert b'speclift_gateway_requests_total{pool="spec",segment="chat",end="ok"} 3' in metrics
    assert b'speclift_gateway_spec_share{segment="chat"} 0.95' in metrics


@pytest.mark.slow
def test_a_running_gateway_shows_and_logs_what_it_served(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    with hosted("flavour=vllm", "k=4", "acceptance=0.8") as spec, hosted("flavour=vllm") as plain:
        process = start(
            [
                *("gateway", "--spec", spec, "--plain", plain, "--listen", "127.0.0.1:0", "--json"),
                *("--canary", "50%", "--access-log", log, "--log-text"),
            ],
            cwd=tmp_path,
        )
        try:
            assert process.stdout is not None
            address = f"http://{json.loads(process.stdout.readline())['listen']}"
            for number in range(20):
                _ask(address, f"question {number}, ü\n\x1b[31m")
            now = json.loads(_read(f"{address}/speclift/api/now"))
            metrics, page = _read(f"{address}/metrics"), _read(f"{address}/speclift/")
        finally:
            process.send_signal(signal.SIGTERM)
            assert finish(process).code == 0
    assert now["requests"] == 20
    assert {row["pool"] for row in now["by_pool"]} == {"spec", "plain"}
    by_pool = {row["pool"]: row for row in now["by_pool"]}
    assert by_pool["spec"]["acceptance_rate"] > 0
    assert by_pool["plain"]["acceptance_rate"] is None
    assert by_pool["plain"]["tpot_s"]["p50"] > 0
    assert b"speclift_gateway_e2e_seconds_count" in metrics
    assert b"of requests went to the speculative pool" in page
    workload = read_workload(log)
    assert len(workload.requests) == 20
    assert workload.requests[0].messages[0].content == "question 0, ü\n\x1b[31m"
    assert all(request.response for request in workload.requests)


def _ask(address: str, prompt: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "stream": True}
    asked = {**body, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"{address}/v1/chat/completions", data=json.dumps(asked).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        whole: bytes = answer.read()
    return whole
