"""Before anything runs: does it fit, do they pair, when would it pay, what to try first. Pure.

Everything read from disk or a driver comes in as values; the answer is one Plan.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as change

from speclift import __version__
from speclift.arithmetic.cost import Drafting, DraftPasses, LookUp
from speclift.core.model_shape import ModelShape
from speclift.core.results import Level
from speclift.core.units import Bytes
from speclift.planner.advice import (
    Advice,
    Pairing,
    PlannedPairing,
    memory_advice,
    pairing_advice,
    pairing_of,
    planned_pairing,
)
from speclift.planner.memory import (
    Memory,
    MemoryPerGpu,
    NominalMemory,
    PairBytes,
    Placed,
    kv_bytes_per_token,
    planned_device,
    planned_model,
    without_draft,
)
from speclift.planner.plan import Plan, next_commands, plan_answer, target_refusal
from speclift.planner.precision import PRECISIONS, weights_in
from speclift.planner.prediction import (
    MTP,
    NGRAM,
    Acceptance,
    EngineModel,
    PlannedDraft,
    Prediction,
    Predictor,
    forward_model,
    needs_of,
    predict,
    ranked,
)
from speclift.planner.request import DraftOption, PlannedMethod, PlanRequest

# Full memory traffic is drawn at the end of a request; half of the context is its middle.
CONTEXT_SHARE = 0.5
MEASURED_HEAD, UNMEASURED_HEAD_TRUST = "eagle", 2.0


def plan_deployment(request: PlanRequest) -> Plan:
    draft, layout, engine = request.draft, request.layout, request.engine
    memory = _memory(request, draft.placed if draft else None, speculates=bool(draft or request.methods))
    bare = _memory(request, None, speculates=False)
    pairing = None
    if draft is not None and draft.head is None:
        pairing = _pairing(request, draft)
    prediction = _prediction(request)
    candidates = ranked(_candidates(request))
    advice = (*_advice(request, memory, bare, pairing, prediction), *_engine_advice(request))
    refusal = refusal_of(request, pairing)
    plan = Plan(
        schema=1,
        speclift=__version__,
        fits=memory.fits,
        runs=not refusal,
        refusal=refusal,
        engine=engine.name,
        engine_version=request.engine_version or prediction.trust.version or None,
        target=planned_model(request.target, request.reference),
        draft=planned_model(draft.placed, draft.reference) if draft else None,
        device=planned_device(request.device, count=layout.gpus, gpus=request.gpu_count),
        layout=change(layout, draft_tensor_parallel=layout.draft_gpus if draft else None),
        memory=_whole_memory(request, memory, bare),
        pairing=PlannedPairing() if pairing is None else planned_pairing(pairing, _rules(request, pairing)),
        prediction=prediction,
        candidates=candidates,
        findings=tuple(sorted(advice, key=lambda found: _ORDER.index(found.level))),
        next=next_commands(request, candidates),
    )
    return change(plan, answer=plan_answer(plan))


def _rules(request: PlanRequest, pairing: Pairing) -> dict[str, str]:
    return {
        terms.name: terms.objection(pairing, request.layout) for terms in (request.engine, *request.others)
    }


def _whole_memory(request: PlanRequest, memory: MemoryPerGpu, bare: MemoryPerGpu) -> Memory:
    layout, target = request.layout, request.target
    draft = request.draft.placed if request.draft else None
    gpus = layout.gpus if request.engine.works_as_one else 1
    vram = request.device.nominal_bytes * layout.gpus
    usable = round(vram * layout.utilisation)
    nominal = PairBytes(target=target.nominal_bytes, draft=draft.nominal_bytes if draft else 0)
    per_gpu = memory.kv_bytes_per_token
    return Memory(
        total_bytes=memory.total_bytes * gpus,
        usable_bytes=memory.usable_bytes * gpus,
        target_weight_bytes=target.weights.total,
        draft_weight_bytes=draft.weights.total if draft else 0,
        nominal_weight_bytes=nominal,
        nominal=NominalMemory(
            vram_bytes=vram,
            usable_bytes=usable,
            weight_bytes=nominal.target + nominal.draft,
            kv_bytes=max(0, usable - nominal.target - nominal.draft),
            kv_bytes_without_draft=max(0, usable - nominal.target),
        ),
        kv_bytes_per_token=PairBytes(
            target=_whole_per_token(request, target.shape, per_gpu.target),
            draft=_whole_per_token(request, draft.shape, per_gpu.draft) if draft else 0,
        ),
        kv_bytes=memory.kv_bytes * gpus,
        kv_tokens=memory.kv_tokens,
        kv_tokens_without_draft=bare.kv_tokens,
        max_concurrency=round(memory.max_concurrency, 3),
        max_concurrency_without_draft=round(bare.max_concurrency, 3),
        context=layout.context,
        kv_buffer_bytes=memory.kv_buffer_bytes,
        per_gpu=memory,
        per_gpu_without_draft=bare,
    )


def _whole_per_token(request: PlanRequest, shape: ModelShape, on_one_gpu: Bytes) -> Bytes:
    """The model's own, whatever is split or repeated over a group."""
    if not request.engine.works_as_one:
        return on_one_gpu
    value_bytes = request.engine.kv_value_bytes(request.layout.kv_dtype)
    return round(kv_bytes_per_token(shape, value_bytes=value_bytes))


