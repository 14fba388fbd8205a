"""How many bytes the models of a study take on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from speclift.core.arm import Arm
from speclift.core.speculation import DraftModel, drafters_of

# What weights are stored as in a Hugging Face folder.
WEIGHT_FILES = ("*.safetensors", "*.bin")


def drafts_of(arms: Iterable[Arm]) -> Iterator[str]:
    for arm in arms:
        for drafter in drafters_of(arm.speculation):
            if isinstance(drafter, DraftModel):
                yield drafter.model


def weight_bytes(models: Iterable[str]) -> dict[str, int]:
    """By name; what is no file or folder here is left out."""
    return {model: found for model in models if model and (found := _bytes_at(Path(model)))}


def _bytes_at(path: Path) -> int:
    try:
        if path.is_file():
            return path.stat().st_size
        files = [file for pattern in WEIGHT_FILES for file in path.glob(pattern)] if path.is_dir() else []
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0  # gone, or not ours to read: as good as not here
