"""Targets by size and by ids that end in a format; and whatever is asked, no plan has negative bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from running import Cli
from speclift.core.errors import OperatingError, UsageError
from speclift.planner.plan import plan_document
from speclift.verbs.plan import plan
from speclift.weights.catalogue_files import catalogue_gpus, catalogue_models
from speclift.weights.named_models import find_source


@pytest.mark.parametrize(
    ("reference", "name", "precision"),
    [
        ("org/Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", "awq"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen2.5-72b", "gptq"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "qwen2.5-72b", "int8"),
        ("org/Mistral-7B-Instruct-v0.3-GPTQ", "mistral-7b-v0.3", "gptq"),
        ("org/Qwen3-32B-INT4", "qwen3-32b", "int4"),
        ("neuralmagic/Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", "int4"),
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "llama-3.2-1b", "nf4"),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "llama-3.1-8b", "nvfp4"),
        ("llama-3.1-70b-awq", "llama-3.1-70b", "awq"),
    ],
)
def test_an_id_says_its_format(reference: str, name: str, precision: str) -> None:
    source = find_source(reference, prefers_gguf=False)
    assert (source.shape.name, source.shape.precision) == (name, precision)
    assert source.is_nameable == ("/" in reference)


@pytest.mark.parametrize(
    ("reference", "parameters", "active"),
    [
        ("123B", 123e9, None),
        ("7b", 7e9, None),
        ("7.5B", 7.5e9, None),
        ("350M", 350e6, None),
        ("1000B", 1e12, None),
        ("30B-A3B", 30e9, 3e9),
        ("235B-A22B", 235e9, 22e9),
    ],
)
def test_a_size_is_a_model_with_its_assumptions_stated(
    reference: str, parameters: float, active: float | None, cli: Cli
) -> None:
    shape = find_source(reference, prefers_gguf=False).shape
    assert shape.parameters.total == pytest.approx(parameters, rel=0.001)
    assert shape.is_moe == (active is not None)
    if active is not None:
        assert shape.active_parameters == pytest.approx(active, rel=0.25)
    result = cli("plan", "--json", "--target", reference, "--gpu", "h200", "--gpus", "8", "--context", "2048")
    assert result.code in (0, 4)
    assert any("only its size is known; assumed" in found["message"] for found in result.document["findings"])
    assert result.document["next"] == []


MODELS = [*(entry.name for entry in catalogue_models()), "3B", "123B", "700B", "60B-A4B"]
METHODS = ["ngram", "eagle", "eagle3", "mtp", "medusa", "dflash", "draft", "suffix"]


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


@pytest.mark.slow
@given(
    target=st.sampled_from(MODELS),
    drafts=st.lists(st.sampled_from(MODELS), max_size=1),
    methods=st.lists(st.sampled_from(METHODS), max_size=2),
    gpu=st.sampled_from([device.name for device in catalogue_gpus()]),
    gpus=st.sampled_from([1, 2, 4, 8, 16]),
    pp=st.sampled_from([1, 2]),
    utilisation=st.floats(0.01, 1.0),
    context=st.integers(1, 2_000_000),
    engine=st.sampled_from(["vllm", "llamacpp"]),
    quantisation=st.sampled_from([None, "fp8", "int4", "q4_k_m"]),
    max_num_seqs=st.integers(1, 10_000),
)
def test_no_plan_has_negative_bytes_and_no_arm_beats_its_ceiling(**asked: Any) -> None:
    asked["drafts"] = tuple(asked["drafts"])
    asked["methods"] = tuple(asked["methods"])
    asked["target_quant"] = asked.pop("quantisation")
    try:
        told = plan_document(plan(**asked))
    except (UsageError, OperatingError):
        return
    negative = [(path, value) for path, value in numbers(told) if value < 0]
    assert negative == []
    for load in told["prediction"]["loads"]:
        for arm in load["arms"]:
            assert arm["speedup"]["high"] <= arm["ceiling"] * (1 + 1e-5)
