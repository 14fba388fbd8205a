"""From flags to vLLM's commands: what every arm shares, what a draft gets, what is said before anything starts."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.prepare import Experiment, prepare
from speclift.bench.search_study import prospect


@pytest.fixture
def gpu_python(tmp_path: Path) -> str:
    """An interpreter whose environment has a vLLM for GPUs, as far as anybody asks."""
    return interpreter(tmp_path, "vllm 0.24.0")


def interpreter(folder: Path, version: str) -> str:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\necho '{version}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def prepared(python: str, **asked: Any) -> Experiment:
    ask = Ask.of(engine="vllm", vllm_python=python, model="org/target", requests=2, **asked)
    return prepare(ask, Observer())


SCHEDULING = {"--async-scheduling", "--no-async-scheduling"}


def scheduling_of(made: Experiment) -> dict[str, set[str]]:
    return {arm.name: SCHEDULING & set(made.engine.command(arm, port=0)) for arm in made.plan.arms}


def test_a_method_that_cannot_schedule_ahead_does_not_take_it_from_the_baseline(gpu_python: str) -> None:
    made = prepared(gpu_python, methods=("ngram,n=3",), ks=(3,))
    assert scheduling_of(made) == {
        "baseline": set(),
        "ngram-k3-n3": set(),
        "control": {"--no-async-scheduling"},
    }
    (said,) = [finding for finding in made.findings if finding.check == "async-scheduling"]
    assert "ngram-k3-n3" in said.message
    assert "a cost of speculation" in said.message


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"async_scheduling": False}, id="off for all"),
        pytest.param({"engine_args": ("--no-async-scheduling",)}, id="off in the engine's own words"),
    ],
)
def test_who_asked_for_it_off_has_it_off_and_needs_no_control(gpu_python: str, asked: dict[str, Any]) -> None:
    made = prepared(gpu_python, methods=("ngram,n=3",), **asked)
    assert list(scheduling_of(made).values()) == [{"--no-async-scheduling"}] * 2
    assert made.findings == ()


def test_a_search_gets_its_control_when_it_is_confirmed(gpu_python: str) -> None:
    ask = Ask.of(
        engine="vllm",
        vllm_python=gpu_python,
        model="org/target",
        requests=30,
        methods=("ngram,n=3",),
        ks=(1, 3, 5),
    )
    found = prospect(ask, Observer(), always=False)
    assert found is not None
    assert found.is_search
    made = found
    assert not any(arm.is_control for arm in made.plan.arms)
    assert all(not words for words in scheduling_of(made).values())


def test_a_version_that_drafts_outside_cuda_graphs_is_forewarned(gpu_python: str) -> None:
    made = prepared(gpu_python, drafts=("org/draft",), ks=(3, 5))
    (finding,) = made.findings
    assert finding.check == "risky-setting"
    assert finding.message.startswith("draft-k3, draft-k5:")
