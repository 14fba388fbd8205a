"""Soaks that take longest: sampled text under load, servers that die, the soak at the end of decide."""

from __future__ import annotations

import pytest

from running import Cli, fake_flags
from soaking import SOAK, TIMES, soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("sampler", "result"), [("rejection", {"pass", "inconclusive"}), ("typical", {"fail"})]
)
def test_what_is_sampled_under_load_is_held_against_the_targets_probabilities(
    sampler: str, result: set[str], cli: Cli
) -> None:
    truths = ("flavour=vllm", "sampler=rejection", f"spec.sampler={sampler}")
    told = soak(cli, "--temperature", "1", "--detect", 0.2, truths=truths, soak_s=30)
    distribution = told.document["soak"]["arms"][0]["distribution"]
    assert distribution["result"] in result
    assert distribution["tokens"] > 0


def test_decide_in_full_ends_with_a_soak_that_can_fail_an_arm(cli: Cli) -> None:
    """What only shows with tools, which neither the study nor the gate sends."""
    truths = ("spec.corruption=cross-talk", "spec.corruption_share=0.2", "spec.corruption_with_tools=true")
    result = cli(
        *("decide", "--verify", "full", "--budget", "45s", "--segment", "chat", "--requests", 8),
        *("--max-tokens", 8, "--launches", 1, "--concurrency", 2, "--temperature", 0),
        *fake_flags(*TIMES, *truths, fast=False),
        "--json",
    )
    assert result.code == 6, result.stderr
    assert result.document["verdict"] == "output-changed"
    faults = result.document["lossless"]["soak"]["faults"]
    assert next(fault["result"] for fault in faults if fault["name"] == "cross-talk") == "found"


def test_a_server_that_dies_fails_its_arm_with_its_last_words_and_is_started_again(cli: Cli) -> None:
    flags = fake_flags(*TIMES, "spec.crash_after=120", fast=False)
    result = cli(*SOAK, *flags, "--soak", "24s", "--launches", 2, "--json")
    assert result.code == 6, result.stderr
    document = result.document["soak"]
    failures = [finding for finding in document["findings"] if finding["check"] == "arm-failed"]
    assert {finding["level"] for finding in failures} == {"fail"}
    assert "aborting after 120 finished requests" in failures[0]["message"]
    assert document["arms"][0]["launches"] >= len(failures)
