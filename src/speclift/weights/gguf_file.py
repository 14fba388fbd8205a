"""What is in this GGUF file, is it whole, and which vocabulary does it carry? Also turns Q4_1 into Q4_0.

Nothing but the header is read except for requantising, the one step that needs the gguf package.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from speclift.core.errors import ModelError
from speclift.core.model_shape import KvLayers, ModelShape, ParameterCounts, Weights
from speclift.core.units import Bytes, Tokens
from speclift.planner.tokens import Vocabulary
from speclift.weights.gguf_header import (
    DOWNLOAD_AGAIN,
    LAYERS_MAX,
    STRING,
    TENSOR_TYPES,
    Array,
    Header,
    Tensor,
    aligned,
    open_gguf,
    tensor_bytes,
)

_Q4_0, _Q4_1 = 2, 3
# general.file_type values (llama_ftype in include/llama.h).
_MOSTLY_Q4_0, _MOSTLY_Q4_1 = 2, 3

_SHARD_NAME = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$")

# llama.cpp b10586, src/llama-vocab.cpp, llama_vocab::impl::load: what holds when the file does not say.
# tokenizer.ggml.model -> type, bos id, eos id, add bos, add eos.
_TOKENIZERS: dict[str, tuple[str, int | None, int | None, bool, bool]] = {
    "llama": ("spm", 1, 2, True, False), "bert": ("wpm", 101, None, True, False),
    "gpt2": ("bpe", 11, 11, False, False), "hybriddna": ("bpe", 11, 11, False, False),
    "whitespace": ("bpe", 11, 11, False, False), "gemma4": ("bpe", None, None, True, False),
    "t5": ("ugm", None, 1, False, True), "rwkv": ("rwkv", None, None, False, False),
    "plamo2": ("plamo2", 1, 2, False, False),
}  # fmt: skip
_PRE_TOKENIZERS_ADDING_BOS = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
     "tekken", "chameleon")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The shape of a model. heads and kv_heads are the largest of any layer."""

    path: Path
    architecture: str
    name: str
    parameters: int
    file_bytes: Bytes
    quantisation: str
    layers: int
    embedding: int
    heads: int
    kv_heads: int
    kv_heads_per_layer: tuple[int, ...]
    key_length: int
    value_length: int
    context_tokens: Tokens
    vocabulary_size: int
    tokenizer: str
    licence: str | None


def check_gguf(path: Path) -> None:
    """Raises ModelError unless the file, with all its parts, is a whole GGUF model."""
    checked_tensors(path)


def inspect_gguf(path: Path) -> ModelInfo:
    tensors = checked_tensors(path)
    with open_gguf(path) as header:
        return model_info(header, tensors)


def model_info(header: Header, tensors: Sequence[Tensor]) -> ModelInfo:
    """From the header of the first part and the tensors of all."""
    size_by_type: Counter[str] = Counter()
    for tensor in tensors:
        size_by_type[tensor.type_name] += tensor.size_bytes
    prefix = header.text("general.architecture")
    layers = header.positive(f"{prefix}.block_count", maximum=LAYERS_MAX)
    embedding = header.positive(f"{prefix}.embedding_length")
    heads = header.per_layer(f"{prefix}.attention.head_count", layers=layers) or (0,) * layers
    kv_heads = header.per_layer(f"{prefix}.attention.head_count_kv", layers=layers) or heads
    head_length = embedding // max(heads) if any(heads) else 0
    names = (header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre"))
    return ModelInfo(
        path=header.path,
        architecture=prefix,
        name=header.text("general.name") or header.path.stem,
        parameters=sum(tensor.elements for tensor in tensors),
        file_bytes=sum(part.stat().st_size for part in shard_paths(header.path)),
        quantisation=size_by_type.most_common(1)[0][0],
        layers=layers,
        embedding=embedding,
        heads=max(heads),
        kv_heads=max(kv_heads),
        kv_heads_per_layer=kv_heads,
        key_length=header.number(f"{prefix}.attention.key_length") or head_length,
        value_length=header.number(f"{prefix}.attention.value_length") or head_length,
        context_tokens=header.positive(f"{prefix}.context_length"),
        vocabulary_size=_vocabulary_size(header),
        tokenizer="/".join(name for name in names if name) or "none",
        licence=header.text("general.license") or None,
    )


def read_vocabulary(path: Path) -> Vocabulary:
    with open_gguf(path) as header:
        tokens = header.fields.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, Array) or tokens.item_type != STRING:
            raise ModelError(
                f"{path} carries no vocabulary (tokenizer.ggml.tokens).",
                hint="use a GGUF file that was converted together with its tokenizer",
            )
        model = header.text("tokenizer.ggml.model")
        kind, bos_id, eos_id, add_bos, add_eos = _TOKENIZERS.get(model, (model, None, None, False, False))
        if kind == "bpe" and header.text("tokenizer.ggml.pre") in _PRE_TOKENIZERS_ADDING_BOS:
            add_bos = True
        # llama.cpp overrides what a Gemma 4 file says about its BOS token.
        if model != "gemma4":
            add_bos = bool(header.fields.get("tokenizer.ggml.add_bos_token", add_bos))
        stated_bos_id = header.number("tokenizer.ggml.bos_token_id")
        stated_eos_id = header.number("tokenizer.ggml.eos_token_id")
        return Vocabulary(
            tokens=header.texts(tokens),
            type=kind,
            bos_id=bos_id if stated_bos_id is None else stated_bos_id,
            eos_id=eos_id if stated_eos_id is None else stated_eos_id,
            add_bos=add_bos,
            add_eos=bool(header.fields.get("tokenizer.ggml.add_eos_token", add_eos)),
        )


