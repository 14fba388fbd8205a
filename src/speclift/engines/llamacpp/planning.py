"""llama.cpp for a plan: its memory, its losses, its rules about pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

from speclift.arithmetic.cost import EngineLosses
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.core.results import Level
from speclift.core.speculation import HEAD_KINDS
from speclift.engines.llamacpp.memory import KV_BLOCKS, kv_type_named, llamacpp_memory
from speclift.engines.llamacpp.pairing import compare_vocabularies, rule_breaks
from speclift.planner.advice import Advice, Pairing
from speclift.planner.memory import Layout, MemoryPerGpu, Placed
from speclift.planner.precision import PRECISIONS
from speclift.planner.prediction import MTP, NGRAM, EngineModel
from speclift.planner.request import EngineTerms, PlanRequest
from speclift.weights.gguf_file import read_vocabulary

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
