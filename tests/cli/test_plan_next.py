"""`next:` runs as printed: every line of a battery of plans, with --dry-run. vLLM is a stub that says its version."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

import pytest

from running import Cli

H200 = ("--gpu", "h200", "--context", "2048")
# What is asked of plan, and what the servers must be told of it.
PLANS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "one model": (("--target", "llama-3.1-8b", *H200), ("meta-llama/Llama-3.1-8B",)),
    "fp8 target and draft": (
        ("--target", "llama-3.1-70b", "--target-quant", "fp8", "--draft", "llama-3.1-8b", *H200),
        ("--quantization fp8", "meta-llama/Llama-3.1-8B", '"method": "draft_model"'),
    ),
    "fp8 draft": (
        ("--target", "qwen3-32b", "--draft", "qwen3-0.6b", "--draft-quant", "fp8", *H200),
        ('"quantization": "fp8"', "Qwen/Qwen3-0.6B"),
    ),
    "bitsandbytes": (("--target", "llama-3.1-8b", "--target-quant", "nf4", *H200), ("bitsandbytes",)),
    "two GPUs, fp8 cache": (
        ("--target", "llama-3.1-70b", "--gpus", "2", "--kv-dtype", "fp8", *H200),
        ("--tensor-parallel-size 2", "fp8"),
    ),
    "own k and loads": (
        ("--target", "mistral-7b", "--k", "2,6", "--concurrency", "3,9", *H200),
        ('"num_speculative_tokens": 6',),
    ),
    "an id in a format": (
        ("--target", "someone/Llama-3.1-70B-Instruct-AWQ", *H200),
        ("--model someone/Llama-3.1-70B-Instruct-AWQ",),
    ),
    "mtp": (
        ("--target", "deepseek-v3", "--method", "mtp", "--gpus", "8", *H200),
        ('"method": "mtp"', "deepseek-ai/DeepSeek-V3", "--tensor-parallel-size 8"),
    ),
    "a head by its id": (
        (
            "--target",
            "llama-3.1-8b",
            "--method",
            "eagle3",
            "--draft",
            "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            *H200,
        ),
        ('"method": "eagle3"', '"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"'),
    ),
    "all tokens in one pass": (
        (
            "--target",
            "llama-3.1-8b",
            "--draft",
            "llama-3.2-1b",
            "--method",
            "draft,parallel_drafting=true",
            *H200,
        ),
        ('"parallel_drafting": true', "meta-llama/Llama-3.2-1B"),
    ),
    "token budget": (("--target", "llama-3.1-8b", "--token-budget", "4096", *H200), ("4096",)),
}


@pytest.fixture
def vllm_python(tmp_path: Path) -> str:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'vllm 0.26.0'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def told(cli: Cli, line: str, *more: str) -> str:
    words = shlex.split(line)
    assert words[0] == "speclift"
    result = cli(*words[1:], *more, "--dry-run")
    assert result.code == 0, f"{line}\n{result.stderr}"
    return result.stdout.replace("\\", "").replace("'", "")


@pytest.mark.parametrize("name", PLANS)
def test_every_next_line_of_vllm_runs_as_printed(name: str, cli: Cli, vllm_python: str) -> None:
    asked, expected = PLANS[name]
    lines = cli("plan", *asked, "--json").document["next"]
    assert lines
    for line in lines:
        shown = " ".join(told(cli, line, "--vllm-python", vllm_python).split())
        for words in expected:
            assert words in shown or words.replace(": ", ":") in shown


@pytest.mark.parametrize(
    "asked",
    [
        ("--target", "llama-3.1-70b", "--target-quant", "awq", "--gpu", "h200"),
        ("--target", "llama-3.1-8b", "--target-quant", "q4_k_m", "--engine", "llamacpp", "--gpu", "h200"),
    ],
)
def test_weights_that_nobody_named_are_not_measured_as_others(asked: tuple[str, ...], cli: Cli) -> None:
    document = cli("plan", *asked, "--json").document
    assert document["next"] == []
    assert "weights" in {found["check"] for found in document["findings"]}
