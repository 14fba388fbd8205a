"""A Hugging Face folder is known again by its shape and weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from speclift.weights.models import folder_fingerprint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLIFT_CACHE", str(tmp_path / "cache"))


def folder(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in {"config.json": "{}", "model.safetensors": "weights", **files}.items():
        (path / name).write_text(text)
    return path


def test_a_copy_elsewhere_is_the_same_model(tmp_path: Path) -> None:
    assert folder_fingerprint(folder(tmp_path / "a")) == folder_fingerprint(folder(tmp_path / "b"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model-2.safetensors"])
def test_another_shape_or_other_weights_are_another_model(name: str, tmp_path: Path) -> None:
    other = folder(tmp_path / "b", **{name: "changed"})
    assert folder_fingerprint(folder(tmp_path / "a")) != folder_fingerprint(other)


def test_a_part_too_large_to_hash_whole_marks_the_whole_as_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speclift.weights.models.FULL_HASH_BYTES_MAX", 3)
    monkeypatch.setattr("speclift.weights.models.PARTIAL_HASH_BYTES", 2)
    assert folder_fingerprint(folder(tmp_path / "a")).startswith("partial:")
