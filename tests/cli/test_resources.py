"""What servers take while they are measured, from the first look to the JSON and the page."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from running import Cli, fake_flags, hosted

SIZE = ("--segment", "chat", "--requests", 4, "--max-tokens", 24, "--launches", 1)


@pytest.mark.slow
def test_a_server_that_says_how_full_it_is_is_asked_while_it_is_measured(cli: Cli) -> None:
    truths = ("flavour=vllm", "slots=4", "tpot_s=0.04")
    with hosted(*truths) as baseline:
        measured = cli("measure", "--engine", "attach", "--baseline-url", baseline, *SIZE, "--json").document
    (own,) = measured["resources"]
    assert own["arm"] == "baseline"
    # One request of four that would fit.
    assert own["kv_used_peak"] == 0.25
    assert own["gpu_memory_peak_bytes"] is None


@pytest.mark.slow
def test_gpu_memory_is_that_of_the_server(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake servers are threads of the tests' own process."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$1" in *apps*) echo "{os.getpid()}, 2048";; *) echo 3000;; esac\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asked = ("--method", "ngram", "--k", 4, *SIZE, *fake_flags(), "--study", "s", "--verify", "off")
    decided = cli("decide", *asked, "--json").document
    assert [(arm["arm"], arm["gpu_memory_peak_bytes"]) for arm in decided["resources"]] == [
        ("baseline", 2048 << 20),
        ("ngram-k4", 2048 << 20),
    ]
    page = (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
    assert "GPU memory" in page
    assert "2.1 GB" in page
