"""vLLM for a plan: its memory, its losses, its rules about pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from speclift.arithmetic.cost import EngineLosses
from speclift.core.errors import EngineError, UsageError, unknown_name
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape, Weights
from speclift.core.results import Level
from speclift.core.units import Bytes, Tokens
from speclift.engines.vllm.dialect.config_rules import DRAFT_GRAPHS_SINCE, DRAFT_ON_NEW_RUNNER
from speclift.engines.vllm.dialect.tables import METHODS
from speclift.engines.vllm.flags import parse_version
from speclift.linter.rows import Release
from speclift.planner.advice import Advice, Pairing
from speclift.planner.memory import (
    GIB,
    Layout,
    MemoryPerGpu,
    PairBytes,
    Placed,
    kv_bytes_per_token,
    layer_bytes_per_token,
)
from speclift.planner.precision import PRECISIONS
from speclift.planner.prediction import MTP, EngineModel
from speclift.planner.request import EngineTerms, PlanRequest

# The KV cache


# Block sizes: 16 tokens on CUDA, 128 on its CPU build.
GPU_BLOCK_TOKENS = 16
CPU_BLOCK_TOKENS = 128
# "auto" stores keys and values in 16 bits for every model in the catalogue.
KV_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0,
            "fp8_e5m2": 1.0, "int8": 1.0}  # fmt: skip
# More layers of one kind than 1.5 times those of the other: the smaller number is the group size.
_GROUP_RATIO = 1.5


def kv_value_bytes(dtype: str) -> float:
    word = dtype.strip().lower()
    if word not in KV_BYTES:
        raise unknown_name(what="--kv-dtype", seen=dtype, allowed=KV_BYTES)
    return KV_BYTES[word]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPages:
    """Layers of one page size and window on one GPU."""

    layers: int
    page_bytes: float
    window: Tokens | None


def pages_of(
    shapes: Sequence[tuple[ModelShape, int]], *, value_bytes: float, block: Tokens, stages: int = 1
) -> tuple[LayerPages, ...]:
    """The layers of target and draft, each with its tensor-parallel size, on the busiest pipeline stage."""
    return tuple(
        LayerPages(
            # The first shape is the target; a draft stands whole on one stage.
            layers=math.ceil(kv.layers / stages) if position == 0 else kv.layers,
            page_bytes=block * layer_bytes_per_token(kv, value_bytes=value_bytes, tensor_parallel=parallel),
            window=kv.window,
        )
        for position, (shape, parallel) in enumerate(shapes)
        for kv in shape.kv
    )


class KvPool(NamedTuple):
    """Tokens that the KV cache holds, and the requests of full context among them."""

    tokens: Tokens
    max_concurrency: float
    blocks: int


def pool(
    pages: Sequence[LayerPages],
    *,
    kv_bytes: float,
    context: Tokens,
    block: Tokens,
    in_flight: Tokens,
    state_bytes: float = 0.0,
) -> KvPool:
    """How many requests of `context` tokens fit: each takes whole blocks from every group of layers."""
    if kv_bytes <= 0:
        return KvPool(0, 0.0, 0)
    block_bytes, per_request = _request_blocks(pages, context=context, block=block, in_flight=in_flight)
    if not block_bytes:
        concurrency = kv_bytes / state_bytes if state_bytes else 0.0
        return KvPool(int(concurrency * context), concurrency, 0)
    blocks = int(kv_bytes // block_bytes)
    concurrency = blocks / (per_request + state_bytes / block_bytes)
    return KvPool(int(concurrency * context), concurrency, blocks)


def _request_blocks(
    pages: Sequence[LayerPages], *, context: Tokens, block: Tokens, in_flight: Tokens
) -> tuple[float, float]:
    """The bytes of a block, and how many of them a request takes."""
    needed = {
        page.window: _blocks(page.window, context=context, block=block, in_flight=in_flight) for page in pages
    }
    all_layers = sum(page.layers * page.page_bytes for page in pages)
    if len(needed) < 2:
        return all_layers, next(iter(needed.values()), 0)
    if len({page.page_bytes for page in pages}) > 1:
        # Pages of several sizes are packed side by side: no rounding beyond the blocks themselves.
        taken = sum(page.layers * page.page_bytes * needed[page.window] for page in pages)
        return all_layers, taken / all_layers
    layers: Counter[Tokens | None] = Counter()
    for page in pages:
        layers[page.window] += page.layers
    group = _group_size(list(layers.values()))
    groups = {window: math.ceil(count / group) for window, count in layers.items()}
    return group * pages[0].page_bytes, sum(groups[window] * needed[window] for window in groups)


def _group_size(counts: Sequence[int]) -> int:
    smallest, largest = min(counts), max(counts)
    return largest if largest < smallest * _GROUP_RATIO else smallest


def _blocks(window: Tokens | None, *, context: Tokens, block: Tokens, in_flight: Tokens) -> int:
    if window is None:
        return math.ceil(context / block)
    # A window keeps itself and the tokens in flight, and need not begin at a block's edge.
    return math.ceil(min(window - 1 + in_flight, context) / block) + 1


# What else takes memory


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


# What a step loses


# vllm.config.compilation: graphs are captured for at most 512 tokens unless told otherwise.
GRAPH_TOKENS = 512
_SHARED = EngineLosses(
    bandwidth_share=0.808, compute_share=0.493, narrow_compute_share=0.329, overlap=2.0, step_s=1.18e-3,
    speculation_s=1.58e-3, unscheduled_s=1.19e-3, head_pass_s=43.3e-6, ngram_sequence_s=23.9e-6,
    graph_tokens=GRAPH_TOKENS, ungraphed_layer_s=86.9e-6,
)  # fmt: skip
# A separate draft model runs outside graphs in 0.24 and, by its source, in 0.32's newer runner.
OUTSIDE_GRAPHS = replace(_SHARED, draft_pass_s=0.677e-3, draft_layer_s=0.252e-3)
IN_GRAPHS = replace(_SHARED, draft_pass_s=0.464e-3, draft_layer_s=0.108e-3)

MEASURED = {(0, 24): OUTSIDE_GRAPHS, (0, 26): IN_GRAPHS}
# The newest that was measured stands where no version is named.
NEWEST_MEASURED = "0.26"
# Of rows whose configuration was left out of the fit at least nine of ten lie within this factor; where nothing was
# measured the factor is a judgement.
TRUST_MEASURED, TRUST_ELSEWHERE = 1.4, 2.0

VLLM_CPU = EngineModel(
    losses=EngineLosses(overlap=1.0, step_s=60e-3, speculation_s=20e-3, draft_pass_s=60e-3),
    factor=3.0,
    source="vLLM 0.32's CPU build ran a 135M model at 8-15 tok/s on two cores",
)


def losses_of(version: str) -> EngineLosses:
    is_graphed = DRAFT_GRAPHS_SINCE <= _release(version) < DRAFT_ON_NEW_RUNNER
    return IN_GRAPHS if is_graphed else OUTSIDE_GRAPHS


def model_for(device: Device, version: str | None) -> EngineModel:
    if device.is_cpu:
        return VLLM_CPU
    asked = version or NEWEST_MEASURED
    losses = losses_of(asked)
    is_measured_release = _release(asked)[:2] in MEASURED
    is_measured_device = device.name.startswith("h200-141gb")
    fitted = next(".".join(map(str, release)) for release, own in MEASURED.items() if own is losses)
    source = f"fitted to vLLM {fitted} on one H200"
    if not is_measured_release:
        source += f", not checked on {asked}"
    if not is_measured_device:
        source += ", not checked on this GPU"
    trust = TRUST_MEASURED if is_measured_release and is_measured_device else TRUST_ELSEWHERE
    return EngineModel(losses=losses, factor=trust, source=source, version=asked)


def _release(version: str) -> Release:
    try:
        return parse_version(version).release
    except EngineError as error:
        raise UsageError(f"--engine-version: {error}", hint="such as 0.26.0") from error


# The terms of plan


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
