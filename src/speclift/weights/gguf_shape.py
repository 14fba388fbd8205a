"""The shape of a model in a GGUF file and the exact bytes of its weights, by the part they play."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from speclift.core.model_shape import KvLayers, ModelShape, ParameterCounts, Weights
from speclift.weights.gguf_file import ModelInfo, checked_tensors, model_info
from speclift.weights.gguf_header import Array, Header, Tensor, open_gguf

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
