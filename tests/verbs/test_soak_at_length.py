"""Soaks that take longest: sampled text under load, servers that die, the soak at the end of decide."""

from __future__ import annotations

import pytest

from running import Cli, fake_flags
from soaking import TIMES, soak
from speclift.bench import gate_study, soak_run
from speclift.lossless.soak import traffic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("sampler", "result"), [("rejection", {"pass", "inconclusive"}), ("typical", {"fail"})]
)
def test_what_is_sampled_under_load_is_held_against_the_targets_probabilities(
    sampler: str, result: set[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Most of a short soak instead of a fifth of a long one: about ten times the tokens that it takes.
    monkeypatch.setattr(soak_run, "SAMPLING_SHARE", 0.6)
    # As if few requests were enough: where they are not, there is no time to sample.
    monkeypatch.setattr(traffic, "WANTED_TIMES", 0.05)
    truths = ("ttft_s=0.005", "tpot_s=0.0005", "flavour=vllm", "sampler=rejection", f"spec.sampler={sampler}")
    told = soak(cli, "--temperature", "1", "--detect", 0.2, truths=truths, soak_s=8)
    distribution = told.document["soak"]["arms"][0]["distribution"]
    assert distribution["result"] in result
    assert distribution["tokens"] > 0


def test_decide_in_full_ends_with_a_soak_that_can_fail_an_arm(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only shows with tools, which neither the study nor the gate sends."""
    # However long the study takes of its part of the budget, enough is left for a soak.
    monkeypatch.setattr(gate_study, "SOAK_SHARE", 0.75)
    truths = ("spec.corruption=cross-talk", "spec.corruption_with_tools=true")
    result = cli(
        *("decide", "--verify", "full", "--budget", "18s", "--segment", "chat", "--requests", 4),
        *("--max-tokens", 8, "--launches", 1, "--concurrency", 2, "--temperature", 0),
        *fake_flags(*TIMES, *truths, fast=False),
        "--json",
    )
    assert result.code == 6, result.stderr
    assert result.document["verdict"] == "output-changed"
    faults = result.document["lossless"]["soak"]["faults"]
    assert next(fault["result"] for fault in faults if fault["name"] == "cross-talk") == "found"


def test_a_server_that_dies_fails_its_arm_with_its_last_words_and_is_started_again(cli: Cli) -> None:
    result = soak(cli, "--launches", 2, truths=("spec.crash_after=12",), soak_s=12)
    assert result.code == 6, result.stderr
    document = result.document["soak"]
    failures = [finding for finding in document["findings"] if finding["check"] == "arm-failed"]
    assert {finding["level"] for finding in failures} == {"fail"}
    assert "aborting after 12 finished requests" in failures[0]["message"]
    assert document["arms"][0]["launches"] >= len(failures)
