"""Does it fit under vLLM? What it reserves, term by term. Pure.

KV bytes = memory x utilisation - weights - profiled activations - what speculation adds - graphs and libraries.
The terms follow vLLM 0.32's determine_available_memory; docs/plan.md has them against five start-up logs.
"""

from __future__ import annotations

import math

from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape, Weights
from speclift.core.units import Bytes, Tokens
from speclift.engines.vllm.kv_cache import (
    CPU_BLOCK_TOKENS,
    GPU_BLOCK_TOKENS,
    kv_value_bytes,
    pages_of,
    pool,
)
from speclift.planner.memory import GIB, Layout, MemoryPerGpu, PairBytes, Placed, kv_bytes_per_token

# engine/arg_utils.py: the server's defaults on Hopper-class GPUs and below.
BATCHED_TOKENS_LARGE, BATCHED_TOKENS_SMALL, LARGE_GPU_BYTES = 8192, 2048, 70 * GIB
# Libraries, compiled kernels and captured graphs of one GPU: what five start-up logs of one H200 leave over.
RUNTIME_BYTES = round(0.35 * GIB)
# Communicators of a tensor-parallel group. Assumed: no start-up log of a group was at hand.
GROUP_BYTES = round(0.6 * GIB)
# An operating system and the engine itself, on a CPU.
HOST_BYTES = round(1.0 * GIB)
_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 4


def vllm_memory(
    target: Placed, draft: Placed | None, device: Device, layout: Layout, *, speculates: bool
) -> MemoryPerGpu:
    tensor, stages = layout.tensor_parallel, layout.pipeline_parallel
    block = CPU_BLOCK_TOKENS if device.is_cpu else GPU_BLOCK_TOKENS
    batched = layout.batched_tokens or default_batched_tokens(device)
    target_bytes = weight_bytes_per_gpu(target.weights, tensor_parallel=tensor, stages=stages)
    draft_bytes = 0
    if draft is not None:
        draft_bytes = weight_bytes_per_gpu(draft.weights, tensor_parallel=layout.draft_gpus)
    activations = activation_bytes(target, layout=layout, batched=batched)
    extra = speculation_bytes(target.shape, layout.max_num_seqs) if speculates else 0
    runtime = HOST_BYTES if device.is_cpu else RUNTIME_BYTES + (GROUP_BYTES if layout.gpus > 1 else 0)
    usable = round(device.memory_bytes * layout.utilisation)
    left = usable - target_bytes - draft_bytes - activations - extra - runtime
    kv_bytes = (
        left if layout.kv_cache_bytes is None else min(layout.kv_cache_bytes, _beside(left, usable, device))
    )
    value_bytes = kv_value_bytes(layout.kv_dtype)
    shapes = [(target.shape, tensor)]
    if draft is not None:
        shapes.append((draft.shape, layout.draft_gpus))
    state = sum(shape.state_bytes_per_sequence / parallel for shape, parallel in shapes) / stages
    kv_tokens, max_concurrency, blocks = pool(
        pages_of(shapes, value_bytes=value_bytes, block=block, stages=stages),
        kv_bytes=kv_bytes,
        context=layout.context,
        block=block,
        in_flight=batched,
        state_bytes=state,
    )
    per_draft = _per_token(draft.shape, value_bytes, layout.draft_gpus) if draft else 0.0
    return MemoryPerGpu(
        total_bytes=device.memory_bytes,
        usable_bytes=usable,
        target_weight_bytes=target_bytes,
        draft_weight_bytes=draft_bytes,
        activation_bytes=activations,
        speculation_bytes=extra,
        runtime_bytes=runtime,
        kv_bytes=max(0, kv_bytes),
        kv_bytes_per_token=PairBytes(
            target=round(_per_token(target.shape, value_bytes, tensor) / stages), draft=round(per_draft)
        ),
        block_tokens=block,
        blocks=blocks,
        kv_tokens=kv_tokens,
        max_concurrency=max_concurrency,
    )


def _beside(left: Bytes, usable: Bytes, device: Device) -> Bytes:
    """A stated KV size is not bound by utilisation, only by the memory there is."""
    return left + device.memory_bytes - usable


def _per_token(shape: ModelShape, value_bytes: float, parallel: int) -> float:
    return kv_bytes_per_token(shape, value_bytes=value_bytes, tensor_parallel=parallel)


def default_batched_tokens(device: Device) -> Tokens:
    is_large = device.memory_bytes >= LARGE_GPU_BYTES and not device.is_cpu
    return BATCHED_TOKENS_LARGE if is_large else BATCHED_TOKENS_SMALL


def weight_bytes_per_gpu(weights: Weights, *, tensor_parallel: int = 1, stages: int = 1) -> Bytes:
    """The busiest GPU: matrices are split over the group, norms and routers repeated; a stage holds its layers
    and either the embedding or the head."""
    layers = (weights.linear + weights.experts) / tensor_parallel + weights.other
    if stages == 1:
        return math.ceil(layers + (weights.embedding + weights.head) / tensor_parallel)
    # A tied table is needed at both ends.
    ends = max(weights.embedding, weights.head)
    return math.ceil(layers / stages + ends / tensor_parallel)


def activation_bytes(target: Placed, *, layout: Layout, batched: Tokens) -> Bytes:
    """The peak of vLLM's profile run over `batched` tokens.

    Two hidden states (residual and input) and, in the feed-forward layer, gate and up, their product, and a
    copy of the product in the matrices' precision where that is 8 bits. The draft's own pass runs after it and
    is smaller. The sampler's copies of `max_num_seqs` rows of logits may be the larger peak.
    """
    shape = target.shape
    width = shape.intermediate / layout.tensor_parallel
    per_token = _ACTIVATION_BYTES * (2 * shape.hidden + 3 * width)
    if shape.is_moe:
        # Each token is copied once per chosen expert on its way in and out.
        per_token += _ACTIVATION_BYTES * shape.experts_per_token * shape.hidden
    if target.weights.math_bits <= 8:
        per_token += width * target.weights.math_bits / 8
    # Logits in 32 bits, sorted values with 64-bit indices, probabilities and their sums.
    sampler = layout.max_num_seqs * shape.vocabulary * (_LOGIT_BYTES * 4 + 8)
    return round(max(batched * per_token, sampler))


def speculation_bytes(shape: ModelShape, max_sequences: int) -> Bytes:
    """Rejection sampling is profiled with one drafted and one further token per sequence: logits and
    probabilities of both in 32 bits."""
    return 2 * (2 * max_sequences) * shape.vocabulary * _LOGIT_BYTES