def _vocabulary_size(header: Header) -> int:
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Array):
        return tokens.count
    return header.number(f"{header.text('general.architecture')}.vocab_size") or 0


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of a model split as NAME-00001-of-0000N.gguf; the path alone when it is not split."""
    match = _SHARD_NAME.match(path.name)
    count = int(match["count"]) if match else 0
    if match is None or count == 0:
        return (path,)
    return tuple(
        path.with_name(f"{match['stem']}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1)
    )


def requantise_q4_0(source: Path, destination: Path) -> None:
    """Q4_1 tensors become Q4_0, which llama.cpp repacks for the CPU; all else is copied byte for byte.

    The destination appears whole or not at all, and the same source gives the same bytes.
    """
    quantise = _load_quantiser()
    strange = {tensor.type_name for tensor in checked_tensors(source) if tensor.type_id not in TENSOR_TYPES}
    if strange:
        raise ModelError(
            f"{source} cannot be requantised: the size of {', '.join(sorted(strange))} tensors is unknown.",
            hint="use the file as it is",
        )
    partial = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
    try:
        with open_gguf(source) as header, partial.open("xb") as output:
            is_mostly = header.fields.get("general.file_type") == _MOSTLY_Q4_1
            write_gguf(
                header,
                output,
                type_of=lambda tensor: _Q4_0 if tensor.type_id == _Q4_1 else tensor.type_id,
                convert=lambda tensor, _: quantise(
                    header.data[tensor.start : tensor.start + tensor.size_bytes]
                ),
                file_type=_MOSTLY_Q4_0 if is_mostly else None,
            )
            output.flush()
            os.fsync(output.fileno())
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)


def require_gguf_package() -> str:
    """The version of the gguf package; ModelError with the way to install it when it is missing."""
    _load_quantiser()
    return version("gguf")


def load_gguf_package() -> tuple[ModuleType, Callable[[int], object]]:
    """Its quantiser, and its name for a type by id; ModelError where it is not installed."""
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise ModelError(
            "Requantising a model needs the Python package gguf, which is not installed.",
            hint="pip install 'speclift[llama]'",
        ) from error
    return quants, GGMLQuantizationType


def _load_quantiser() -> Callable[[bytes], bytes]:
    quants, types = load_gguf_package()
    import numpy as np  # late: with gguf, which needs it

    def q4_0_from_q4_1(blocks: bytes) -> bytes:
        packed = np.frombuffer(blocks, dtype=np.uint8)
        values = quants.dequantize(packed, types(_Q4_1))
        return bytes(quants.quantize(values, types(_Q4_0)).tobytes())

    return q4_0_from_q4_1


def write_gguf(
    header: Header,
    output: BinaryIO,
    *,
    type_of: Callable[[Tensor], int],
    convert: Callable[[Tensor, int], bytes],
    file_type: int | None,
) -> None:
    """The same model with tensors of other types: `convert` is asked for those that change, the rest is copied byte
    for byte. `file_type` goes where the file says what it is mostly of; None leaves that alone."""
    metadata = bytearray(header.data[: header.fields_end])
    if file_type is not None and "general.file_type" in header.positions:
        struct.pack_into("<I", metadata, header.positions["general.file_type"], file_type)
    offset = 0
    for tensor in header.tensors:
        name = tensor.name.encode()
        type_id = type_of(tensor)
        metadata += struct.pack("<Q", len(name)) + name
        metadata += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        metadata += struct.pack("<IQ", type_id, offset)
        offset += aligned(tensor_bytes(type_id, tensor.elements), header.alignment)
    output.write(metadata.ljust(aligned(len(metadata), header.alignment), b"\0"))
    for tensor in header.tensors:
        content = header.data[tensor.start : tensor.start + tensor.size_bytes]
        if type_of(tensor) != tensor.type_id:
            content = convert(tensor, type_of(tensor))
        output.write(content.ljust(aligned(len(content), header.alignment), b"\0"))


def checked_tensors(path: Path) -> list[Tensor]:
    """Every tensor of every part; ModelError unless the file, with all its parts, is whole."""
    tensors: list[Tensor] = []
    parts = shard_paths(path)
    if path not in parts[:1]:
        raise ModelError(
            f"{path} is one part of a model in {len(parts)} files.", hint=f"give the first part, {parts[0]}"
        )
    for part in parts:
        if part != path and not part.exists():
            raise ModelError(
                f"{part} is missing: the model is split over {len(parts)} files.",
                hint="put all the parts into one folder",
            )
        with open_gguf(part) as header:
            for tensor in header.tensors:
                end = tensor.start + tensor.size_bytes
                if end > len(header.data):
                    raise ModelError(
                        f"{part} is truncated: tensor {tensor.name} ends at byte {end}, "
                        f"the file at {len(header.data)}.",
                        hint=DOWNLOAD_AGAIN,
                    )
            tensors += header.tensors
    if not tensors:
        raise ModelError(
            f"{path} contains no tensors: it holds a vocabulary without weights.",
            hint="give the GGUF file with the weights",
        )
    return tensors


# What llama.cpp compares beside the texts.
_SPECIAL = ("model", "pre", "bos_token_id", "eos_token_id", "add_bos_token", "add_eos_token")
_PARTS = ("embedding", "head", "linear", "experts", "other")


def read_gguf_model(path: Path) -> tuple[ModelShape, Weights, str]:
    """The third is a digest of the vocabulary: equal ones need no comparison token by token."""
    tensors = checked_tensors(path)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        role = _role(tensor)
        counts[role] += tensor.elements
        sizes[role] += tensor.size_bytes
    with open_gguf(path) as header:
        info = model_info(header, tensors)
        prefix = info.architecture
        digest = _vocabulary_digest(header)
        experts = header.number(f"{prefix}.expert_count") or 0
        per_token = header.number(f"{prefix}.expert_used_count") or 0
        width = header.per_layer(f"{prefix}.feed_forward_length", layers=info.layers)
        expert_width = header.number(f"{prefix}.expert_feed_forward_length") or max(width, default=0)
        kv = _kv_layers(header, info)
    routed = per_token * expert_width
    shape = ModelShape(
        name=info.name,
        architecture=prefix,
        layers=info.layers,
        hidden=info.embedding,
        intermediate=routed or max(width, default=4 * info.embedding),
        heads=info.heads,
        vocabulary=info.vocabulary_size,
        max_positions=info.context_tokens,
        parameters=ParameterCounts(**{part: counts[part] for part in _PARTS}),
        kv=kv,
        experts=experts if counts["experts"] else 0,
        experts_per_token=per_token if counts["experts"] else 0,
        mtp_layers=header.number(f"{prefix}.nextn_predict_layers") or 0,
        precision=info.quantisation.lower(),
        family=prefix,
        tokenizer=None,
        source=str(path),
    )
    weights = Weights(
        precision=info.quantisation.lower(),
        **{part: sizes[part] for part in _PARTS},
        math_bits=16,
        is_from_file=True,
    )
    return shape, weights, digest


def _vocabulary_digest(header: Header) -> str:
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Array):
        return ""
    special = [header.fields.get(f"tokenizer.ggml.{key}") for key in _SPECIAL]
    digest = hashlib.sha256(header.data[tokens.start : tokens.end])
    digest.update(repr(special).encode())
    return digest.hexdigest()


def _role(tensor: Tensor) -> str:
    name = tensor.name
    if name.startswith("token_embd."):
        return "embedding"
    if name == "output.weight":
        return "head"
    if "_exps." in name:
        return "experts"
    is_small = len(tensor.shape) == 1 or "norm" in name or "ffn_gate_inp" in name
    return "other" if is_small else "linear"


def _kv_layers(header: Header, info: ModelInfo) -> tuple[KvLayers, ...]:
    prefix = info.architecture
    window = header.number(f"{prefix}.attention.sliding_window") or None
    pattern = header.per_layer(f"{prefix}.attention.sliding_window_pattern", layers=info.layers)
    latent = bool(header.number(f"{prefix}.attention.kv_lora_rank"))
    kinds: Counter[tuple[int, int | None]] = Counter()
    for layer in range(info.layers):
        heads = info.kv_heads_per_layer[min(layer, len(info.kv_heads_per_layer) - 1)]
        if heads:  # recurrent layers of a hybrid have none
            kinds[(heads, window if window and _slides(prefix, pattern, layer) else None)] += 1
    return tuple(
        KvLayers(
            layers=count,
            heads=1 if latent else heads,
            key_length=info.key_length,
            # The latent cache is read as keys and as values.
            value_length=0 if latent else info.value_length,
            window=kept,
            is_latent=latent,
        )
        for (heads, kept), count in kinds.items()
    )


# Every n-th layer is full where the file has no pattern (llama.cpp b10586, src/llama-model.cpp: set_swa_pattern).
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4}


def _slides(architecture: str, pattern: tuple[int, ...], layer: int) -> bool:
    if len(set(pattern)) > 1 and layer < len(pattern):
        return bool(pattern[layer])
    every = pattern[0] if pattern and pattern[0] > 1 else _FULL_EVERY.get(architecture)
    # Other architectures state a window that llama.cpp does not apply.
    return every is not None and (layer + 1) % every != 0