def _prediction(request: PlanRequest) -> Prediction:
    """Of the planned method, with the arms of the others that were named."""
    draft = request.draft
    methods = request.methods or (PlannedMethod(name=draft.method if draft else NGRAM, option=draft),)
    planned, *others = (
        predict(
            _predictor(request, method.option, method.name),
            loads=request.loads,
            ks=request.ks,
            acceptances=request.acceptances,
        )
        for method in methods
    )
    loads = zip(*(prediction.loads for prediction in (planned, *others)), strict=True)
    merged = [change(one[0], arms=tuple(arm for load in one for arm in load.arms)) for one in loads]
    return change(planned, loads=tuple(merged))


def refusal_of(request: PlanRequest, pairing: Pairing | None) -> str:
    engine = request.engine
    if pairing is not None and (objection := engine.objection(pairing, request.layout)):
        return objection
    draft = request.draft
    return _own_refusal(request) or (engine.format_objection(draft.placed) if draft else "")


def _method_objection(request: PlanRequest, method: str) -> str:
    return request.engine.method_objection(method, request.target.shape, request.engine_version)


def _own_refusal(request: PlanRequest) -> str:
    """Of the target and of the method, whatever it drafts with."""
    draft = request.draft
    method = request.methods[0].name if request.methods else draft.method if draft else None
    refused = _method_objection(request, method) if method is not None else ""
    return refused or target_refusal(request)


_ORDER = [Level.FAIL, Level.WARN, Level.INFO, Level.PASS]


