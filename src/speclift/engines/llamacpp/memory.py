"""Does it fit under llama.cpp? Both models, both KV buffers, compute buffers. Pure.

llama.cpp allocates the cells of all its slots at start, for target and draft alike (b11549, docs/plan.md; the buffer
follows src/llama-kv-cache.cpp and llama-kv-cache-iswa.cpp, b10586).
"""

from __future__ import annotations

import math

from speclift.core.errors import unknown_name
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.core.units import Bytes, Tokens
from speclift.planner.memory import GIB, KvBuffers, Layout, MemoryPerGpu, PairBytes, Placed

# --fit-target: what llama.cpp leaves free on each device (common/arg.cpp).
MARGIN_BYTES = 1 * GIB
# CUDA context and kernels.
GPU_RUNTIME_BYTES = round(0.4 * GIB)
_FLOAT_BYTES = 4
# Values per block and bytes per block (ggml-common.h).
KV_BLOCKS = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20),
    "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
}  # fmt: skip
_KV_ALIASES = {
    "auto": "f16",
    "fp16": "f16",
    "float16": "f16",
    "bfloat16": "bf16",
    "fp32": "f32",
    "int8": "q8_0",
}
# llama_context pads every sequence's cells; the window's cache is padded alike.
CELL_PADDING = 256
# A window is kept plus one micro-batch (n_ubatch).
UBATCH = 512


def llamacpp_memory(
    target: Placed, draft: Placed | None, device: Device, layout: Layout, *, slots: int
) -> MemoryPerGpu:
    kv_type = kv_type_named(layout.kv_dtype)
    gpus = layout.gpus
    total = device.memory_bytes * gpus
    usable = min(round(total * layout.utilisation), total - MARGIN_BYTES * gpus)
    runtime = 0 if device.is_cpu else GPU_RUNTIME_BYTES * gpus
    compute = compute_bytes(target.shape) + (compute_bytes(draft.shape) if draft else 0)
    draft_weights = draft.weights.total if draft else 0
    left = usable - target.weights.total - draft_weights - compute - runtime
    one_target = kv_buffer_bytes(target.shape, context=layout.context, slots=1, kv_type=kv_type)
    one_draft = 0
    if draft is not None:
        one_draft = kv_buffer_bytes(draft.shape, context=layout.context, slots=1, kv_type=kv_type)
    if layout.kv_cache_bytes is not None:
        left = min(left, layout.kv_cache_bytes)
    # A model without attention keeps nothing per token; one slot then is all that can be said of it.
    slots_max = max(0, left) / (one_target + one_draft) if one_target + one_draft else float(left > 0)
    cells = cells_for(layout.context)
    return MemoryPerGpu(
        total_bytes=total,
        usable_bytes=usable,
        target_weight_bytes=target.weights.total,
        draft_weight_bytes=draft_weights,
        activation_bytes=compute,
        speculation_bytes=0,
        runtime_bytes=runtime,
        kv_bytes=max(0, left),
        kv_bytes_per_token=PairBytes(target=round(one_target / cells), draft=round(one_draft / cells)),
        block_tokens=cells,
        # Slots are whole: a request cannot have half of one.
        blocks=int(slots_max),
        kv_tokens=int(slots_max) * layout.context,
        max_concurrency=float(int(slots_max)),
        kv_buffer_bytes=KvBuffers(slots=slots, target=one_target * slots, draft=one_draft * slots),
    )


def compute_bytes(shape: ModelShape) -> Bytes:
    """One micro-batch through the widest layer in 32 bits, and a row of logits per sequence. An estimate."""
    widest = 2 * shape.intermediate + 4 * shape.hidden
    return _FLOAT_BYTES * (UBATCH * widest + 8 * shape.vocabulary)


def kv_type_named(dtype: str) -> str:
    word = dtype.strip().lower()
    word = _KV_ALIASES.get(word, word)
    if word not in KV_BLOCKS:
        raise unknown_name(what="--kv-dtype", seen=dtype, allowed=KV_BLOCKS)
    return word


def cells_for(context: Tokens) -> Tokens:
    """Cells of one slot: llama.cpp pads the context of every sequence."""
    return math.ceil(context / CELL_PADDING) * CELL_PADDING


def kv_buffer_bytes(shape: ModelShape, *, context: Tokens, slots: int, kv_type: str) -> Bytes:
    """The "KV buffer size" of llama.cpp's log: rows of keys and values, cells of each slot, whole blocks."""
    total = 0
    for kv in shape.kv:
        cells = cells_for(context)
        if kv.window is not None:
            cells = min(cells, cells_for(min(context, kv.window + UBATCH)))
        rows = _row_bytes(kv.heads * kv.key_length, kv_type) + _row_bytes(kv.heads * kv.value_length, kv_type)
        total += kv.layers * cells * slots * rows
    return total + shape.state_bytes_per_sequence * slots


def _row_bytes(values: int, kv_type: str) -> Bytes:
    per_block, block_bytes = KV_BLOCKS[kv_type]
    return -(-values // per_block) * block_bytes
