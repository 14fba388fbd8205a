"""P50 wins and the tail loses: the same load with homogeneous traffic alone, which explains and never decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from running import Cli, fake_flags, records_of
from speclift.bench.diagnosis import DIAGNOSIS
from speclift.studies.study import Study, is_study

# Eight drafted tokens make a step 2.6 times as long; at temperature 1 none is accepted.
HOT = ("acceptance=0.95", "temperature_slope=1.2", "step_cost=0.2", "tpot_s=0.002")
SIZE = ("--fixed", "--method", "ngram,k=8", "--launches", 1, "--verify", "off", "--max-tokens", 16)


def prompts_file(path: Path, *, hot_every: int) -> Path:
    """A hundred and four prompts, every so many of them at temperature 1."""
    lines = (
        {"prompt": f"Count on from {number}.", "temperature": 1.0 if number % hot_every == 0 else 0.0}
        for number in range(104)
    )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def diagnoses(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in document["findings"] if finding["check"] == "tail-diagnosis"]


@pytest.mark.alone
@pytest.mark.timeout(90)
class TestAStudy:
    def test_whose_hot_requests_are_slow_is_diagnosed_once_and_judged_as_before(
        self, cli: Cli, tmp_path: Path
    ) -> None:
        prompts = prompts_file(tmp_path / "p.jsonl", hot_every=5)
        document = cli(
            "decide", *SIZE, "--prompts", prompts, *fake_flags(*HOT), "--json", "--study", "s"
        ).document
        (said,) = diagnoses(document)
        assert said["level"] == "info"
        assert "The tail is gone without the other requests" in said["message"]
        (split,) = [finding for finding in document["findings"] if finding["check"] == "slow-requests"]
        assert "temperature above 0" in split["message"]
        # Its records are none of the study's.
        apart = records_of(tmp_path / "s" / DIAGNOSIS)
        assert {record.place.temperature for record in apart if record.place.phase == "measured"} == {0.0}
        measured = sum(r.place.phase == "measured" for r in records_of(tmp_path / "s"))
        assert sum(cell["requests"] for cell in document["cells"] if cell["segment"] == "all") == measured
        with Study.open(tmp_path / "s") as study:
            launches = len(study.launches())
        again = cli("decide", "--resume", "--study", "s", "--json").document
        assert len(diagnoses(again)) == 1
        assert (again["verdict"], again["speedup"]) == (document["verdict"], document["speedup"])
        with Study.open(tmp_path / "s") as study:
            assert len(study.launches()) == launches

    def test_without_a_slower_tail_has_none(self, cli: Cli, tmp_path: Path) -> None:
        prompts = prompts_file(tmp_path / "p.jsonl", hot_every=5)
        cold = ("acceptance=0.95", "step_cost=0.01")
        result = cli("decide", *SIZE, "--prompts", prompts, *fake_flags(*cold), "--json", "--study", "s")
        assert diagnoses(result.document) == []
        assert not is_study(tmp_path / "s" / DIAGNOSIS)
