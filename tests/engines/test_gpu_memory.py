"""GPU memory by a program that stands in for nvidia-smi."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from speclift.engines import gpu_memory
from speclift.engines.gpu_memory import MIB, GpuMemory


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder: `used` and `apps` are what the program says of the GPUs and of the processes."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in *compute-apps*) cat {tmp_path}/apps;; *memory.used*) cat {tmp_path}/used;; esac\n'
    )
    program.chmod(0o755)
    (tmp_path / "apps").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_is_that_of_the_servers_processes_over_all_gpus(says: Path) -> None:
    (says / "used").write_text("90000\n")
    (says / "apps").write_text("11, 2000\n12, 30\n11, 500\n13, 9000\n14, [N/A]\n")
    memory = GpuMemory()
    assert memory.held(memory.before_launch(), frozenset({11, 12, 14})) == 2530 * MIB


@pytest.mark.parametrize("is_launch", [True, False])
def test_and_nobody_can_tell_once_another_server_came_or_went(says: Path, is_launch: bool) -> None:
    (says / "used").write_text("500\n")
    memory = GpuMemory()
    before = memory.before_launch()
    (says / "used").write_text("4500\n")
    if is_launch:
        memory.before_launch()
    else:
        memory.after_stop()
    assert memory.held(before, frozenset()) is None


@pytest.mark.parametrize(
    "script", ["exit 9", "echo No devices were found", "exec sleep 9", "printf '\\377\\n'", "printf ''"]
)
def test_a_program_that_fails_hangs_or_babbles_says_nothing(
    says: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_memory, "QUERY_LIMIT_S", 0.05)
    (says / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    memory = GpuMemory()
    assert memory.held(memory.before_launch(), frozenset({1})) is None
