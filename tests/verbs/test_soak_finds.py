"""Faults that the fake engine is given are found by a soak, and no others. Which fault each corruption shows as is in
tests/testing/test_fake_corruption.py."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from in_threads import use_threads
from running import Cli, Result, called
from soaking import TIMES, found, soak, soak_words
from speclift.lossless.soak.traffic import SoakKind
from speclift.testing.running import running

# Every request of these kinds can show the fault, and every one under load does.
LEAK = ("corruption=leaked-token", "corruption_above_streams=2")
LEAKING_KINDS = (SoakKind.COPY, SoakKind.SHORT)
MARKDOWN, JUNIT = "gate.md", "gate.xml"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leaking")


@pytest.fixture(scope="module")
def leaking(folder: Path) -> Result:
    """A soak of an arm that leaks special tokens under load."""
    truths = tuple(f"spec.{truth}" for truth in LEAK)
    words = soak_words("--junit", JUNIT, "--markdown", MARKDOWN, truths=truths, kinds=LEAKING_KINDS)
    with pytest.MonkeyPatch.context() as patch:
        use_threads(patch)
        return called(*words, cwd=folder)


def test_a_fault_of_the_arm_alone_fails_it_with_a_rate_and_a_script(leaking: Result, folder: Path) -> None:
    assert leaking.code == 6, leaking.stderr
    seen = found(leaking)["special-token"]
    assert 0 < seen["low"] <= seen["rate"] <= seen["high"] <= 1
    assert seen["control_rate"] == 0
    assert seen["first_seen_s"] > 0
    assert seen["evidence"]
    script = folder / seen["script"]
    assert script.is_file()
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert leaking.document["answer"]["sentence"].startswith("Do not use ngram-k4")


def test_junit_and_markdown_tell_the_faults_too(leaking: Result, folder: Path) -> None:
    junit = folder / JUNIT
    path = ".//testcase[@classname='ngram-k4.soak'][@name='special-token']"
    case = ElementTree.parse(junit).find(path)
    assert case is not None
    assert case.find("failure") is not None
    assert stat.S_IMODE(junit.stat().st_mode) == 0o600
    assert "| ngram-k4 | special-token |" in (folder / MARKDOWN).read_text()


def test_the_script_of_a_fault_sees_it_on_a_server_that_has_it_and_on_no_other(
    leaking: Result, folder: Path
) -> None:
    script = folder / found(leaking)["special-token"]["script"]

    def exit_code(url: str) -> int:
        return subprocess.run([sys.executable, script, url], capture_output=True, check=False).returncode

    with running(*TIMES, "k=4", *LEAK) as url:
        assert exit_code(url) == 1
    with running(*TIMES, "k=4") as url:
        assert exit_code(url) == 0


def test_what_only_one_kind_of_request_shows_is_found(cli: Cli) -> None:
    result = soak(cli, truths=("spec.corruption=invalid-json",), kinds=(SoakKind.SCHEMA,))
    assert result.code == 6, result.stderr
    assert "invalid-json" in found(result)


def test_words_that_change_under_load_alone_are_found_at_temperature_0(cli: Cli) -> None:
    truths = ("spec.corruption=other-words", "spec.corruption_above_streams=2")
    result = soak(cli, truths=truths, kinds=(SoakKind.COPY,))
    assert result.code == 6, result.stderr
    assert set(found(result)) == {"altered-copy"}


def test_what_the_baseline_does_as_well_is_not_the_arms_fault(cli: Cli) -> None:
    result = soak(cli, truths=("corruption=leaked-token",), kinds=LEAKING_KINDS)
    assert result.document["soak"]["requests"] > 0
    assert found(result) == {}
