"""docs/testing.md is run as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from speclift.testing.fake_truth import Truth

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_there_is_one_program_for_each_part() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.slow
@pytest.mark.parametrize("program", BLOCKS)
def test_every_program_runs_and_says_something(program: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_every_truth_that_is_named_there_is_one() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)(?:\.SEGMENT)?`", row)}
    assert names <= set(Truth.__dataclass_fields__)
    assert len(names) > 20
