"""What could draft for a target on this machine: MTP layers that its config names, heads in folders in it and beside
it, a smaller model of its family beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from speclift.core.json_reading import as_list, as_object, as_text, as_whole
from speclift.core.speculation import DraftModel, Head
from speclift.core.units import Bytes
from speclift.planner.config_shape import Fields, mtp_layers
from speclift.weights.hf_folder import hub_folder

# A folder of models has some dozens; nobody waits for a walk through a disk.
FOLDERS_MAX = 200
CONFIG_BYTES_MAX = 1_000_000
# A draft that reads more than this of its target's bytes adds as much to a step for every token it drafts.
DRAFT_SHARE_MAX = 0.3
WEIGHT_SUFFIXES = (".safetensors", ".bin")


def found_heads(model: str) -> tuple[Head, ...]:
    """Empty where the target's own config is not at hand."""
    folder = Path(model) if Path(model).is_dir() else hub_folder(model)
    config = _config(folder) if folder is not None else None
    if folder is None or config is None:
        return ()
    own = [Head(kind="mtp")] if mtp_layers(Fields.of(config, where=str(folder))) else []
    # An id's folder in the cache lies among its other revisions, and not among models.
    places = [folder, folder.resolve().parent] if Path(model).is_dir() else [folder]
    beside = [
        Head(kind=kind, model=str(path))
        for path in islice(_folders(places), FOLDERS_MAX)
        if path.resolve() != folder.resolve() and (kind := _head_kind(_config(path), config)) is not None
    ]
    return (*own, *dict.fromkeys(beside))


def found_drafts(model: str) -> tuple[DraftModel, ...]:
    """The smallest model beside the target with its architecture and its vocabulary, and a fraction of its files."""
    folder = Path(model)
    config = _config(folder) if folder.is_dir() else None
    if config is None:
        return ()
    most_bytes = DRAFT_SHARE_MAX * _weight_bytes(folder)
    sizes = {
        path: _weight_bytes(path)
        for path in islice(_folders([folder.resolve().parent]), FOLDERS_MAX)
        if path.resolve() != folder.resolve() and _is_of_one_family(_config(path), config)
    }
    small = [path for path, size in sizes.items() if 0 < size <= most_bytes]
    smallest = min(small, key=lambda path: (sizes[path], path), default=None)
    return () if smallest is None else (DraftModel(model=str(smallest)),)


def _is_of_one_family(config: Mapping[str, object] | None, target: Mapping[str, object]) -> bool:
    keys = ("architectures", "vocab_size")
    return config is not None and all(
        config.get(key) is not None and config[key] == target.get(key) for key in keys
    )


def _weight_bytes(folder: Path) -> Bytes:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)


def _folders(places: list[Path]) -> Iterator[Path]:
    for place in places:
        try:
            yield from sorted(path for path in place.iterdir() if (path / "config.json").is_file())
        except OSError:
            continue


def _config(folder: Path) -> Mapping[str, object] | None:
    path = folder / "config.json"
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            return None
        return as_object(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def _head_kind(config: Mapping[str, object] | None, target: Mapping[str, object]) -> str | None:
    """As vLLM tells them (0.32, config/speculative.py): by the architecture's name; None for what is no head of a
    target of this width."""
    if config is None:
        return None
    names = " ".join(as_text(name) or "" for name in as_list(config.get("architectures"))).lower()
    kind = as_text(config.get("speculators_model_type")) or (as_text(config.get("model_type")) or "").lower()
    width = as_whole(config.get("hidden_size")) or as_whole(
        as_object(config.get("transformer_layer_config")).get("hidden_size")
    )
    own = as_whole({**target, **as_object(target.get("text_config"))}.get("hidden_size"))
    if width is None or width != own:
        return None
    for word in ("eagle3", "eagle", "medusa", "dflash"):
        if word in names or kind == word:
            return word
    return None
