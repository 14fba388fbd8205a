"""Does it fit under llama.cpp? Both models, both KV buffers, compute buffers. Pure.

llama.cpp allocates the cells of all its slots at start, for target and draft alike (b11549, docs/plan.md).
"""

from __future__ import annotations

from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.core.units import Bytes
from speclift.planner.kv_cache import (
    LLAMA_UBATCH,
    KvPool,
    llama_cells,
    llama_kv_buffer_bytes,
    llama_kv_type,
)
from speclift.planner.memory import GIB, Layout, MemoryPlan, Placed

# --fit-target: what llama.cpp leaves free on each device (common/arg.cpp).
MARGIN_BYTES = 1 * GIB
# CUDA context and kernels.
GPU_RUNTIME_BYTES = round(0.4 * GIB)
_FLOAT_BYTES = 4


def llamacpp_memory(
    target: Placed, draft: Placed | None, device: Device, layout: Layout, *, slots: int
) -> MemoryPlan:
    kv_type = llama_kv_type(layout.kv_dtype)
    gpus = layout.gpus
    total = device.memory_bytes * gpus
    usable = min(round(total * layout.utilisation), total - MARGIN_BYTES * gpus)
    runtime = 0 if device.is_cpu else GPU_RUNTIME_BYTES * gpus
    compute = compute_bytes(target.shape) + (compute_bytes(draft.shape) if draft else 0)
    draft_weights = draft.weights.total if draft else 0
    left = usable - target.weights.total - draft_weights - compute - runtime
    one_target = llama_kv_buffer_bytes(target.shape, context=layout.context, slots=1, kv_type=kv_type)
    one_draft = 0
    if draft is not None:
        one_draft = llama_kv_buffer_bytes(draft.shape, context=layout.context, slots=1, kv_type=kv_type)
    if layout.kv_cache_bytes is not None:
        left = min(left, layout.kv_cache_bytes)
    # A model without attention keeps nothing per token; one slot then is all that can be said of it.
    slots_max = max(0, left) / (one_target + one_draft) if one_target + one_draft else float(left > 0)
    cells = llama_cells(layout.context)
    return MemoryPlan(
        total_bytes=total,
        usable_bytes=usable,
        target_weight_bytes=target.weights.total,
        draft_weight_bytes=draft_weights,
        activation_bytes=compute,
        speculation_bytes=0,
        runtime_bytes=runtime,
        kv_bytes=max(0, left),
        kv_bytes_per_token_target=one_target / cells,
        kv_bytes_per_token_draft=one_draft / cells,
        block_tokens=cells,
        # Slots are whole: a request cannot have half of one.
        pool=KvPool(
            tokens=int(slots_max) * layout.context,
            max_concurrency=float(int(slots_max)),
            blocks=int(slots_max),
        ),
        buffer_bytes_target=one_target * slots,
        buffer_bytes_draft=one_draft * slots,
    )


def compute_bytes(shape: ModelShape) -> Bytes:
    """One micro-batch through the widest layer in 32 bits, and a row of logits per sequence. An estimate."""
    widest = 2 * shape.intermediate + 4 * shape.hidden
    return _FLOAT_BYTES * (LLAMA_UBATCH * widest + 8 * shape.vocabulary)
