"""The synthetic benchmark's command line, on one engine and the small extract."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic
from tune_samples import EXTRACT

RunBenchmark = Callable[..., tuple[int | str | None, str, str]]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunBenchmark:
    """Its command line, called here: with what code, or words, it ended, and what it printed."""

    def run(*arguments: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["synthetic.py", *arguments])
        code: int | str | None = 0
        try:
            synthetic.main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_one_engine_prints_cost_regret_and_length_errors_as_json(benchmark: RunBenchmark) -> None:
    code, stdout, stderr = benchmark("--acceptance", str(EXTRACT), "--engines", "1", "--seed", "3", "--json")
    assert code == 0, stderr
    document = json.loads(stdout)
    assert 0 < document["cost_ratio"] < 0.2
    assert 0 <= document["within_2pct"] <= 1
    assert 0 <= document["mean_regret"] < 0.1
    assert set(document["accepted_length_error"]) == {"eagle", "ngram"}
    assert max(document["accepted_length_error"].values()) < 0.02


@pytest.mark.parametrize("wrong", [["--engines", "0"], ["--seed", "-1"]])
def test_no_engine_and_a_negative_seed_are_refused(wrong: list[str], benchmark: RunBenchmark) -> None:
    code, _, stderr = benchmark("--acceptance", str(EXTRACT), *wrong)
    assert code == 2
    assert "at least" in stderr


def test_a_file_without_acceptance_is_named(tmp_path: Path, benchmark: RunBenchmark) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"id": "a"}\n', encoding="utf-8")
    code, _, stderr = benchmark("--acceptance", str(empty))
    assert "empty.jsonl: no requests" in f"{code}{stderr}"