def _memory(request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPerGpu:
    layout = request.layout if draft is not None else without_draft(request.layout)
    return request.engine.memory(replace(request, layout=layout), draft, speculates=speculates)


def way_to_fit(request: PlanRequest) -> str:
    """The flags that would make it fit: fewer bits first, then more GPUs; empty where none of these do."""
    draft = request.draft.placed if request.draft else None
    tried = (request.target.weights.precision, *request.engine.fit_precisions)
    layout = request.layout
    for gpus in dict.fromkeys((layout.gpus, *FIT_GPUS)):
        parallel = gpus // layout.pipeline_parallel
        if gpus < layout.gpus or request.target.shape.heads % max(1, parallel) or request.device.is_cpu:
            continue
        wider = change(layout, tensor_parallel=parallel, draft_tensor_parallel=parallel)
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


def _pairing(request: PlanRequest, option: DraftOption) -> Pairing:
    return pairing_of(
        request.target.shape,
        option.placed.shape,
        option.comparison,
        file_objection=option.objection,
    )


def _predictor(request: PlanRequest, draft: DraftOption | None, method: str = NGRAM) -> Predictor:
    layout, device = request.layout, request.device
    value_bytes = request.engine.kv_value_bytes(layout.kv_dtype)
    parallel = layout.tensor_parallel if request.engine.works_as_one else 1
    draft_parallel = layout.draft_gpus if request.engine.works_as_one else 1
    drafting: Drafting = LookUp()
    if draft is not None:
        read = draft.head.read if draft.head else draft.placed
        drafting = DraftPasses(
            model=forward_model(read, device, parallel=draft_parallel, kv_value_bytes=value_bytes),
            is_head=draft.head is not None,
            is_parallel=draft.is_parallel,
        )
    return Predictor(
        target=forward_model(request.target, device, parallel=parallel, kv_value_bytes=value_bytes),
        drafting=drafting,
        engine=_engine_model(request, draft),
        context=max(1, round(layout.context * CONTEXT_SHARE)),
        method=method,
    )


def _engine_model(request: PlanRequest, draft: DraftOption | None) -> EngineModel:
    """Of the heads EAGLE's was measured; for the others the losses are a judgement."""
    model = request.engine.model_on(request.device, request.engine_version)
    if draft is None or draft.head is None or draft.method == MEASURED_HEAD:
        return model
    factor = max(model.factor, UNMEASURED_HEAD_TRUST)
    return change(model, factor=factor, source=f"{model.source}; {draft.method} heads were not measured")


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
    objection, ratio = _objection(request, option)
    return PlannedDraft(
        method=NGRAM if option is None else option.method,
        draft=option.placed.shape.name if option else None,
        reference=option.reference if option else None,
        precision=option.placed.weights.precision if option else None,
        ratio=ratio,
        fits=memory.fits,
        usable=memory.fits and not objection,
        kv_tokens=memory.kv_tokens,
        max_concurrency=round(memory.max_concurrency, 3),
        objection=objection or ("" if memory.fits else "does not fit"),
        loads=needs_of(
            _predictor(request, option), loads=request.loads, ks=request.ks, acceptance=acceptance
        ),
    )


def _objection(request: PlanRequest, option: DraftOption | None) -> tuple[str, float | None]:
    """Why the engine would not draft with it, and how much smaller than the target it is; a head is no pair of it."""
    if option is None:
        return "", None
    engine = request.engine
    if option.head is not None:
        return _method_objection(request, option.method) or engine.format_objection(option.placed), None
    pairing = _pairing(request, option)
    rule = engine.objection(pairing, request.layout) or engine.format_objection(option.placed)
    tokens = "the tokenizers differ" if pairing.same_tokenizer is False else ""
    return rule or tokens, pairing.ratio


def _advice(
    request: PlanRequest,
    memory: MemoryPerGpu,
    bare: MemoryPerGpu,
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
            rule=_engine_rule(request, pairing),
            context=request.layout.context,
        )
    refused = _own_refusal(request) or (request.engine.format_objection(draft.placed) if draft else "")
    if refused:
        found.append(_refused(request, refused, f"{request.engine.name} will not run this"))
    positions = request.target.shape.max_positions
    if 0 < positions < request.layout.context and not refused:
        found.append(
            Advice(
                check="positions",
                level=Level.WARN,
                message=f"the target supports {positions:,} positions, the context is {request.layout.context:,}",
                source="config.json",
                next_step=f"use --context {positions}",
            )
        )
    found += _assumption_advice(request)
    return [*found, *_prediction_advice(request, prediction)]


def _assumption_advice(request: PlanRequest) -> list[Advice]:
    """What the plan stands on that nobody has read anywhere."""
    draft = request.draft
    head = draft.head if draft else None
    notes = [f"{draft.placed.shape.name}: {head.note}"] if draft is not None and head is not None else []
    found = [
        Advice(check="assumed", level=Level.INFO, message=note, source="speclift")
        for note in (*request.assumptions, *notes)
    ]
    if draft is not None and head is not None and not draft.has_reference and draft.method != MTP:
        found.append(
            Advice(
                check="head",
                level=Level.INFO,
                message=f"no {draft.method} head was named, so there is no command to measure one yet",
                source="speclift",
                next_step="give its folder or id with --draft",
            )
        )
    return found


def _prediction_advice(request: PlanRequest, prediction: Prediction) -> list[Advice]:
    found = []
    hopeless = [
        str(load.concurrency)
        for load in prediction.loads
        if all(step.break_even_acceptance is None for step in load.steps)
    ]
    if hopeless:
        found.append(
            Advice(
                check="break-even",
                level=Level.WARN,
                message="slower than the baseline at any acceptance rate and any k, at concurrency "
                + ", ".join(hopeless),
                source=f"predicted, {prediction.trust.source}",
                next_step="use a smaller or quantised draft, or n-gram",
            )
        )
    shape = request.target.shape
    if shape.is_moe:
        found.append(
            Advice(
                check="moe",
                level=Level.INFO,
                message=f"{shape.experts_per_token} of {shape.experts} experts per token: verifying several tokens "
                "uses more experts, so gains are smallest at low load; the prediction includes this",
                source="method 2.2; SpecForge issue 339",
            )
        )
    if not request.acceptances:
        found.append(
            Advice(
                check="acceptance",
                level=Level.INFO,
                message="the acceptance rate is unknown, so several rates are shown",
                source="speclift",
                next_step="give --acceptance 0.7, a study directory, or the JSON of speclift replay",
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
                f"{request.gpu_count // layout.gpus} fit on them",
                source="speclift",
            )
        )
    if request.engine.load_words(request.target, is_gguf=request.is_gguf) is None:
        found.append(
            Advice(
                check="weights",
                level=Level.INFO,
                message=f"{request.engine.name} does not make {request.target.weights.precision} weights of "
                f"{request.reference} while loading, so there is no command to measure it yet",
                source="speclift",
                next_step=request.engine.weights_hint,
            )
        )
    return [*found, *request.engine.advice(request)]


def _engine_rule(request: PlanRequest, pairing: Pairing) -> Advice | None:
    engine = request.engine
    objection = engine.objection(pairing, request.layout)
    return _refused(request, objection, f"{engine.name} will not run this pair") if objection else None


def _refused(request: PlanRequest, objection: str, message: str) -> Advice:
    return Advice(
        check="engine-rule",
        level=Level.FAIL,
        message=f"{message}: {objection}",
        source=request.engine.rule_source,
        next_step=request.engine.way_out(objection),
    )
