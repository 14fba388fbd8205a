"""The lossless gate on vLLM's CPU build 0.32: wrong above temperature 0 under speculation, right at 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import Cli

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def flags(python: str, model: Path) -> tuple[object, ...]:
    """The model drafts for itself: every draft is right, so that all that differs is the fault."""
    server = ("--engine", "vllm", "--vllm-python", python, "--engine-arg=--enforce-eager", "--model", model)
    return (*server, "--draft", model, "--k", 3, "--requests", 8, "--max-tokens", 24, "--json")


def test_draft_model_at_temperature_1_is_a_changed_output(
    vllm_python: str, hugging_face_model: Path, cli: Cli
) -> None:
    result = cli("verify", *flags(vllm_python, hugging_face_model), "--temperature", 1, "--detect", 0.2)
    assert result.code == 6, result.stderr
    sampled = result.document["sampled"]
    assert sampled["method"] == "calibration"
    assert sampled["result"] == "fail"
    # The baseline follows its own probabilities: it is the sampler, not the scoring, that is wrong.
    assert all(test["p_value"] > 1e-4 for test in sampled["control_tests"] if test["used"])
    assert result.document["examples"][0]["answer"] != result.document["examples"][0]["baseline"]


def test_draft_model_at_temperature_0_passes_and_refused_settings_are_named(
    vllm_python: str, hugging_face_model: Path, cli: Cli
) -> None:
    result = cli("verify", *flags(vllm_python, hugging_face_model), "--temperature", 0, "--detect", 0.05)
    assert result.code == 0, result.stderr
    document = result.document
    assert document["greedy"]["faults"] == 0
    assert document["control"]["noise_tokens"] > 50
    refused = [
        finding["message"] for finding in document["findings"] if finding["check"] == "refused-setting"
    ]
    assert any("logit_bias" in message for message in refused)
    assert any("min_p" in message for message in refused)
