"""The tuner on the embedded llama.cpp, for real: few launches, a confirmed arm, predictions beside measurements."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from running import Cli

pytestmark = [pytest.mark.llama, pytest.mark.long]

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "verdict.schema.json"


def test_a_search_on_copied_text_confirms_an_n_gram_arm_with_few_launches(
    cli: Cli, embedded_model: Path
) -> None:
    size = ("--segment", "verbatim-rewrite", "--requests", 18, "--max-tokens", 16, "--temperature", 0)
    space = ("--method", "ngram,n=4", "--method", "ngram,n=7", "--k", "5,7,11,15")
    result = cli(
        *(
            "tune",
            "--model",
            embedded_model,
            *size,
            *space,
            "--launches",
            1,
            "--threads",
            1,
            "--budget",
            "70s",
        ),
        *("--json", "--study", "s"),
    )
    assert result.code == 0, result.stderr
    document = result.document
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    tuning = document["tuning"]
    assert len({cell["arm"] for cell in tuning["cells"]}) == 8
    # It would start and never draft.
    assert [each["arm"] for each in tuning["eliminated"] if each["stage"] == "space"] == ["ngram-n7-k5"]
    assert {cell["is_measured"] for cell in tuning["cells"]} == {True, False}
    assert tuning["prompts"]["is_held_out"]
    assert tuning["spent_s"] < tuning["grid_s"]
    best = tuning["best"]
    assert best["arm"] in tuning["confirmed"]
    assert "--spec-type ngram-simple" in best["command"]
    assert {row["arm"] for row in tuning["confirmed_errors"]} == set(tuning["confirmed"]) - {"baseline"}
