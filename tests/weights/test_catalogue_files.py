from __future__ import annotations

import pytest

from speclift.core.errors import UsageError
from speclift.planner.precision import PRECISIONS
from speclift.weights.catalogue_files import (
    CatalogueModel,
    catalogue_gpus,
    catalogue_models,
    find_gpu,
    find_model,
    recognise,
    unknown_model,
)


@pytest.mark.parametrize("model", catalogue_models(), ids=lambda model: model.name)
def test_the_shape_of_every_row_has_the_parameters_that_were_published(model: CatalogueModel) -> None:
    assert model.shape().parameters.total == model.parameters


@pytest.mark.parametrize("model", catalogue_models(), ids=lambda model: model.name)
def test_every_model_says_where_its_row_is_from_and_can_be_weighed(model: CatalogueModel) -> None:
    shape = model.shape()
    assert model.source.endswith("config.json")
    assert shape.precision in PRECISIONS
    assert sum(kv.layers for kv in shape.kv) > 0
    assert shape.max_positions >= 2048


def test_every_gpu_says_where_its_row_is_from_and_offers_no_more_than_its_label() -> None:
    for gpu in catalogue_gpus():
        assert gpu.source
        # A label counts in decimal or binary gigabytes, never fewer than what is offered.
        assert gpu.memory_bytes <= gpu.nominal_bytes * 1.074
        assert gpu.flops_16 > 1e12


def test_no_name_stands_for_two_models_or_two_gpus() -> None:
    names = [each for model in catalogue_models() for each in (model.name, *model.aliases)]
    gpus = [gpu.name for gpu in catalogue_gpus()]
    assert len(set(names)) == len(names)
    assert len(set(gpus)) == len(gpus)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("llama-3.1-70b", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("mixtral", "mixtral-8x7b"),
    ],
)
def test_a_model_is_found_under_the_names_people_use(typed: str, found: str) -> None:
    model = find_model(typed)
    assert model is not None
    assert model.name == found


def test_an_unknown_model_names_the_nearest() -> None:
    assert find_model("lama-3.1-70") is None
    assert "'llama-3.1-70b'" in str(unknown_model("lama-3.1-70"))
    assert "smollm2-135m" in unknown_model("x").hint


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("h100", "h100-80gb"),
        ("H200", "h200-141gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-24gb"),
        ("4090", "rtx-4090-24gb"),
    ],
)
def test_a_gpu_is_found_under_the_names_people_and_drivers_use(typed: str, found: str) -> None:
    assert find_gpu(typed).name == found


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="h100-80gb") as raised:
        find_gpu("h1000")
    assert "rtx-4090-24gb" in raised.value.hint


def test_a_shape_is_recognised_by_its_numbers_and_its_name_where_two_share_them() -> None:
    model = find_model("llama-3.3-70b")
    assert model is not None
    assert recognise(model.shape()) == model


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Qwen 2.5 72B", "qwen2.5-72b"),
        ("Qwen2.5 72B Instruct", "qwen2.5-72b"),
        ("Mistral Large 2", "mistral-large-123b"),
        ("Llama-3.1 70B", "llama-3.1-70b"),
    ],
)
def test_models_are_found_as_people_write_them(written: str, name: str) -> None:
    found = find_model(written)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("written", "name"),
    [("6000 Pro", "rtx-pro-6000-96gb"), ("RTX 6000 Pro", "rtx-pro-6000-96gb"), ("H100 SXM5", "h100-80gb")],
)
def test_gpus_are_found_as_people_write_them(written: str, name: str) -> None:
    assert find_gpu(written).name == name


def test_no_two_models_share_a_name_however_it_is_written() -> None:
    owners: dict[str, set[str]] = {}
    for model in catalogue_models():
        for written in (model.name, model.hugging_face_id, *model.aliases):
            found = find_model(written)
            assert found is not None
            owners.setdefault(written, set()).update({model.name, found.name})
    assert {written: names for written, names in owners.items() if len(names) > 1} == {}
