"""Faults that the fake engine is given are found by a soak, and no others."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from running import Cli, fake_flags
from soaking import SOAK, TIMES, found, soak
from speclift.testing.running import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CORRUPTIONS = {
    "leaked-token": "special-token",
    "cross-talk": "cross-talk",
    "text-after-stop": "text-after-stop",
    "budget-ignored": "budget-ignored",
    "invalid-json": "invalid-json",
}


@pytest.mark.parametrize(("corruption", "fault"), CORRUPTIONS.items())
def test_a_fault_of_the_arm_alone_fails_it_with_a_rate_and_a_script(
    corruption: str, fault: str, cli: Cli
) -> None:
    truths = (f"spec.corruption={corruption}", "spec.corruption_share=0.3", "spec.corruption_above_streams=2")
    result = soak(cli, truths=truths, soak_s=12)
    assert result.code == 6, result.stderr
    seen = found(result)[fault]
    assert 0 < seen["low"] <= seen["rate"] <= seen["high"] <= 1
    assert seen["control_rate"] == 0
    assert seen["first_seen_s"] > 0
    assert seen["evidence"]
    assert Path(seen["script"]).is_file()
    assert stat.S_IMODE(Path(seen["script"]).stat().st_mode) == 0o600
    assert result.document["answer"]["sentence"].startswith("Do not use ngram-k4")


def test_what_the_baseline_does_as_well_is_not_the_arms_fault(cli: Cli) -> None:
    result = soak(cli, truths=("corruption=leaked-token", "corruption_share=0.2"))
    assert found(result) == {}


def test_a_fault_of_the_second_launch_alone_is_found(cli: Cli) -> None:
    truths = ("spec.corruption=cross-talk", "spec.corruption_share=0.3", "spec.corruption_on_launch=2")
    flags = fake_flags(*TIMES, *truths, fast=False)
    # The gate launches the arm once before.
    result = cli(*SOAK, *flags, "--soak", "12s", "--launches", 2, "--json")
    assert "cross-talk" in found(result)


def test_the_script_of_a_fault_sees_it_on_a_server_that_has_it_and_on_no_other(cli: Cli) -> None:
    result = soak(cli, truths=("spec.corruption=leaked-token", "spec.corruption_share=0.3"), soak_s=12)
    script = found(result)["special-token"]["script"]

    def exit_code(url: str) -> int:
        return subprocess.run([sys.executable, script, url], capture_output=True, check=False).returncode

    with running(*TIMES, "k=4", "corruption=leaked-token", "corruption_share=0.3") as url:
        assert exit_code(url) == 1
    with running(*TIMES, "k=4") as url:
        assert exit_code(url) == 0
