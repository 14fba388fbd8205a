"""A short soak of the embedded llama.cpp: n-gram, draft and both stand it, or what they do is there to be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import Cli

pytestmark = [pytest.mark.llama, pytest.mark.long, pytest.mark.timeout(400)]

SIZE = ("--requests", 1, "--max-tokens", 8, "--temperature", 0, "--context", 512, "--segment", "chat")
METHODS = (
    *("--method", "ngram,k=7,n=6", "--method", "draft", "--method", "ngram+draft"),
    *("--draft", "smollm2-135m-draft", "--k", 4),
)


def test_a_clean_engine_shows_no_fault_under_fire(embedded_model: Path, cli: Cli) -> None:
    result = cli(
        *("verify", "--model", embedded_model, *METHODS, *SIZE),
        *("--concurrency", "1,4", "--launches", 1, "--soak", "40s", "--study", "s", "--json"),
    )
    # A gate of one prompt and a soak of ten seconds each settle nothing; they find nothing either.
    assert result.code == 5, result.stderr
    soak = result.document["soak"]
    assert len(soak["arms"]) == 3
    assert soak["requests"]
    assert [fault for fault in soak["faults"] if fault["result"] == "found"] == []
    assert not [finding for finding in soak["findings"] if finding["level"] == "fail"]
