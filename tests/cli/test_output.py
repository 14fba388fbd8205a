"""What goes where: answers and documents on stdout, progress on stderr, no terminal codes where no terminal is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from running import Cli, Decided, records_of, speclift


def test_an_answer_that_the_encoding_lacks_signs_for_is_still_given(decided: Decided) -> None:
    result = speclift(
        "compare", decided.study, cwd=decided.study.parent, environment={"PYTHONIOENCODING": "ascii"}
    )
    assert result.code == decided.result.code
    assert "Speedup over the baseline" in result.stdout


def test_a_cells_numbers_are_those_of_its_records(decided: Decided) -> None:
    records = [r for r in records_of(decided.study) if r.place.phase == "measured"]
    for cell in decided.result.document["cells"]:
        own = [r for r in records if r.place.arm == cell["arm"]]
        assert (cell["requests"], cell["failed"]) == (len(own), 0)
        assert cell["ttft_s"]["p99"] is None  # far fewer than 100 requests
        if cell["arm"] == "ngram-k4":
            drafted, accepted = sum(r.drafted or 0 for r in own), sum(r.accepted or 0 for r in own)
            assert cell["acceptance_rate"]["mean"] == pytest.approx(accepted / drafted)


@pytest.mark.slow
def test_an_interval_without_bounds_is_null_not_infinity(cli: Cli, small: list[object]) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    one_prompt = cli("decide", *small, "--requests", 1, "--concurrency", "1,2", "--json")
    document = json.loads(one_prompt.stdout, parse_constant=refuse)
    assert (one_prompt.code, document["verdict"]) == (5, "inconclusive")
    assert document["speedup"]["high"] is None
