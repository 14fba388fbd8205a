"""The tutorial is run as written: every `$ ` line of docs/tutorial.md, in order, in one folder; what it measures is
made smaller."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
# Verdicts are answers; 1 is an operating error and 2 wrong usage.
ANSWERS = (0, 3, 4, 5)
# A flag that is given again overrides what was said before.
SMALL = ("--requests", "2", "--max-tokens", "8", "--launches", "1", "--threads", "1")


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [
        line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")
    ]


def test_the_tutorial_shows_the_whole_way() -> None:
    verbs = [shlex.split(command)[1] for command in commands()]

    assert verbs == ["doctor", "models", "models", "decide", "decide", "compare", "compare", "report"]


@pytest.mark.llama
@pytest.mark.timeout(300)
def test_the_tutorial_runs_as_written(tmp_path: Path, embedded_model: Path) -> None:
    speclift = Path(sys.executable).with_name("speclift")
    for command in commands():
        argv = shlex.split(command)
        assert argv[0] == "speclift"
        measures = argv[1] == "decide" and "--dry-run" not in argv
        result = subprocess.run(
            [str(speclift), *argv[1:], *(SMALL if measures else ())],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode in ANSWERS, f"{command}\n{result.stderr[-2000:]}"
    assert (tmp_path / "tutorial.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "studies" / "tutorial" / "study.sqlite").is_file()
