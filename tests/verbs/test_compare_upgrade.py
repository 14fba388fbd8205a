from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from running import Cli
from samples import engine_spec, provenance
from simulated import ARM, LOADS, QUIET, constant
from speclift.core.arm import Arm
from speclift.core.errors import StudyError
from speclift.testing.simulated_study import ArmTruth
from speclift.verbs.compare import compare
from written import write_study

DRAFTING = ArmTruth(prompt_sd=0.02, drafted_per_step=4, acceptance=0.6)


def study(folder: Path, version: str, *, speedup: float, arm: Arm = ARM, seed: int = 1, **parts: Any) -> Path:
    truth = replace(QUIET, arms={arm.name: replace(DRAFTING, speedup=constant(speedup))})
    changes = parts.pop("environment", {})
    known = provenance(engine_version=version, **changes)
    return write_study(
        folder / version, truth, arms=(arm,), provenance=known, loads=LOADS[:1], rounds=3, seed=seed, **parts
    )


def test_two_versions_are_an_upgrade_and_the_verdict_is_on_the_second(tmp_path: Path) -> None:
    paths = [study(tmp_path, "v1", speedup=2.0), study(tmp_path, "v2", speedup=1.6, seed=2)]

    judgement = compare(paths)

    assert judgement.provenance.engine_version == "v2"
    assert judgement.upgrade is not None
    sides = (judgement.upgrade.before, judgement.upgrade.after)
    assert [side.engine_version for side in sides] == ["v1", "v2"]
    assert judgement.upgrade.moved == ("step-cost",)
    assert judgement.verdict.evidence is not None
    overall = judgement.verdict.evidence.overall
    assert overall is not None
    assert overall.speedup.value == pytest.approx(1.6, rel=0.05)


def test_the_terminal_shows_it_first_and_json_has_it(tmp_path: Path, cli: Cli) -> None:
    paths = [study(tmp_path, "v1", speedup=2.0), study(tmp_path, "v2", speedup=1.6, seed=2)]

    shown, document = cli("compare", *paths), cli("compare", *paths, "--json").document

    assert shown.code == 0
    lines = [line for line in shown.stdout.splitlines() if line.strip()]
    assert re.match(r"The cost of a step rose by 2\d%; acceptance is not shown to have moved\.", lines[0])
    assert "v1 -> v2" in lines[1]
    upgrade = document["upgrade"]
    assert upgrade["moved"] == ["step-cost"]
    assert upgrade["before"]["engine_version"] == "v1"
    assert upgrade["after"]["speedup"] == pytest.approx(1.6, rel=0.05)
    assert upgrade["step_cost"]["low"] > 1
    assert upgrade["sentence"] == lines[0]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"environment": {"model_sha256": "other"}}, "model_sha256: m / other"),
        (
            {"environment": {"host": {"cpu": "another cpu", "cores": 2, "gpus": []}}},
            "cpu: a cpu / another cpu",
        ),
        ({"engine": engine_spec(threads=2)}, "threads: 1 / 2"),
    ],
)
def test_whatever_else_differs_is_refused_as_before(tmp_path: Path, parts: dict[str, Any], said: str) -> None:
    paths = [study(tmp_path, "v1", speedup=2.0), study(tmp_path, "v2", speedup=2.0, **parts)]

    with pytest.raises(StudyError, match="different environments") as refused:
        compare(paths)
    assert said in str(refused.value)


def test_three_studies_of_two_versions_are_refused(tmp_path: Path) -> None:
    paths = [study(tmp_path, version, speedup=2.0) for version in ("v1", "v2", "v3")]

    with pytest.raises(StudyError, match="engine_version: v1 / v2"):
        compare(paths)
