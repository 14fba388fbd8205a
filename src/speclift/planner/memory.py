"""Does it fit, and how many tokens of context are left? The values that every engine's own terms are told in. Pure.

The terms themselves are each engine's: `memory.py` in its folder.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from speclift.core.document import Document
from speclift.core.hardware import Device
from speclift.core.model_shape import KvLayers, ModelShape, Weights
from speclift.core.units import Bytes, Tokens
from speclift.planner.precision import PRECISIONS

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


class Layout(Document, frozen=True, kw_only=True):
    """How the models lie on the devices and what each request may use."""

    tensor_parallel: int = 1
    # None: as many as the target's, or no draft.
    draft_tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    utilisation: float = UTILISATION_DEFAULT
    context: Tokens = 8192
    kv_dtype: str = "auto"
    batched_tokens: Tokens | None = None
    max_num_seqs: int = MAX_SEQUENCES
    # Instead of what utilisation leaves: vLLM's --kv-cache-memory-bytes.
    kv_cache_bytes: Bytes | None = None

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def draft_gpus(self) -> int:
        return self.tensor_parallel if self.draft_tensor_parallel is None else self.draft_tensor_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A model as it is to be loaded."""

    shape: ModelShape
    weights: Weights
    nominal_bytes: Bytes


class PairBytes(Document, frozen=True, kw_only=True):
    target: Bytes
    draft: Bytes


class KvBuffers(Document, frozen=True, kw_only=True):
    """The buffers llama.cpp allocates for the asked number of slots."""

    slots: int
    target: Bytes
    draft: Bytes | None


class MemoryPerGpu(Document, frozen=True, kw_only=True):
    """One GPU, the busiest; all of them where the engine deals out layers."""

    total_bytes: Bytes
    usable_bytes: Bytes
    target_weight_bytes: Bytes
    draft_weight_bytes: Bytes
    activation_bytes: Bytes
    speculation_bytes: Bytes
    runtime_bytes: Bytes
    kv_bytes: Bytes
    kv_bytes_per_token: PairBytes
    block_tokens: Tokens
    blocks: int
    # Tokens that the KV cache holds, and the requests of full context among them.
    kv_tokens: Tokens = 0
    max_concurrency: float = 0.0
    # None on an engine that fills what is left.
    kv_buffer_bytes: KvBuffers | None = None

    @property
    def fits(self) -> bool:
        return self.max_concurrency >= 1.0


class NominalMemory(Document, frozen=True, kw_only=True):
    """As S4 reckons: memory of the label x utilisation - parameters x bytes."""

    vram_bytes: Bytes
    usable_bytes: Bytes
    weight_bytes: Bytes
    kv_bytes: Bytes
    kv_bytes_without_draft: Bytes


class Memory(Document, frozen=True, kw_only=True):
    """Of the whole deployment; one GPU, the busiest, under per_gpu."""

    total_bytes: Bytes
    usable_bytes: Bytes
    target_weight_bytes: Bytes
    draft_weight_bytes: Bytes
    nominal_weight_bytes: PairBytes
    nominal: NominalMemory
    kv_bytes_per_token: PairBytes
    kv_bytes: Bytes
    kv_tokens: Tokens
    kv_tokens_without_draft: Tokens
    max_concurrency: float
    max_concurrency_without_draft: float
    context: Tokens
    kv_buffer_bytes: KvBuffers | None
    per_gpu: MemoryPerGpu
    per_gpu_without_draft: MemoryPerGpu


class PlannedModel(Document, frozen=True, kw_only=True):
    name: str
    reference: str
    architecture: str
    family: str | None
    parameters: int
    active_parameters: int
    precision: str
    precision_note: str
    layers: int
    kv_heads: int
    vocabulary: int
    max_positions: int | None
    experts: int | None
    experts_per_token: int | None
    weights_from_file: bool
    source: str


def planned_model(placed: Placed, reference: str) -> PlannedModel:
    shape, weights = placed.shape, placed.weights
    is_named = weights.precision in PRECISIONS and not weights.is_from_file
    return PlannedModel(
        name=shape.name,
        reference=reference,
        architecture=shape.architecture,
        family=shape.family or None,
        parameters=shape.parameters.total,
        active_parameters=shape.active_parameters,
        precision=weights.precision,
        precision_note=PRECISIONS[weights.precision].note if is_named else "as the files hold it",
        layers=shape.layers,
        kv_heads=max((kv.heads for kv in shape.kv), default=0),
        vocabulary=shape.vocabulary,
        max_positions=shape.max_positions or None,
        experts=shape.experts or None,
        experts_per_token=shape.experts_per_token or None,
        weights_from_file=weights.is_from_file,
        source=shape.source,
    )


class PlannedDevice(Document, frozen=True, kw_only=True):
    """`count` GPUs hold one replica; `gpus` are there."""

    name: str
    title: str
    count: int
    gpus: int
    memory_bytes: Bytes
    nominal_bytes: Bytes
    bandwidth_bytes_s: float
    flops_16: float
    source: str


def planned_device(device: Device, *, count: int, gpus: int) -> PlannedDevice:
    return PlannedDevice(
        name=device.name,
        title=device.title,
        count=count,
        gpus=gpus,
        memory_bytes=device.memory_bytes,
        nominal_bytes=device.nominal_bytes,
        bandwidth_bytes_s=device.bandwidth_bytes_s,
        flops_16=device.flops_16,
        source=device.source,
    )


def without_draft(layout: Layout) -> Layout:
    return msgspec.structs.replace(layout, draft_tensor_parallel=None)
