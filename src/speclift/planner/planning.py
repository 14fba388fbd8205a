"""Before anything runs: does it fit, do they pair, when would it pay, what to try first. Pure.

Everything read from disk or a driver comes in as values; the answer is one Plan.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from speclift.arithmetic.cost import Drafting, DraftPasses, LookUp
from speclift.core.arm import CONTEXT_MIN
from speclift.core.drafting import PARALLEL_DRAFTING
from speclift.core.results import Level
from speclift.planner.acceptance_curve import ASSUMED_RATES, Acceptance, Assumed
from speclift.planner.advice import Advice, Pairing, memory_advice, pairing_advice, pairing_of
from speclift.planner.candidates import DRAFT, MTP, NGRAM, PlannedDraft, needs_of, ranked
from speclift.planner.memory import MemoryPlan, Placed, without_draft
from speclift.planner.precision import PRECISIONS, weights_in
from speclift.planner.prediction import EngineModel, Prediction, Predictor, forward_model, predict
from speclift.planner.request import DraftOption, PlannedMethod, PlanRequest

# Full memory traffic is drawn at the end of a request; half of the context is its middle.
CONTEXT_SHARE = 0.5
MEASURED_HEAD, UNMEASURED_HEAD_TRUST = "eagle", 2.0


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
    # Why the engine refuses it, whatever memory there is; empty where it does not.
    refusal: str = ""
    # Of the other methods that were named.
    other_predictions: tuple[Prediction, ...] = ()

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def runs(self) -> bool:
        return not self.refusal


def plan_deployment(request: PlanRequest) -> Plan:
    draft = request.draft
    speculates = draft is not None or bool(request.methods)
    memory = _memory(request, draft.placed if draft else None, speculates=speculates)
    bare = _memory(request, None, speculates=False)
    pairing = None
    if draft is not None and draft.head is None:
        pairing = _pairing(request, draft)
    prediction, *others = _predictions(request)
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
        refusal=refusal_of(request, pairing),
        other_predictions=tuple(others),
    )


def _predictions(request: PlanRequest) -> list[Prediction]:
    """One for each method that was named, the planned one first."""
    draft = request.draft
    methods = request.methods or (PlannedMethod(name=draft.method if draft else NGRAM, option=draft),)
    curve = request.acceptances or tuple(Assumed(rate=rate) for rate in ASSUMED_RATES)
    return [
        predict(
            _predictor(request, method.option),
            method=method.name,
            loads=request.loads,
            ks=request.ks,
            acceptances=curve,
        )
        for method in methods
    ]


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
    return refused or _target_refusal(request)


def _target_refusal(request: PlanRequest) -> str:
    engine, target = request.engine, request.target
    return engine.format_objection(target) or engine.size_objection(target.shape, request.layout)


_ORDER = [Level.FAIL, Level.WARN, Level.INFO, Level.PASS]


def _memory(request: PlanRequest, draft: Placed | None, *, speculates: bool) -> MemoryPlan:
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


def _pairing(request: PlanRequest, option: DraftOption) -> Pairing:
    return pairing_of(
        request.target.shape,
        option.placed.shape,
        option.comparison,
        file_objection=option.objection,
    )


def _predictor(request: PlanRequest, draft: DraftOption | None) -> Predictor:
    layout, device = request.layout, request.device
    value_bytes = request.engine.kv_value_bytes(layout.kv_dtype)
    parallel = layout.tensor_parallel if request.engine.works_as_one else 1
    draft_parallel = layout.draft_tensor_parallel if request.engine.works_as_one else 1
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
    )


def _engine_model(request: PlanRequest, draft: DraftOption | None) -> EngineModel:
    """Of the heads EAGLE's was measured; for the others the losses are a judgement."""
    model = request.engine.model_on(request.device, request.engine_version)
    if draft is None or draft.head is None or draft.method == MEASURED_HEAD:
        return model
    trust = max(model.trust_factor, UNMEASURED_HEAD_TRUST)
    return replace(
        model, trust_factor=trust, source=f"{model.source}; {draft.method} heads were not measured"
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
    objection, ratio = _objection(request, option)
    return PlannedDraft(
        method=NGRAM if option is None else option.method,
        draft=option.placed.shape.name if option else None,
        reference=option.reference if option else None,
        precision=option.placed.weights.precision if option else None,
        ratio=ratio,
        fits=memory.fits,
        kv_tokens=memory.pool.tokens,
        max_concurrency=memory.pool.max_concurrency,
        objection=objection or ("" if memory.fits else "does not fit"),
        needs=needs_of(
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
        if all(step.break_even is None for step in load.steps)
    ]
    if hopeless:
        found.append(
            Advice(
                check="break-even",
                level=Level.WARN,
                message="slower than the baseline at any acceptance rate and any k, at concurrency "
                + ", ".join(hopeless),
                source=f"predicted, {prediction.model.source}",
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


def next_commands(request: PlanRequest, candidates: tuple[PlannedDraft, ...]) -> tuple[str, ...]:
    """What to type: the measurement of the best usable candidates, in the formats that were asked for."""
    engine = request.engine
    usable = [candidate for candidate in candidates if candidate.is_usable]
    target_words = engine.load_words(request.target, is_gguf=request.is_gguf)
    if not usable or target_words is None or not request.has_target or _target_refusal(request):
        return ()
    words = ["speclift", "decide", "--engine", engine.name, "--model", request.reference]
    words += ["--method", engine.look_up, *_head_words(request, usable), *_draft_words(request, usable)]
    shown = sorted(request.ks)[:: max(1, len(request.ks) // 3)][:3]
    words += ["--k", ",".join(str(k) for k in shown)]
    words += ["--concurrency", ",".join(str(load) for load in request.loads)]
    words += ["--context", str(max(CONTEXT_MIN, request.layout.context))]
    words += [f"--target-quant={word}" for word in target_words]
    words += engine.words(request)
    return (shlex.join(words),)


def _head_words(request: PlanRequest, usable: list[PlannedDraft]) -> list[str]:
    """Heads that can be named; each names its own model, because --draft is every method's."""
    words = []
    for option in request.drafts:
        if option.head is None or not any(
            (each.method, each.draft) == (option.method, option.placed.shape.name) for each in usable
        ):
            continue
        if option.method == MTP:
            words += ["--method", MTP]
        elif option.has_reference:
            words += ["--method", f"{option.method},model={option.reference}"]
    return words


def _draft_words(request: PlanRequest, usable: list[PlannedDraft]) -> list[str]:
    """The draft that was asked for, and the best one if that is another in the same format."""
    measurable = list(_measurable(request, usable))
    if not measurable:
        return []
    asked = [(option, words) for option, words in measurable if option.is_asked_for]
    chosen = [*asked, measurable[0]]
    quantisation = chosen[0][1]
    references = dict.fromkeys(option.reference for option, words in chosen if words == quantisation)
    named = [word for reference in references for word in ("--draft", reference)]
    method = f"{DRAFT},{PARALLEL_DRAFTING}=true" if chosen[0][0].is_parallel else DRAFT
    return [*named, "--method", method, *(f"--draft-quant={word}" for word in quantisation)]


def _measurable(
    request: PlanRequest, usable: list[PlannedDraft]
) -> Iterator[tuple[DraftOption, tuple[str, ...]]]:
    """Draft models that a command can name in the format that was planned, with its words for that format."""
    options = [option for option in request.drafts if option.head is None and option.has_reference]
    for candidate, option in product(usable, options):
        is_same = option.reference == candidate.reference
        if is_same and option.placed.weights.precision == candidate.precision:
            words = request.engine.load_words(option.placed, is_gguf=option.is_gguf)
            if words is not None:
                yield option, words
