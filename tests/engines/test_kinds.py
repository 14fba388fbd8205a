"""An engine is a folder: ours are found beside each other, somebody else's by an entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import tiny_engine
from installing import installed
from running import Cli

TINY = Path(tiny_engine.__file__).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("KIND = 3", "expected an EngineKind"),
        ("import no_such_module", "No module named"),
        ("KIND = (", "'(' was never closed"),
        (
            "from speclift.engines.kind import EngineKind\nKIND = EngineKind()",
            "Can't instantiate abstract class",
        ),
        ("raise ValueError('--x has two rows')", "--x has two rows"),
        ("", "module 'tiny_engine' has no attribute 'KIND'"),
    ],
)
def test_one_that_does_not_load_is_named_and_breaks_nothing_else(
    cli: Cli, tmp_path: Path, source: str, why: str
) -> None:
    with installed(tmp_path, source):
        asked = cli("decide", "--engine", "tiny")
        planned = cli("plan", "--target", "llama-3.1-70b", "--gpu", "h100-80gb", "--gpus", 4, "--json")
        judged = cli("lint", "--json", "--", "llama-server", "-m", "m.gguf")
        doctor = cli("doctor", "--quick", "--json")
    assert asked.code == 1
    assert f"the engine tiny (tiny_engine:KIND) cannot be used: {why}" in " ".join(asked.stderr.split())
    assert planned.document["engine"] == "vllm"
    assert (judged.code, judged.document["engine"]) == (0, "llamacpp")
    assert why in doctor.document["engines"]["tiny"]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[None]:
    with installed(tmp_path, TINY):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_one_of_somebody_elses_decides_without_an_edit_here(cli: Cli) -> None:
    result = cli(
        *("decide", "--engine", "tiny", "--requests", 8, "--max-tokens", 8, "--launches", 1, "--json"),
        *("--segment", "chat", "--temperature", 0, "--verify", "off"),
        *("--engine-arg", "ttft_s=0.002", "--engine-arg", "tpot_s=0.0005"),
    )
    assert result.code in (0, 3, 4, 5), result.stderr
    assert result.document["provenance"]["engine_version"] == "tiny 7"
    assert {cell["arm"] for cell in result.document["cells"]} == {"baseline", "ngram-k2"}


@pytest.mark.usefixtures("tiny")
def test_its_command_line_is_judged_and_translated_without_an_edit_here(cli: Cli) -> None:
    words = ("tiny-serve", "--model", "m", "--guess", "2", "--turbo", "--draft-token", "3")
    judged = cli("lint", "--json", "--", *words)
    assert (judged.code, judged.document["engine"], judged.document["version"]) == (4, "tiny", "7.0")
    assert [(found["flag"], found["status"]) for found in judged.document["findings"]] == [
        ("--model", "ok"),
        ("--guess", "renamed"),
        ("--turbo", "removed"),
        ("--draft-token", "unknown"),
    ]
    today = judged.document["translated"]
    assert today["command"] == "tiny-serve --model m --draft-tokens 2"
    assert len(today["notes"]) == 2
    assert yaml.safe_load(today["yaml"])["services"]["tiny"]["command"] == today["argv"][1:]
    shown = cli("lint", "--engine-version", "4.2", "--", *words[:5])
    assert (shown.code, "Tiny 4.2" in shown.stderr) == (0, True)


@pytest.mark.slow
def test_what_an_engine_is_costs_no_numpy_to_know() -> None:
    """Lint and plan ask every kind, and answer before numpy would be loaded."""
    source = "from speclift.engines.kind import usable_kinds; names = list(usable_kinds())"
    subprocess.run(
        [sys.executable, "-c", f"{source}; import sys; assert 'numpy' not in sys.modules"], check=True
    )
