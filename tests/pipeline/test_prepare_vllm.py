"""From flags to vLLM's commands: what every arm shares, what a draft gets, what is said before anything starts."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from speclift.core.errors import UsageError
from speclift.pipeline.ask import Ask
from speclift.pipeline.prepare import Prepared, prepare


@pytest.fixture
def gpu_python(tmp_path: Path) -> str:
    """An interpreter whose environment has a vLLM for GPUs, as far as anybody asks."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'vllm 0.24.0'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def prepared(python: str, **asked: Any) -> Prepared:
    ask = Ask(engine="vllm", vllm_python=python, model="org/target", requests=2, **asked)
    return prepare(ask, lambda _: None)


def command_of(made: Prepared, index: int) -> list[str]:
    return list(made.engine.command(made.plan.arms[index], port=0))


def test_all_arms_schedule_ahead_where_all_can(gpu_python: str) -> None:
    made = prepared(gpu_python, drafts=("org/draft",), ks=(3,))
    assert all("--async-scheduling" in command_of(made, index) for index in (0, 1))
    assert "async-scheduling" not in [finding.check for finding in made.findings]


def test_no_arm_schedules_ahead_where_one_cannot_and_the_study_says_so(gpu_python: str) -> None:
    made = prepared(gpu_python, methods=("ngram,n=3",), ks=(3,))
    assert all("--no-async-scheduling" in command_of(made, index) for index in (0, 1))
    assert "async-scheduling" in [finding.check for finding in made.findings]


def test_who_asked_for_it_off_is_not_told_that_it_is_off(gpu_python: str) -> None:
    made = prepared(gpu_python, methods=("ngram,n=3",), schedules_ahead=False)
    assert made.findings == ()


def test_asking_for_what_a_method_cannot_do_is_wrong_usage(gpu_python: str) -> None:
    with pytest.raises(UsageError, match="cannot run with --async-scheduling"):
        prepared(gpu_python, methods=("ngram,n=3",), schedules_ahead=True)


def test_a_version_that_drafts_outside_cuda_graphs_is_forewarned(gpu_python: str) -> None:
    made = prepared(gpu_python, drafts=("org/draft",), ks=(3, 5))
    (finding,) = made.findings
    assert finding.check == "risky-setting"
    assert finding.message.startswith("draft-k3, draft-k5:")


def test_draft_settings_reach_drafts_and_nothing_else(gpu_python: str) -> None:
    made = prepared(
        gpu_python,
        drafts=("org/draft",),
        methods=("draft,k=3", "synthetic:draft,rates=0.5", "ngram,n=3,k=3"),
        draft_quant="fp8",
        tensor_parallel=2,
        draft_tensor_parallel=2,
    )
    configs = [made.engine.config(arm) for arm in made.plan.arms]
    assert [config.get("quantization") for config in configs] == [None, "fp8", "fp8", None]
    assert [config.get("draft_tensor_parallel_size") for config in configs] == [None, 2, 2, None]
    assert all("--tensor-parallel-size" in command_of(made, index) for index in range(4))


def test_a_draft_on_fewer_gpus_than_its_target_is_refused(gpu_python: str) -> None:
    with pytest.raises(UsageError, match="as many GPUs as its target"):
        prepared(gpu_python, drafts=("org/draft",), tensor_parallel=2, draft_tensor_parallel=1)


def test_a_schedule_by_batch_size_is_passed_on(gpu_python: str) -> None:
    key = "num_speculative_tokens_per_batch_size"
    made = prepared(gpu_python, methods=(f"ngram,n=3,k=5,{key}=[[1,8,5],[9,64,0]]",))
    words = command_of(made, 1)
    assert json.loads(words[words.index("--speculative-config") + 1])[key] == [[1, 8, 5], [9, 64, 0]]


@pytest.mark.parametrize(("together", "expected"), [(None, False), (True, True), (False, False)])
def test_servers_share_a_gpu_only_when_asked_to(
    gpu_python: str, together: bool | None, expected: bool
) -> None:
    assert prepared(gpu_python, methods=("ngram,n=3",), together=together).plan.together is expected
