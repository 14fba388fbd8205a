"""Does it fit, and how many tokens of context are left? The values that every engine's own terms are told in. Pure.

The terms themselves are each engine's: `memory.py` in its folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from speclift.core.model_shape import KvLayers, ModelShape, Weights
from speclift.core.units import Bytes, Tokens

GIB = 1 << 30
# S4's and the recorded runs'; vLLM 0.32's own default is 0.92.
UTILISATION_DEFAULT = 0.9
# vLLM 0.32, engine/arg_utils.py: the server's default on Hopper-class GPUs and below.
MAX_SEQUENCES = 256


def layer_bytes_per_token(kv: KvLayers, *, value_bytes: float, tensor_parallel: int = 1) -> float:
    """One layer on one GPU. Heads are split over the group and repeated where it is larger than they are many."""
    heads = kv.heads if kv.is_latent else max(1, kv.heads // tensor_parallel)
    return heads * (kv.key_length + kv.value_length) * value_bytes


def kv_bytes_per_token(shape: ModelShape, *, value_bytes: float, tensor_parallel: int = 1) -> float:
    """All layers on one GPU while the context is shorter than any window."""
    return sum(
        kv.layers * layer_bytes_per_token(kv, value_bytes=value_bytes, tensor_parallel=tensor_parallel)
        for kv in shape.kv
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """Tokens that the KV cache holds, and the requests of full context among them."""

    tokens: Tokens
    max_concurrency: float
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the models lie on the devices and what each request may use."""

    tensor_parallel: int = 1
    draft_tensor_parallel: int = 1
    pipeline_parallel: int = 1
    utilisation: float = UTILISATION_DEFAULT
    context: Tokens = 8192
    kv_dtype: str = "auto"
    batched_tokens: Tokens | None = None
    max_sequences: int = MAX_SEQUENCES
    # Instead of what utilisation leaves: vLLM's --kv-cache-memory-bytes.
    kv_cache_bytes: Bytes | None = None

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A model as it is to be loaded."""

    shape: ModelShape
    weights: Weights
    nominal_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes are of one GPU, the busiest, unless the name says otherwise."""

    total_bytes: Bytes
    usable_bytes: Bytes
    target_weight_bytes: Bytes
    draft_weight_bytes: Bytes
    activation_bytes: Bytes
    speculation_bytes: Bytes
    runtime_bytes: Bytes
    kv_bytes: Bytes
    kv_bytes_per_token_target: float
    kv_bytes_per_token_draft: float
    block_tokens: Tokens
    pool: KvPool
    # The buffers llama.cpp allocates for the asked number of slots; None on vLLM, which fills what is left.
    buffer_bytes_target: Bytes | None = None
    buffer_bytes_draft: Bytes | None = None

    @property
    def fits(self) -> bool:
        return self.pool.max_concurrency >= 1.0


def without_draft(layout: Layout) -> Layout:
    return replace(layout, draft_tensor_parallel=layout.tensor_parallel)
