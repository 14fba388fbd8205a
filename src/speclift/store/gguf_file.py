"""What is in this GGUF file, is it whole, and which vocabulary does it carry?

Only the header is read, through a memory map, so a file of many gigabytes costs the same as a small one.
The header is parsed here because the gguf package's reader touches every token with numpy and does not
stop at the end of a damaged file; the package is needed for requantising alone.
"""

from __future__ import annotations

import difflib
import errno
import math
import mmap
import os
import re
import secrets
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from speclift.core.errors import ModelError
from speclift.core.units import Bytes, Tokens
from speclift.plan.pairing import TokenText, Vocabulary

DOWNLOAD_AGAIN = "download the file again; it is damaged or incomplete"

# llama.cpp b10586, ggml/src/gguf.cpp: version 1 is refused, 3 is the newest; 2 and 3 share their layout.
SUPPORTED_VERSIONS = (2, 3)
ALIGNMENT_DEFAULT = 32
DIMENSIONS_MAX = 4

# Value type ids of ggml/include/gguf.h.
_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9

# Tensor types: id -> name, elements per block, bytes per block (ggml/include/ggml.h, ggml-common.h).
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
_Q4_0, _Q4_1 = 2, 3
# general.file_type values (llama_ftype in include/llama.h).
_MOSTLY_Q4_0, _MOSTLY_Q4_1 = 2, 3

_WRONG_MAGIC_HINTS = (
    (b"version https://git-lfs", "this is a Git LFS pointer; fetch the file itself with 'git lfs pull'"),
    (b"<", "this looks like a web page; download the file itself, not the page about it"),
    (b"PK\x03\x04", "this looks like a PyTorch or zip file; convert the model to GGUF first"),
)

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
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
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


def inspect_gguf(path: Path) -> ModelInfo:
    """Sizes and shape of the whole model; for a model in several files give the first of them."""
    tensors = check_gguf(path)
    with _opened(path) as header:
        architecture = header.text("general.architecture") or "unknown"
        layers, embedding, context = (
            header.number(f"{architecture}.{key}", required=True)
            for key in ("block_count", "embedding_length", "context_length")
        )
        heads = header.numbers(f"{architecture}.attention.head_count", count=layers)
        kv_heads = header.numbers(f"{architecture}.attention.head_count_kv", count=layers) or heads
        head_length = embedding // max(heads, default=0) if any(heads) else 0
        tokenizer = "/".join(
            filter(None, (header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre")))
        )
        tokens = header.fields.get("tokenizer.ggml.tokens")
        size_by_type: Counter[str] = Counter()
        for tensor in tensors:
            size_by_type[tensor.type_name] += tensor.size_bytes
        return ModelInfo(
            path=path,
            architecture=architecture,
            name=header.text("general.name") or path.stem,
            parameters=sum(tensor.elements for tensor in tensors),
            file_bytes=sum(part.stat().st_size for part in shard_paths(path)),
            quantisation=size_by_type.most_common(1)[0][0],
            layers=layers,
            embedding=embedding,
            heads=max(heads, default=0),
            kv_heads=max(kv_heads, default=0),
            kv_heads_per_layer=kv_heads,
            key_length=header.number(f"{architecture}.attention.key_length") or head_length,
            value_length=header.number(f"{architecture}.attention.value_length") or head_length,
            context_tokens=context,
            vocabulary_size=tokens.count
            if isinstance(tokens, _Array)
            else header.number(f"{architecture}.vocab_size"),
            tokenizer=tokenizer or "none",
            licence=header.text("general.license") or None,
        )


def read_vocabulary(path: Path) -> Vocabulary:
    with _opened(path) as header:
        tokens = header.fields.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, _Array) or tokens.item_type != _STRING:
            raise ModelError(
                f"{path} carries no vocabulary (tokenizer.ggml.tokens).",
                hint="use a GGUF file converted together with its tokenizer",
            )
        model = header.text("tokenizer.ggml.model")
        kind, bos_id, eos_id, add_bos, add_eos = _TOKENIZERS.get(model, (model, None, None, False, False))
        if kind == "bpe" and header.text("tokenizer.ggml.pre") in _PRE_TOKENIZERS_ADDING_BOS:
            add_bos = True
        # llama.cpp overrides what a Gemma 4 file says about BOS.
        if model != "gemma4":
            add_bos = bool(header.fields.get("tokenizer.ggml.add_bos_token", add_bos))
        return Vocabulary(
            tokens=header.strings(tokens),
            type=kind,
            bos_id=header.number("tokenizer.ggml.bos_token_id", default=bos_id),
            eos_id=header.number("tokenizer.ggml.eos_token_id", default=eos_id),
            add_bos=add_bos,
            add_eos=bool(header.fields.get("tokenizer.ggml.add_eos_token", add_eos)),
        )
