from __future__ import annotations

import pytest

from speclift.weights.catalogue_files import (
    CatalogueModel,
    catalogue_gpus,
    catalogue_models,
    find_gpu,
    find_model,
    recognise,
)


@pytest.mark.parametrize("model", catalogue_models(), ids=lambda model: model.name)
def test_the_shape_of_every_row_has_the_parameters_that_were_published(model: CatalogueModel) -> None:
    assert model.shape().parameters.total == model.parameters


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


def test_a_shape_is_recognised_by_its_numbers_and_its_name_where_two_share_them() -> None:
    model = find_model("llama-3.3-70b")
    assert model is not None
    assert recognise(model.shape()) == model
