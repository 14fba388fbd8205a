"""plan against every kept row of the GPU study, each configuration left out of the fit in turn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plan_samples import H200
from speclift.engines.vllm.planning import model_for

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "plan.py"


@pytest.fixture(scope="module")
def printed() -> str:
    done = subprocess.run([sys.executable, str(BENCHMARK)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_nine_of_ten_rows_left_out_lie_inside_an_interval_of_at_most_a_factor_two(printed: str) -> None:
    found = re.search(r"coverage ([\d.]+)%.*median high/low ([\d.]+)", printed)
    assert found is not None
    assert float(found[1]) >= 90
    assert 1 < float(found[2]) <= 2
    for version in ("0.24", "0.26"):
        counted = re.search(rf"vLLM {version}: (\d+) of (\d+) rows", printed)
        assert counted is not None
        assert int(counted[1]) >= 0.9 * int(counted[2]) >= 9


@pytest.mark.slow
def test_it_stands_beside_aisimulate_on_the_same_cells(printed: str) -> None:
    ours, theirs = re.findall(r"(?:plan|AISimulate): off by a factor ([\d.]+)", printed)
    assert float(ours) < float(theirs)


@pytest.mark.slow
def test_the_constants_in_use_are_those_of_the_fit_on_all_rows(printed: str) -> None:
    fitted = re.findall(r"^  (\w+) +(\S+)  (\S+)$", printed.partition("constants fitted")[2], re.MULTILINE)
    assert len(fitted) >= 10
    for name, *values in fitted:
        for version, value in zip(("0.24", "0.26"), values, strict=True):
            in_use = getattr(model_for(H200, version).losses, name)
            assert in_use == pytest.approx(float(value), rel=0.02), name


@pytest.mark.slow
def test_rows_that_lie_outside_are_not_called_covered(tmp_path: Path) -> None:
    """A draft that was ten times as fast as any model allows: the benchmark must fail on it."""
    line = {"scenario": "8b-1b", "alpha": 0.8, "tpot_s_p50": 5e-3, "method": "off", "k": 0, "concurrency": 1}
    fast = line | {"k": 5, "method": "draft_model", "tpot_s_p50": 1e-3}
    path = tmp_path / "rows-vllm-0.24.0.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (line, fast)) + "\n")
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "coverage 0.0%" in done.stdout
