"""`next` runs as printed: the commands of verdicts in many states, each tried with --dry-run or as it is."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from running import Cli, fake_flags, hosted

PROMPTS = "p.jsonl"
FAST = ("spec.acceptance=0.95", "spec.step_cost=0")


def write_prompts(folder: Path, count: int) -> None:
    lines = [json.dumps({"prompt": f"Say {n}.", "segment": ("chat", "my copy")[n % 2]}) for n in range(count)]
    (folder / PROMPTS).write_text("\n".join(lines))


def answer_of(cli: Cli, *arguments: object) -> dict[str, Any]:
    document = cli(*arguments, "--json").document
    answer = document["answer"]
    assert isinstance(answer, dict)
    assert set(answer) == {"sentence", "because", "next"}
    assert len(answer["because"]) <= 3
    assert "inconclusive" not in answer["sentence"].lower()
    return answer


def dry_run(cli: Cli, command: str) -> str:
    words = shlex.split(command)
    assert words[0] == "speclift"
    result = cli(*words[1:], "--dry-run")
    assert result.code == 0, f"{command}\n{result.stderr}"
    return result.stdout


SETTINGS: dict[str, tuple[object, ...]] = {
    "one prompt": ("--segment", "chat", "--requests", 1),
    "two launches": ("--segment", "chat", "--requests", 3, "--launches", 2),
    "a flag with an equals sign": ("--segment=chat", "--requests=1", "--launches=1", "--seed=3"),
    "a budget": ("--segment", "chat", "--requests", 2, "--budget", "1m"),
    "two loads and temperatures": (
        *("--segment", "chat", "--requests", 2, "--launches", 1),
        *("--concurrency", "1,2", "--temperature", "0,0.7"),
    ),
    "throughput": ("--segment", "chat", "--requests", 1, "--metric", "throughput", "--min-speedup", 1.1),
    "own prompts": ("--prompts", PROMPTS, "--requests", 3, "--launches", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_would_settle_it_runs_as_printed(name: str, cli: Cli, tmp_path: Path) -> None:
    write_prompts(tmp_path, 40)
    asked = (*SETTINGS[name], "--method", "ngram", "--k", 4, "--max-tokens", 12, *fake_flags())
    answer = answer_of(cli, "decide", *asked, "--study", "s", "--min-speedup", 1.3)
    if answer["next"] is None:
        # A client that was too late on a busy machine, or a verdict on three prompts by chance.
        assert answer["sentence"].startswith(("Do not act on these figures", "Leave it off"))
        return
    assert answer["next"]["seconds"] > 0
    shown = dry_run(cli, answer["next"]["command"])
    assert "# ngram-k4" in shown
    assert "--study" not in answer["next"]["command"].split()


@pytest.mark.slow
def test_what_ships_is_a_server_that_starts(cli: Cli, small: list[object]) -> None:
    asked = (*small, *fake_flags(*FAST), "--requests", 12, "--max-tokens", 40, "--method", "ngram", "--k", 4)
    answer = answer_of(cli, "decide", *asked, "--min-speedup", 1.01)
    if not answer["sentence"].startswith("Switch on ngram-k4"):
        pytest.skip(f"too busy here to measure: {answer['sentence']}")
    words = shlex.split(answer["next"]["command"])
    words[words.index("--port") + 1] = "0"
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["url"]
        server.kill()


@pytest.mark.slow
def test_a_study_that_its_budget_cut_short_is_continued(cli: Cli, tmp_path: Path) -> None:
    write_prompts(tmp_path, 60)
    slow = fake_flags("ttft_s=0.05", "tpot_s=0.004", fast=False)
    asked = ("--prompts", PROMPTS, "--method", "ngram", "--k", 4, "--max-tokens", 12, *slow)
    answer = answer_of(cli, "decide", *asked, "--budget", "4s", "--study", "s")
    assert "of the 360 planned requests were measured" in " ".join(answer["because"])
    command = shlex.split(answer["next"]["command"])
    assert command[:5] == ["speclift", "decide", "--resume", "--study", "s"]
    assert command[5] == "--budget"
    # Long enough for what is left, and it takes up where it was.
    assert cli(*command[1:6], "2s", "--json").document["study"] == "s"


@pytest.mark.slow
def test_servers_of_somebody_else_are_measured_again_as_they_are(cli: Cli) -> None:
    with hosted() as baseline, hosted("acceptance=0.5") as spec:
        asked = ("--engine", "attach", "--baseline-url", baseline, "--spec-url", spec)
        answer = answer_of(cli, "decide", *asked, "--segment", "chat", "--requests", 2, "--max-tokens", 12)
        if answer["next"] is not None:
            assert f"--baseline-url {baseline}" in answer["next"]["command"]
            dry_run(cli, answer["next"]["command"])


@pytest.mark.slow
def test_an_address_with_a_secret_gives_no_command_that_would_not_run(cli: Cli) -> None:
    with hosted() as baseline, hosted("acceptance=0.5") as spec:
        secret = baseline.replace("http://", "http://me:sesame@")
        asked = ("--engine", "attach", "--baseline-url", secret, "--spec-url", spec)
        result = cli("decide", *asked, "--segment", "chat", "--requests", 2, "--max-tokens", 12, "--json")
        assert result.document["answer"]["next"] is None
        assert "sesame" not in result.stdout + result.stderr


@pytest.mark.slow
def test_where_every_arm_failed_that_is_the_answer(cli: Cli, small: list[object]) -> None:
    result = cli("decide", *small, *fake_flags("spec.crash_on_start=1"), "--method", "ngram", "--k", 4)
    assert result.code == 1
    assert "Nothing to switch on: ngram-k4 did not run." in result.stdout
