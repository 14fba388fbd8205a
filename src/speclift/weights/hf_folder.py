"""A model as Hugging Face lays it out: config.json, tokenizer.json and the headers of its weights.

No weights are read and nothing is downloaded. An id is looked for in the local Hugging Face cache.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from speclift.core.errors import ModelError
from speclift.core.json_reading import as_number, as_object, need_list, need_object, need_objects, need_whole
from speclift.core.model_shape import ModelShape, ParameterCounts, Weights
from speclift.core.units import Bytes
from speclift.planner.config_shape import shape_from_config
from speclift.planner.precision import precision_named, weights_in

DOWNLOAD_AGAIN = "download the file again; it is damaged or incomplete"
# The format's own limit on its header (safetensors 0.5, MAX_HEADER_SIZE).
HEADER_BYTES_MAX = 100_000_000
_LENGTH_BYTES = 8
_WHOLE_PARAMETERS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: Bytes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_unquantised(self) -> bool:
        """One stored number is one parameter."""
        return self.dtype in _WHOLE_PARAMETERS


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or not 2 <= length <= min(HEADER_BYTES_MAX, size - _LENGTH_BYTES):
                raise ModelError(
                    f"{path} is not a safetensors file: its header would be {length} bytes of {size}.",
                    hint=_hint(path),
                )
            raw = stream.read(length)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.", hint="check the path") from error
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise ModelError(f"{path} has a header that is not JSON: {error}.", hint=DOWNLOAD_AGAIN) from error
    if not isinstance(header, dict):
        raise ModelError(f"{path} has a header that is no object.", hint=DOWNLOAD_AGAIN)
    tensors = tuple(
        _tensor(path, name, entry, size - _LENGTH_BYTES - length)
        for name, entry in header.items()
        if name != "__metadata__"
    )
    if not tensors:
        raise ModelError(f"{path} contains no tensors.", hint=DOWNLOAD_AGAIN)
    return tensors


def _hint(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(24)
    if start.startswith(b"version https://git-lfs"):
        return "this is a Git LFS pointer; fetch the file itself with 'git lfs pull'"
    return DOWNLOAD_AGAIN


def _tensor(path: Path, name: str, entry: object, data_bytes: Bytes) -> StoredTensor:
    try:
        fields = need_object(entry)
        start, end = map(need_whole, need_list(fields["data_offsets"]))
        shape = tuple(map(need_whole, need_list(fields["shape"])))
        dtype = str(fields["dtype"])
        is_sound = all(number >= 0 for number in (*shape, start)) and start <= end
    except (TypeError, KeyError, ValueError):
        is_sound, end = False, 0
    if not is_sound:
        raise ModelError(f"{path} is damaged: tensor {name!r} has no place in it.", hint=DOWNLOAD_AGAIN)
    if end > data_bytes:
        raise ModelError(
            f"{path} is truncated: tensor {name} ends at byte {end} of {data_bytes}.", hint=DOWNLOAD_AGAIN
        )
    return StoredTensor(name=name, dtype=dtype, shape=shape, size_bytes=end - start)


INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
_EMBEDDING = re.compile(r"(embed_tokens|word_embeddings|tok_embeddings|\bwte|\bwpe|embed_in)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.")
_EXPERTS = re.compile(r"\.experts\.")
# Towers for other inputs, norms, biases and routers.
_OTHER = re.compile(
    r"^(vision|visual|model\.vision|multi_modal)|norm|bias$|(mlp|moe)\.gate\.|router|\.sinks$"
)


def hub_folder(reference: str) -> Path | None:
    """Where the local Hugging Face cache keeps this id; None where it does not."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", reference):
        return None
    for cache in _hub_caches():
        folder = cache / f"models--{reference.replace('/', '--')}"
        named = folder / "refs" / "main"
        if named.is_file():
            revision = named.read_text(encoding="utf-8", errors="replace").strip()
            if (
                re.fullmatch(r"[\w.-]+", revision)
                and (folder / "snapshots" / revision / "config.json").exists()
            ):
                return folder / "snapshots" / revision
        found = sorted((folder / "snapshots").glob("*/config.json"), key=lambda path: path.stat().st_mtime)
        if found:
            return found[-1].parent
    return None


def _hub_caches() -> tuple[Path, ...]:
    """HF_HUB_CACHE, then HF_HOME/hub, then ~/.cache/huggingface/hub: huggingface_hub's own order."""
    environment = os.environ
    chosen = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    if chosen:
        return (Path(chosen),)
    if environment.get("HF_HOME"):
        return (Path(environment["HF_HOME"]) / "hub",)
    shared = environment.get("XDG_CACHE_HOME")
    return (Path(shared or Path.home() / ".cache") / "huggingface" / "hub",)


