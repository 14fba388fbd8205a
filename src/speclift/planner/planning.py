"""Before anything runs: does it fit, do they pair, when would it pay, what to try first. Pure.

Everything read from disk or a driver comes in as values; the answer is one Plan.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from speclift.arithmetic.cost import Drafting, DraftPasses, LookUp
from speclift.core.hardware import Device
from speclift.core.results import Level
from speclift.planner.acceptance_curve import ASSUMED_RATES, Acceptance, Assumed
from speclift.planner.advice import Advice, Pairing, memory_advice, pairing_advice, pairing_of
from speclift.planner.candidates import DRAFT, NGRAM, PlannedDraft, needs_of, ranked
from speclift.planner.kv_cache import LLAMA_KV_BLOCKS, kv_value_bytes, llama_kv_type
from speclift.planner.llamacpp_memory import llamacpp_memory
from speclift.planner.memory import Layout, MemoryPlan, Placed, vllm_memory, without_draft
from speclift.planner.precision import PRECISIONS, weights_in
from speclift.planner.prediction import Prediction, Predictor, engine_model, forward_model, predict
from speclift.planner.tokens import TokenComparison

# Full memory traffic is drawn at the end of a request; half of the context is its middle.
CONTEXT_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOption:
    """A draft the user named, or one the catalogue offers for this target."""

    placed: Placed
    reference: str
    comparison: TokenComparison | None
    is_asked_for: bool
    # What the engine's own check of both files objects to.
    objection: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    engine: str
    device: Device
    layout: Layout
    target: Placed
    # How a command names the target.
    reference: str
    drafts: tuple[DraftOption, ...]
    loads: tuple[int, ...]
    ks: tuple[int, ...]
    # Empty: nobody said one, so the whole curve is shown.
    acceptances: tuple[Acceptance, ...]
    gpu_count: int = 1

    @property
    def draft(self) -> DraftOption | None:
        """The first draft that was asked for."""
        return next((option for option in self.drafts if option.is_asked_for), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    request: PlanRequest
    memory: MemoryPlan
    memory_without_draft: MemoryPlan
    pairing: Pairing | None
    prediction: Prediction
    candidates: tuple[PlannedDraft, ...]
    advice: tuple[Advice, ...]
    next_commands: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.memory.fits


def plan_deployment(request: PlanRequest) -> Plan:
    draft = request.draft
    memory = _memory(request, draft.placed if draft else None, speculates=draft is not None)
    bare = _memory(request, None, speculates=False)
    pairing = None
    if draft is not None:
        pairing = _pairing(request, draft)
    predictor = _predictor(request, draft)
    curve = request.acceptances or tuple(Assumed(rate=rate) for rate in ASSUMED_RATES)
    prediction = predict(
        predictor,
        method=DRAFT if draft else NGRAM,
        loads=request.loads,
        ks=request.ks,
        acceptances=curve,
    )
    candidates = ranked(_candidates(request))
    advice = (*_advice(request, memory, bare, pairing, prediction), *_engine_advice(request))
    return Plan(
        request=request,
        memory=memory,
        memory_without_draft=bare,
        pairing=pairing,
        prediction=prediction,
        candidates=candidates,
        advice=tuple(sorted(advice, key=lambda found: _ORDER.index(found.level))),
        next_commands=next_commands(request, candidates),
    )


_ORDER = [Level.FAIL, Level.WARN, Level.INFO, Level.PASS]


def _memory(request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPlan:
    layout = request.layout if draft is not None else without_draft(request.layout)
    if request.engine == "llamacpp":
        return llamacpp_memory(request.target, draft, request.device, layout, slots=max(request.loads))
    return vllm_memory(request.target, draft, request.device, layout, speculates=speculates)


def way_to_fit(request: PlanRequest) -> str:
    """The flags that would make it fit: fewer bits first, then more GPUs; empty where none of these do."""
    draft = request.draft.placed if request.draft else None
    tried = (request.target.weights.precision, *FIT_PRECISIONS[request.engine])
    layout = request.layout
    for gpus in dict.fromkeys((layout.gpus, *FIT_GPUS)):
        parallel = gpus // layout.pipeline_parallel
        if gpus < layout.gpus or request.target.shape.heads % max(1, parallel) or request.device.is_cpu:
            continue
        wider = replace(layout, tensor_parallel=parallel, draft_tensor_parallel=parallel)
        for name in tried:
            target = request.target
            if name != target.weights.precision:
                target = replace(target, weights=weights_in(target.shape, PRECISIONS[name]))
            asked = replace(request, layout=wider, target=target)
            if target.weights.total > request.target.weights.total:
                continue
            if _memory(asked, draft, speculates=draft is not None).fits:
                flags = [f"--target-quant {name}"] if name != request.target.weights.precision else []
                flags += [f"--gpus {gpus}"] if gpus > layout.gpus else []
                return " ".join(flags)
    return ""


FIT_GPUS = (1, 2, 4, 8, 16)
FIT_PRECISIONS = {"vllm": ("fp8", "int4"), "llamacpp": ("q8_0", "q4_k_m")}


def _pairing(request: PlanRequest, option: DraftOption) -> Pairing:
    return pairing_of(
        request.target.shape,
        option.placed.shape,
        option.comparison,
        layout=request.layout,
        llamacpp_objection=option.objection,
    )


def _predictor(request: PlanRequest, draft: DraftOption | None) -> Predictor:
    layout, device = request.layout, request.device
    is_llama = request.engine == "llamacpp"
    if is_llama:
        values, size = LLAMA_KV_BLOCKS[llama_kv_type(layout.kv_dtype)]
        value_bytes = size / values
    else:
        value_bytes = kv_value_bytes(layout.kv_dtype)
    # llama.cpp splits layers over GPUs, which then work one after the other.
    parallel = 1 if is_llama else layout.tensor_parallel
    draft_parallel = 1 if is_llama else layout.draft_tensor_parallel
    drafting: Drafting = LookUp()
    if draft is not None:
        drafting = DraftPasses(
            model=forward_model(draft.placed, device, parallel=draft_parallel, kv_value_bytes=value_bytes)
        )
    return Predictor(
        target=forward_model(request.target, device, parallel=parallel, kv_value_bytes=value_bytes),
        drafting=drafting,
        engine=engine_model(request.engine, device),
        context=max(1, round(layout.context * CONTEXT_SHARE)),
    )


def _candidates(request: PlanRequest) -> list[PlannedDraft]:
    given = request.acceptances[0] if request.acceptances else None
    planned = request.draft
    return [
        _candidate(request, option, given if option is planned else None)
        for option in (None, *request.drafts)
    ]


def _candidate(
    request: PlanRequest, option: DraftOption | None, acceptance: Acceptance | None
) -> PlannedDraft:
    memory = _memory(request, option.placed if option else None, speculates=True)
    objection = "" if memory.fits else "does not fit"
    ratio = None
    if option is not None:
        pairing = _pairing(request, option)
        ratio = pairing.ratio
        rule = pairing.vllm_objection if request.engine == "vllm" else pairing.llamacpp_objection
        tokens = "the tokenizers differ" if pairing.same_tokenizer is False else ""
        objection = rule or tokens or objection
    return PlannedDraft(
        method=NGRAM if option is None else DRAFT,
        draft=option.placed.shape.name if option else None,
        reference=option.reference if option else None,
        precision=option.placed.weights.precision if option else None,
        ratio=ratio,
        fits=memory.fits,
        kv_tokens=memory.pool.tokens,
        max_concurrency=memory.pool.max_concurrency,
        objection=objection,
        needs=needs_of(
            _predictor(request, option), loads=request.loads, ks=request.ks, acceptance=acceptance
        ),
    )


def _advice(
    request: PlanRequest,
    memory: MemoryPlan,
    bare: MemoryPlan,
    pairing: Pairing | None,
    prediction: Prediction,
) -> list[Advice]:
    draft = request.draft
    found = list(
        memory_advice(
            memory,
            bare,
            request.target,
            draft.placed if draft else None,
            request.device,
            request.layout,
            request.loads,
            way_out="" if memory.fits else way_to_fit(request),
        )
    )
    if draft is not None and pairing is not None:
        found += pairing_advice(
            pairing,
            request.target.shape,
            draft.placed.shape,
            engine=request.engine,
            context=request.layout.context,
        )
    positions = request.target.shape.max_positions
    if 0 < positions < request.layout.context:
        found.append(
            Advice(
                check="positions",
                level=Level.WARN,
                message=f"the target was made for {positions:,} positions, the context is {request.layout.context:,}",
                source="config.json",
                next_step=f"--context {positions}",
            )
        )
    return [*found, *_prediction_advice(request, prediction)]


def _prediction_advice(request: PlanRequest, prediction: Prediction) -> list[Advice]:
    found = []
    hopeless = [
        str(load.concurrency)
        for load in prediction.loads
        if all(step.break_even is None for step in load.steps)
    ]
    if hopeless:
        found.append(
            Advice(
                check="break-even",
                level=Level.WARN,
                message="a step costs more than it could ever accept, at every k, at concurrency "
                + ", ".join(hopeless),
                source=f"predicted, {prediction.model.source}",
                next_step="a smaller or quantised draft, or n-gram",
            )
        )
    shape = request.target.shape
    if shape.is_moe:
        found.append(
            Advice(
                check="moe",
                level=Level.INFO,
                message=f"{shape.experts_per_token} of {shape.experts} experts per token: checking several tokens "
                "wakes more experts, so gains are smallest at low load; the growth is in the prediction",
                source="method 2.2; SpecForge issue 339",
            )
        )
    if not request.acceptances:
        found.append(
            Advice(
                check="acceptance",
                level=Level.INFO,
                message="no acceptance is known, so the curve is shown and nothing is chosen from it",
                source="speclift",
                next_step="--acceptance 0.7, a study directory, or the JSON of speclift replay",
            )
        )
    return found


def _engine_advice(request: PlanRequest) -> list[Advice]:
    found = []
    layout = request.layout
    if request.gpu_count > layout.gpus:
        found.append(
            Advice(
                check="replicas",
                level=Level.INFO,
                message=f"the plan is for one replica on {layout.gpus} of {request.gpu_count} GPUs; "
                f"{request.gpu_count // layout.gpus} fit side by side",
                source="speclift",
            )
        )
    if request.engine == "llamacpp" and request.draft is not None:
        found.append(
            Advice(
                check="spec-type",
                level=Level.INFO,
                message="llama.cpp drafts only with --spec-type draft-simple; -md alone runs the baseline",
                source=LLAMA_SERVER,
            )
        )
    if request.engine == "vllm" and request.draft is not None and not request.device.is_cpu:
        found.append(
            Advice(
                check="draft-graphs",
                level=Level.INFO,
                message="vLLM's newer model runner drafts without CUDA graphs, about 0.4 ms per layer and token: that "
                "is in the prediction, and why the roofline's ceiling lies far above it",
                source="vLLM 0.32, v1/worker/gpu/spec_decode; one H200",
            )
        )
    return found


LLAMA_SERVER = "llama.cpp b10586, common/arg.cpp"


def next_commands(request: PlanRequest, candidates: tuple[PlannedDraft, ...]) -> tuple[str, ...]:
    """What to type: the measurement of the best usable candidates."""
    usable = [candidate for candidate in candidates if candidate.is_usable]
    if not usable:
        return ()
    # The draft that was asked for, and the best one if that is another.
    asked = [option.reference for option in request.drafts if option.is_asked_for]
    best = [candidate.reference for candidate in usable if candidate.reference]
    drafts = list(dict.fromkeys([*(draft for draft in best if draft in asked), *best[:1]]))
    words = ["speclift", "decide", "--engine", request.engine, "--model", request.reference]
    if request.engine == "llamacpp":
        words += ["--method", NGRAM]
    else:
        words += ["--method", "ngram,n=3"]
    if drafts:
        words += [word for draft in drafts for word in ("--draft", draft)] + ["--method", DRAFT]
    shown = sorted(request.ks)[:: max(1, len(request.ks) // 3)][:3]
    words += ["--k", ",".join(str(k) for k in shown)]
    words += ["--concurrency", ",".join(str(load) for load in request.loads)]
    words += ["--context", str(request.layout.context)]
    if request.engine == "vllm":
        words += _vllm_words(request)
    return (shlex.join(words),)


def _vllm_words(request: PlanRequest) -> list[str]:
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
