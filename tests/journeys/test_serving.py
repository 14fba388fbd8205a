"""Beside running servers: what watch says of pages and studies, and what the gateway does with a request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from changes import ON_LLAMACPP, ON_VLLM, counted, slower

from processes import eventually
from recorded import Typed, recorded_study
from running import Cli, asked, hosted

NAMES = {
    "tokens": "generation_tokens_total",
    "requests": "time_to_first_token_seconds_count",
    "drafts": "spec_decode_num_drafts_total",
    "drafted": "spec_decode_num_draft_tokens_total",
    "accepted": "spec_decode_num_accepted_tokens_total",
}


def page_of(
    *, accepted_per_step: float = 2.2, steps: int = 20000, running: int = 1, **changes: object
) -> str:
    """What vLLM shows after so many steps of four drafted tokens each."""
    totals = {
        "tokens": steps * (1 + accepted_per_step),
        "requests": steps / 30,
        "drafts": steps,
        "drafted": 4 * steps,
        "accepted": accepted_per_step * steps,
    } | changes
    lines = [
        f'vllm:{NAMES[name]}{{model_name="m"}} {value}' for name, value in totals.items() if value is not None
    ]
    return "\n".join([*lines, f'vllm:num_requests_running{{model_name="m"}} {running}', ""])


PAGES = [
    ("accepted-often", page_of(), "--break-even 2", "pays", 0, ""),
    ("accepted-seldom", page_of(accepted_per_step=0.4), "--break-even 2", "does-not-pay", 4, ""),
    ("near-the-break-even", page_of(accepted_per_step=1.0, steps=40), "--break-even 2", "unsure", 5, ""),
    ("no-token-yet", page_of(steps=0), "--break-even 2", "unsure", 5, ""),
    ("nothing-drafted", page_of(tokens=9000, drafts=0, drafted=0, accepted=0), "", None, None, "no-drafts"),
    ("no-drafter", page_of(drafts=None, drafted=None, accepted=None), "", None, 5, "not-speculating"),
    ("collapsed", page_of(accepted_per_step=0.05), "--break-even 2", "does-not-pay", 4, "acceptance-collapsed"),
    ("too-good", page_of(accepted_per_step=3.98), "--break-even 2", "pays", 0, "acceptance-near-one"),
    ("no-counter-of-tokens", page_of(tokens=None), "", None, None, "no-token-counter"),
    ("a-study", page_of(running=2), "--study faster", "pays", 0, ""),
    ("a-study-below", page_of(accepted_per_step=0.2, running=2), "--study faster", "does-not-pay", 4, ""),
    ("beyond-the-study", page_of(running=200), "--study faster", None, None, "load-beyond-study"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "flags", "verdict", "code", "check"),
    [case[1:] for case in PAGES],
    ids=[case[0] for case in PAGES],
)
def test_a_page_is_judged(
    text: str,
    flags: str,
    verdict: str | None,
    code: int | None,
    check: str,
    cli: Cli,
    typed: Typed,
    tmp_path: Path,
) -> None:
    recorded_study("faster", tmp_path, f"{ON_VLLM}; {counted(generation_tokens_total=1)}")
    typed(text)
    result = cli("watch", "-", *flags.split(), "--json")
    document = result.document
    assert (verdict or document["verdict"], code or result.code) == (document["verdict"], result.code)
    checks = {finding["check"] for finding in document["findings"]}
    assert check in checks if check else "acceptance-collapsed" not in checks
    if "--study" in flags:
        assert document["break_even"]["source"] == "study"


def test_without_a_measurement_the_break_even_is_a_guess(cli: Cli, typed: Typed, page: str) -> None:
    typed(page)
    document = (result := cli("watch", "-", "--json")).document
    assert (document["verdict"], document["break_even"]["source"], result.code) == ("unsure", "planned", 5)
    assert [finding["check"] for finding in document["findings"]] == ["break-even-guessed"]


@pytest.mark.parametrize("text", ["", "<html>no</html>", "node_load1 0.5\n"])
def test_what_is_no_page_is_said(text: str, cli: Cli, typed: Typed) -> None:
    typed(text)
    result = cli("watch", "-")
    assert (result.code, result.stdout, "metrics" in result.stderr) == (1, "", True)


def test_servers_are_watched_side_by_side_and_the_worst_is_the_exit_code(cli: Cli) -> None:
    quick = ("--once", "--interval", "0.4s", "--break-even", 2, "--json")
    with hosted("flavour=vllm", "k=4", "acceptance=0.9") as url, asked(url):
        documents = [
            json.loads(line) for line in cli("watch", url, "http://127.0.0.1:9", *quick).stdout.splitlines()
        ]
        alone = cli("watch", url, *quick)
    assert [(d["verdict"], d["events"]) for d in documents if d["url"] != url] == [
        ("unsure", ["unreachable"])
    ]
    assert (alone.document["verdict"], alone.code, alone.document["engine"]) == ("pays", 0, "vllm")
    assert alone.document["accepted_length"]["value"] > 2


def explained(cli: Cli, typed: Typed, request: object, *flags: str) -> str:
    typed(json.dumps(request))
    servers = ("--spec", "http://127.0.0.1:8", "--plain", "http://127.0.0.1:9")
    result = cli("gateway", *servers, *flags, "--dry-run")
    assert result.code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("name", "change", "pool"),
    [
        ("faster", "", "spec: http://127.0.0.1:8"),
        ("by-load", "", "spec: http://127.0.0.1:8"),
        ("slow-tail", slower(2, "segment <> 'copy'"), "plain: http://127.0.0.1:9"),
    ],
    ids=["all-of-it", "up-to-a-load", "one-segment"],
)
def test_a_policy_of_a_study_routes_a_request(
    name: str, change: str, pool: str, cli: Cli, typed: Typed, tmp_path: Path
) -> None:
    recorded_study(name, tmp_path, f"{ON_LLAMACPP}; {change}")
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64}
    assert explained(cli, typed, chat, "--policy", name).startswith(pool)
    (tmp_path / "policy.toml").write_text(cli("export", name, "--to", "gateway").stdout)
    assert explained(cli, typed, chat, "--policy", "policy.toml").startswith(pool)


def test_a_study_that_shows_no_gain_is_no_policy(cli: Cli, tmp_path: Path) -> None:
    recorded_study("faster", tmp_path, slower(3))
    result = cli("export", "faster", "--to", "gateway")
    assert (result.code, result.stdout) == (1, "")
    assert "allows nothing on servers that speculate" in result.stderr
    assert "--learn" in result.stderr


@contextmanager
def gateway(*flags: object, cwd: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    words = [
        sys.executable,
        "-m",
        "speclift",
        "gateway",
        "--listen",
        "127.0.0.1:0",
        "--json",
        *map(str, flags),
    ]
    process = subprocess.Popen(
        words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["schema"] == 1
        yield f"http://{ready['listen']}", process
    finally:
        process.kill()
        process.communicate()


def answered(url: str, *, stream: bool = False) -> tuple[str | None, str]:
    """Pool and body of an answer."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 8,
        "stream": stream,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers.get("x-speclift-pool"), answer.read().decode()


def test_a_gateway_answers_from_its_pools_and_ends_when_it_is_told(tmp_path: Path) -> None:
    with (
        hosted("k=4") as spec,
        hosted() as plain,
        gateway("--spec", spec, "--plain", plain, "--access-log", "log", cwd=tmp_path) as (url, process),
    ):
        pool, body = answered(url)
        assert (pool, len(json.loads(body)["choices"])) == ("spec", 1)
        _, streamed = answered(url, stream=True)
        assert streamed.startswith("data: ")
        assert streamed.rstrip().endswith("data: [DONE]")
        os.kill(process.pid, signal.SIGUSR1)
        eventually(lambda: answered(url)[0] == "plain", what="it sends everything to plain")
        with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            assert "speclift_gateway" in answer.read().decode()
        process.terminate()
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert ([line["pool"] for line in lines[:2]], lines[-1]["pool"]) == (["spec", "spec"], "plain")
    assert "hello" not in (tmp_path / "log").read_text()
