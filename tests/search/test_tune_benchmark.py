"""The synthetic benchmark's command line, on one engine and the small extract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tune_samples import EXTRACT

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "tuner" / "synthetic.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False
    )


def test_one_engine_prints_cost_regret_and_length_errors_as_json() -> None:
    done = run("--acceptance", str(EXTRACT), "--engines", "1", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert 0 < document["cost_ratio"] < 0.2
    assert 0 <= document["within_2pct"] <= 1
    assert 0 <= document["mean_regret"] < 0.1
    assert set(document["accepted_length_error"]) == {"eagle", "ngram"}
    assert max(document["accepted_length_error"].values()) < 0.02


@pytest.mark.parametrize("wrong", [["--engines", "0"], ["--seed", "-1"]])
def test_no_engine_and_a_negative_seed_are_refused(wrong: list[str]) -> None:
    done = run("--acceptance", str(EXTRACT), *wrong)
    assert done.returncode == 2
    assert "at least" in done.stderr


def test_a_file_without_acceptance_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": "a"}\n', encoding="utf-8")
    done = run("--acceptance", str(empty))
    assert done.returncode != 0
    assert "empty.jsonl: no requests" in done.stderr
