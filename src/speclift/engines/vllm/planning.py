"""vLLM for a plan: its memory, its losses, its rules about pairs."""

from __future__ import annotations

from collections.abc import Iterator

from speclift.core.errors import UsageError
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.core.results import Level
from speclift.engines.vllm.dialect.tables import METHODS
from speclift.engines.vllm.flags import parse_version
from speclift.engines.vllm.kv_cache import kv_value_bytes
from speclift.engines.vllm.losses import IN_GRAPHS, NEWEST_MEASURED, losses_of, model_for
from speclift.engines.vllm.memory import vllm_memory
from speclift.planner.advice import Advice, Pairing
from speclift.planner.memory import Layout, MemoryPerGpu, Placed
from speclift.planner.precision import PRECISIONS
from speclift.planner.prediction import MTP, EngineModel
from speclift.planner.request import EngineTerms, PlanRequest

_16_BITS = ("bf16", "fp16")
# vLLM 0.32, model_executor/layers/quantization, by the word for --quantization.
_MADE_ON_LOADING = {"fp8": "fp8", "nf4": "bitsandbytes"}


class VllmTerms(EngineTerms):
    name = "vllm"
    rule_source = "vLLM 0.32, config/speculative.py, v1/spec_decode/draft_model.py"
    look_up = "ngram,n=3"
    weights_hint = "a folder or id that holds them, such as one ending in -AWQ or -GPTQ"

    def check_split(self, shape: ModelShape, tensor_parallel: int) -> None:
        if shape.heads % tensor_parallel:
            raise UsageError(
                f"vLLM cannot split the {shape.heads} heads of {shape.name} over {tensor_parallel} GPUs",
                hint=f"--tp with a divisor of {shape.heads}",
            )

    def memory(self, request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPerGpu:
        return vllm_memory(request.target, draft, request.device, request.layout, speculates=speculates)

    def kv_value_bytes(self, kv_dtype: str) -> float:
        return kv_value_bytes(kv_dtype)

    def model_on(self, device: Device, version: str | None) -> EngineModel:
        return model_for(device, version)

    def objection(self, pairing: Pairing, layout: Layout) -> str:
        target, draft = pairing.target, pairing.draft
        if target.vocabulary != draft.vocabulary:
            return (
                f"the vocabulary sizes of the configs differ (target {target.vocabulary}, draft {draft.vocabulary}); "
                "vLLM needs equal sizes, padding included"
            )
        if layout.draft_gpus != layout.tensor_parallel:
            return (
                f"the draft's tensor parallelism is {layout.draft_gpus} and the target's "
                f"{layout.tensor_parallel}; a draft model runs with the target's"
            )
        for name, shape in (("target", target), ("draft", draft)):
            if shape.heads % layout.tensor_parallel:
                return f"the {name}'s {shape.heads} heads cannot be split over {layout.tensor_parallel} GPUs"
        return ""

    def format_objection(self, placed: Placed) -> str:
        precision = PRECISIONS.get(placed.weights.precision)
        if precision is not None and precision.is_gguf:
            return f"{precision.name} is a type of GGUF files, which are llama.cpp's"
        return ""

    def method_objection(self, method: str, shape: ModelShape, version: str | None) -> str:
        row = METHODS.find({"draft": "draft_model", "ngram:gpu": "ngram_gpu"}.get(method, method))
        if row is None:
            return f"vLLM has no method {method}"
        release = parse_version(version or NEWEST_MEASURED).release
        if not row.holds(release):
            return f"vLLM {version or NEWEST_MEASURED} has no method {method}"
        if method == MTP and not shape.mtp_layers:
            return f"{shape.name} carries no MTP layers"
        return ""

    def size_objection(self, shape: ModelShape, layout: Layout) -> str:
        # VLLM_ALLOW_LONG_MAX_MODEL_LEN apart, which is for those who know that the model stands it.
        if 0 < shape.max_positions < layout.context:
            return f"{shape.name} has {shape.max_positions:,} positions, requests of {layout.context:,} are refused"
        return ""

    def way_out(self, objection: str) -> str:
        if "vocabulary sizes" in objection:
            return "use_heterogeneous_vocab: true (vLLM 0.26 and later, greedy drafts), or a draft of the same size"
        if "GGUF" in objection:
            return "fp8, int4 or awq, or --engine llamacpp"
        if "MTP" in objection or "method" in objection:
            return "--method eagle3 with a head for this target, --method draft, or ngram"
        if "positions" in objection:
            return "a shorter --context"
        return "--draft-tp equal to --tp" if "parallelism" in objection else super().way_out(objection)

    def advice(self, request: PlanRequest) -> Iterator[Advice]:
        if request.draft is None or request.draft.head is not None or request.device.is_cpu:
            return
        version = request.engine_version or NEWEST_MEASURED
        is_graphed = losses_of(version) is IN_GRAPHS
        if is_graphed:
            message = (
                f"predicted for vLLM {version}; a draft model is slower before 0.26 and, by its source, in 0.32's "
                "newer model runner: it runs without CUDA graphs there"
            )
        else:
            message = (
                "this version drafts without CUDA graphs, about 0.25 ms per layer and token; the prediction includes "
                "this, the ceiling does not"
            )
        yield Advice(
            check="draft-graphs",
            level=Level.INFO,
            message=message,
            source="vLLM PR 47460; v1/worker/gpu/spec_decode, 0.32; docs/gpu.md",
            next_step="--engine-version 0.32" if is_graphed else "",
        )

    def load_words(self, placed: Placed, *, is_gguf: bool) -> tuple[str, ...] | None:
        """Two formats can be made while loading; the others need weights that were quantised before."""
        asked, stored = placed.weights.precision, placed.shape.precision
        if asked == stored or placed.weights.is_from_file or (asked in _16_BITS and stored in _16_BITS):
            return ()
        return (_MADE_ON_LOADING[asked],) if asked in _MADE_ON_LOADING and stored in _16_BITS else None

    def words(self, request: PlanRequest) -> list[str]:
        layout = request.layout
        words = []
        if layout.tensor_parallel > 1:
            words += ["--tp", str(layout.tensor_parallel)]
        if layout.pipeline_parallel > 1:
            words += ["--pp", str(layout.pipeline_parallel)]
        if layout.kv_dtype != "auto":
            words += ["--kv-dtype", layout.kv_dtype]
        if layout.batched_tokens is not None:
            words += ["--token-budget", str(layout.batched_tokens)]
        if not request.device.is_cpu:
            words.append(f"--engine-arg=--gpu-memory-utilization={layout.utilisation:g}")
        if layout.kv_cache_bytes is not None:
            words.append(f"--engine-arg=--kv-cache-memory-bytes={layout.kv_cache_bytes}")
        return words
