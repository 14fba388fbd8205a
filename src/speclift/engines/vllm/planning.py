"""vLLM for a plan: its memory, its losses, its rules about pairs."""

from __future__ import annotations

from collections.abc import Iterator

from speclift.arithmetic.cost import EngineLosses
from speclift.core.errors import UsageError
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.core.results import Level
from speclift.engines.vllm.kv_cache import kv_value_bytes
from speclift.engines.vllm.memory import vllm_memory
from speclift.planner.advice import Advice, Pairing
from speclift.planner.memory import Layout, MemoryPlan, Placed
from speclift.planner.prediction import EngineModel
from speclift.planner.request import EngineTerms, PlanRequest

# Fitted to 15 rows of vLLM 0.24 on one H200 (docs/plan.md). The factor is the worst error of a speedup when the
# rows of its own pair of models were left out of the fit.
_VLLM_LOSSES = EngineLosses(
    bandwidth_share=0.74, compute_share=0.65, narrow_compute_share=0.33, overlap=2.0, step_s=0.78e-3,
    speculation_s=2.35e-3, draft_layer_s=0.38e-3, ngram_sequence_s=47e-6,
)  # fmt: skip
VLLM_H200 = EngineModel(losses=_VLLM_LOSSES, trust_factor=1.4, source="fitted to vLLM 0.24 on one H200")
VLLM_ELSEWHERE = EngineModel(
    losses=_VLLM_LOSSES, trust_factor=2.0, source="fitted to vLLM 0.24 on one H200, not checked on this GPU"
)
VLLM_CPU = EngineModel(
    losses=EngineLosses(overlap=1.0, step_s=60e-3, speculation_s=20e-3),
    trust_factor=3.0,
    source="vLLM 0.32's CPU build ran a 135M model at 8-15 tok/s on two cores",
)


class VllmTerms(EngineTerms):
    name = "vllm"
    rule_source = "vLLM 0.32, config/speculative.py, v1/spec_decode/draft_model.py"
    look_up = "ngram,n=3"

    def check_split(self, shape: ModelShape, tensor_parallel: int) -> None:
        if shape.heads % tensor_parallel:
            raise UsageError(
                f"vLLM cannot split the {shape.heads} heads of {shape.name} over {tensor_parallel} GPUs",
                hint=f"--tp with a divisor of {shape.heads}",
            )

    def memory(self, request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPlan:
        return vllm_memory(request.target, draft, request.device, request.layout, speculates=speculates)

    def kv_value_bytes(self, kv_dtype: str) -> float:
        return kv_value_bytes(kv_dtype)

    def model_on(self, device: Device) -> EngineModel:
        if device.is_cpu:
            return VLLM_CPU
        return VLLM_H200 if device.name.startswith("h200-141gb") else VLLM_ELSEWHERE

    def objection(self, pairing: Pairing, layout: Layout) -> str:
        target, draft = pairing.target, pairing.draft
        if target.vocabulary != draft.vocabulary:
            return (
                f"the vocabulary sizes of the configs differ (target {target.vocabulary}, draft {draft.vocabulary}); "
                "vLLM needs equal sizes, padding included"
            )
        if layout.draft_tensor_parallel != layout.tensor_parallel:
            return (
                f"the draft's tensor parallelism is {layout.draft_tensor_parallel} and the target's "
                f"{layout.tensor_parallel}; a draft model runs with the target's"
            )
        for name, shape in (("target", target), ("draft", draft)):
            if shape.heads % layout.tensor_parallel:
                return f"the {name}'s {shape.heads} heads cannot be split over {layout.tensor_parallel} GPUs"
        return ""

    def way_out(self, objection: str) -> str:
        if "vocabulary sizes" in objection:
            return "use_heterogeneous_vocab: true (vLLM 0.26 and later, greedy drafts), or a draft of the same size"
        return "--draft-tp equal to --tp" if "parallelism" in objection else super().way_out(objection)

    def advice(self, request: PlanRequest) -> Iterator[Advice]:
        if request.draft is not None and not request.device.is_cpu:
            yield Advice(
                check="draft-graphs",
                level=Level.INFO,
                message="vLLM's newer model runner drafts without CUDA graphs, about 0.4 ms per layer and token; the "
                "prediction includes this, the ceiling does not",
                source="vLLM 0.32, v1/worker/gpu/spec_decode; one H200",
            )

    def words(self, request: PlanRequest) -> list[str]:
        layout = request.layout
        words = []
        if layout.tensor_parallel > 1:
            words += ["--tp", str(layout.tensor_parallel)]
        if layout.pipeline_parallel > 1:
            words += ["--pp", str(layout.pipeline_parallel)]
        if layout.kv_dtype != "auto":
            words += ["--kv-dtype", layout.kv_dtype]
        # vLLM quantises to FP8 while loading; the other formats need weights that were quantised before.
        target = request.target
        if target.weights.precision == "fp8" and target.shape.precision in ("bf16", "fp16"):
            words += ["--target-quant", "fp8"]
        if not request.device.is_cpu:
            words.append(f"--engine-arg=--gpu-memory-utilization={layout.utilisation:g}")
        if layout.kv_cache_bytes is not None:
            words.append(f"--engine-arg=--kv-cache-memory-bytes={layout.kv_cache_bytes}")
        return words