def read_config(folder: Path) -> dict[str, object]:
    path = folder / "config.json"
    if not path.is_file():
        inside = ", ".join(sorted(entry.name for entry in folder.glob("*.gguf"))[:3])
        hint = f"give one of the files in it: {inside}" if inside else "give a folder with a config.json"
        raise ModelError(f"{folder} holds no config.json.", hint=hint)
    found = _json(path)
    if not isinstance(found, dict):
        raise ModelError(f"{path} is not a JSON object.", hint="give the config.json of a model")
    return found


def read_hf_model(folder: Path, *, name: str) -> tuple[ModelShape, Weights]:
    """The shape by config.json and the weights as their files hold them; reckoned where there are none."""
    shape = shape_from_config(read_config(folder), name=name, source=str(folder / "config.json"))
    tensors = _tensors(folder)
    reckoned = weights_in(shape, precision_named(shape.precision))
    if not tensors:
        total = _indexed_bytes(folder)
        return shape, reckoned if total is None else _scaled(reckoned, total)
    if all(tensor.is_unquantised for tensor in tensors):
        shape = replace(shape, parameters=_counts(tensors))
    parts = {part: sum(t.size_bytes for t in tensors if _part(t) == part) for part in _PARTS}
    return shape, _with_parts(reckoned, parts)


_PARTS = ("embedding", "head", "linear", "experts", "other")


def _with_parts(weights: Weights, parts: Mapping[str, Bytes]) -> Weights:
    return Weights(
        precision=weights.precision,
        embedding=parts["embedding"],
        head=parts["head"],
        linear=parts["linear"],
        experts=parts["experts"],
        other=parts["other"],
        math_bits=weights.math_bits,
        is_from_file=True,
    )


def _part(tensor: StoredTensor) -> str:
    name = tensor.name
    if _EMBEDDING.search(name):
        return "embedding"
    if _HEAD.search(name) and not name.startswith("model.layers"):
        return "head"
    if _OTHER.search(name) or (len(tensor.shape) == 1 and tensor.is_unquantised):
        return "other"
    return "experts" if _EXPERTS.search(name) else "linear"


def _counts(tensors: Sequence[StoredTensor]) -> ParameterCounts:
    return ParameterCounts(**{part: sum(t.elements for t in tensors if _part(t) == part) for part in _PARTS})


def _tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """All tensors of all files; empty where not every file that the index names is there."""
    index = folder / INDEX
    if index.is_file():
        mapping = as_object(_json(index)).get("weight_map")
        if not isinstance(mapping, dict):
            raise ModelError(f"{index} has no weight_map.", hint="download it again")
        paths = [folder / Path(str(file)).name for file in dict.fromkeys(mapping.values())]
        if not all(path.is_file() for path in paths):
            return ()
    else:
        single = folder / "model.safetensors"
        paths = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    return tuple(tensor for path in paths for tensor in read_safetensors(path))


def _indexed_bytes(folder: Path) -> int | None:
    index = folder / INDEX
    if not index.is_file():
        return None
    total = as_number(as_object(as_object(_json(index)).get("metadata")).get("total_size"))
    return int(total) if total is not None and total > 0 else None


def _scaled(weights: Weights, total: int) -> Weights:
    """The files' true total, shared out as the shape has it."""
    share = total / weights.total
    parts = {part: round(getattr(weights, part) * share) for part in _PARTS}
    parts["linear"] += total - sum(parts.values())
    return _with_parts(weights, parts)


def tokenizer_digest(folder: Path) -> str | None:
    """Two folders with the same file need no comparison token by token."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_tokens(folder: Path) -> tuple[str | None, ...] | None:
    """Token texts by id, None at ids without a token; None for a folder without a tokenizer.json."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    content = _json(path)
    try:
        tokenizer = need_object(content)
        vocabulary = need_object(tokenizer["model"])["vocab"]
        if isinstance(vocabulary, dict):
            texts = {need_whole(token_id): str(text) for text, token_id in vocabulary.items()}
        else:  # each with its score, in the order of their ids
            texts = {place: str(need_list(entry)[0]) for place, entry in enumerate(need_list(vocabulary))}
        added = need_objects(tokenizer.get("added_tokens") or [])
        texts |= {need_whole(token["id"]): str(token["content"]) for token in added}
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{path} is not a readable tokenizer: {error!r}.", hint="download tokenizer.json again"
        ) from error
    # Ids far apart would fill the memory; no tokenizer has a hole of this size.
    size = max(texts, default=-1) + 1
    if min(texts, default=0) < 0 or size > 8 * len(texts) + 1024:
        raise ModelError(
            f"{path} has token ids up to {size} for {len(texts)} tokens.", hint="download it again"
        )
    return tuple(texts.get(token_id) for token_id in range(size))


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.", hint="check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}.", hint="download the file again") from error
