"""llama.cpp for a plan: its memory, its losses, its rules about pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePath

from speclift.arithmetic.cost import EngineLosses
from speclift.core.errors import unknown_name
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.core.results import Level
from speclift.core.speculation import HEAD_KINDS
from speclift.core.units import Bytes, Tokens
from speclift.engines.llamacpp.pairing import compare_vocabularies, rule_breaks
from speclift.planner.advice import Advice, Pairing
from speclift.planner.memory import GIB, KvBuffers, Layout, MemoryPerGpu, PairBytes, Placed
from speclift.planner.precision import PRECISIONS
from speclift.planner.prediction import MTP, NGRAM, EngineModel
from speclift.planner.request import EngineTerms, PlanRequest
from speclift.weights.gguf_file import read_vocabulary

# Memory


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


# The terms of plan


# b11549: the types of --spec-type that take a head.
HEADS = ("eagle3", "mtp", "dflash", "dspark")
LLAMA_SERVER = "llama.cpp b10586, common/arg.cpp"
# One token of a 135M model in 7.5 ms and a five-token check in 15 ms on two cores (b11549).
LLAMACPP_CPU = EngineModel(
    losses=EngineLosses(
        bandwidth_share=0.8, overlap=1.0, step_s=0.2e-3, speculation_s=0.2e-3, draft_pass_s=0.2e-3
    ),
    factor=2.0,
    source="llama.cpp b11549 on two cores",
)
LLAMACPP_GPU = EngineModel(
    losses=EngineLosses(
        bandwidth_share=0.7,
        compute_share=0.5,
        narrow_compute_share=0.5,
        overlap=2.0,
        step_s=0.3e-3,
        speculation_s=0.3e-3,
        draft_pass_s=0.3e-3,
    ),
    factor=2.0,
    source="assumed: llama.cpp was not measured on a GPU",
)


# ggml.h, b11549: what llama.cpp's files may hold beside its own types.
CONVERTED = ("fp32", "fp16", "bf16", "mxfp4", "nvfp4")


class LlamaCppTerms(EngineTerms):
    name = "llamacpp"
    rule_source = "llama.cpp b10586, common/speculative.cpp"
    fit_precisions: tuple[str, ...] = ("q8_0", "q4_k_m")
    look_up = NGRAM
    reads_gguf = True
    runs_without_gpu = True
    quantised_draft = "q4_0"
    weights_hint = "a .gguf file in that type"
    works_as_one = False  # layers are dealt out, not split

    def memory(self, request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPerGpu:
        return llamacpp_memory(
            request.target, draft, request.device, request.layout, slots=max(request.loads)
        )

    def kv_value_bytes(self, kv_dtype: str) -> float:
        values, size = KV_BLOCKS[kv_type_named(kv_dtype)]
        return size / values

    def model_on(self, device: Device, version: str | None) -> EngineModel:
        return LLAMACPP_CPU if device.is_cpu else LLAMACPP_GPU

    def objection(self, pairing: Pairing, layout: Layout) -> str:
        if pairing.file_objection:
            return pairing.file_objection
        if pairing.comparison is not None:
            return rule_breaks(pairing.comparison)
        return "the tokenizers differ" if pairing.same_tokenizer is False else ""

    def format_objection(self, placed: Placed) -> str:
        precision = PRECISIONS.get(placed.weights.precision)
        is_as_stored = placed.weights.precision == placed.shape.precision
        if precision is None or is_as_stored or precision.is_gguf or precision.name in CONVERTED:
            return ""
        return f"no GGUF file holds {precision.name}"

    def method_objection(self, method: str, shape: ModelShape, version: str | None) -> str:
        if method == "suffix" or (method in HEAD_KINDS and method not in HEADS):
            return f"llama.cpp has no method {method}"
        if method == MTP and not shape.mtp_layers:
            return f"{shape.name} carries no MTP layers"
        return ""

    def way_out(self, objection: str) -> str:
        if "method" in objection or "MTP" in objection:
            return "--method draft, or ngram"
        return "q8_0, q4_k_m or q4_0" if "GGUF file" in objection else super().way_out(objection)

    def file_objection(self, target: PurePath, draft: PurePath) -> str:
        """llama.cpp's own check, which looks at BOS and EOS too."""
        report = compare_vocabularies(read_vocabulary(Path(target)), read_vocabulary(Path(draft)))
        return "" if report.compatible else report.message

    def load_words(self, placed: Placed, *, is_gguf: bool) -> tuple[str, ...] | None:
        return () if is_gguf else None

    def words(self, request: PlanRequest) -> list[str]:
        return ["--kv-dtype", request.layout.kv_dtype] if request.layout.kv_dtype != "auto" else []

    def advice(self, request: PlanRequest) -> Iterator[Advice]:
        if request.draft is not None and request.draft.head is None:
            yield Advice(
                check="spec-type",
                level=Level.INFO,
                message="llama.cpp drafts only with --spec-type draft-simple; -md alone runs the baseline",
                source=LLAMA_SERVER,
            )
