"""A study that sweeps temperatures says of all of them together what any other study says."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import Decided, called, fake_flags
from speclift.studies.study import Study

PROMPTS = 6


@pytest.fixture(scope="module", params=["0", "0,0.7"])
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decided:
    folder = tmp_path_factory.mktemp("swept")
    size = (
        "--segment",
        "chat",
        "--requests",
        PROMPTS,
        "--max-tokens",
        12,
        "--launches",
        1,
        "--verify",
        "off",
    )
    temperatures = ("--temperature", request.param)
    result = called("decide", *size, *temperatures, *fake_flags(), "--json", "--study", "s", cwd=folder)
    return Decided(study=folder / "s", result=result)


def test_each_arm_has_a_cell_over_all_temperatures_beside_those_of_each(swept: Decided) -> None:
    with Study.open(swept.study) as study:
        temperatures = study.plan.temperatures
    for arm in ("baseline", "ngram-k4"):
        requests = {
            cell["temperature"]: cell["requests"]
            for cell in swept.result.document["cells"]
            if (cell["arm"], cell["segment"]) == (arm, "all")
        }
        assert requests == {None: PROMPTS * len(temperatures), **dict.fromkeys(temperatures, PROMPTS)}


def test_a_plan_takes_its_acceptance(swept: Decided, tmp_path: Path) -> None:
    pair = ("--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpu", "h200")
    planned = called("plan", *pair, "--acceptance", swept.study, "--json", cwd=tmp_path)
    assert planned.code == 0, planned.stderr
