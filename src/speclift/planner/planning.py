"""Before anything runs: does it fit, do they pair, when would it pay, what to try first. Pure.

Everything read from disk or a driver comes in as values; the answer is one Plan.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from speclift.arithmetic.cost import Drafting, DraftPasses, LookUp
from speclift.core.results import Level
from speclift.planner.acceptance_curve import ASSUMED_RATES, Acceptance, Assumed
from speclift.planner.advice import Advice, Pairing, memory_advice, pairing_advice, pairing_of
from speclift.planner.candidates import DRAFT, NGRAM, PlannedDraft, needs_of, ranked
from speclift.planner.memory import MemoryPlan, Placed, without_draft
from speclift.planner.precision import PRECISIONS, weights_in
from speclift.planner.prediction import Prediction, Predictor, forward_model, predict
from speclift.planner.request import DraftOption, PlanRequest

# Full memory traffic is drawn at the end of a request; half of the context is its middle.
CONTEXT_SHARE = 0.5


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
        drafting = DraftPasses(
            model=forward_model(draft.placed, device, parallel=draft_parallel, kv_value_bytes=value_bytes)
        )
    return Predictor(
        target=forward_model(request.target, device, parallel=parallel, kv_value_bytes=value_bytes),
        drafting=drafting,
        engine=request.engine.model_on(device, request.engine_version),
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
        rule = request.engine.objection(pairing, request.layout)
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
            rule=_engine_rule(request, pairing),
            context=request.layout.context,
        )
    positions = request.target.shape.max_positions
    if 0 < positions < request.layout.context:
        found.append(
            Advice(
                check="positions",
                level=Level.WARN,
                message=f"the target supports {positions:,} positions, the context is {request.layout.context:,}",
                source="config.json",
                next_step=f"use --context {positions}",
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
    return [*found, *request.engine.advice(request)]


def _engine_rule(request: PlanRequest, pairing: Pairing) -> Advice | None:
    engine = request.engine
    objection = engine.objection(pairing, request.layout)
    if not objection:
        return None
    return Advice(
        check="engine-rule",
        level=Level.FAIL,
        message=f"{engine.name} will not run this pair: {objection}",
        source=engine.rule_source,
        next_step=engine.way_out(objection),
    )


def next_commands(request: PlanRequest, candidates: tuple[PlannedDraft, ...]) -> tuple[str, ...]:
    """What to type: the measurement of the best usable candidates."""
    usable = [candidate for candidate in candidates if candidate.is_usable]
    if not usable:
        return ()
    # The draft that was asked for, and the best one if that is another.
    asked = [option.reference for option in request.drafts if option.is_asked_for]
    best = [candidate.reference for candidate in usable if candidate.reference]
    drafts = list(dict.fromkeys([*(draft for draft in best if draft in asked), *best[:1]]))
    words = ["speclift", "decide", "--engine", request.engine.name, "--model", request.reference]
    words += ["--method", request.engine.look_up]
    if drafts:
        words += [word for draft in drafts for word in ("--draft", draft)] + ["--method", DRAFT]
    shown = sorted(request.ks)[:: max(1, len(request.ks) // 3)][:3]
    words += ["--k", ",".join(str(k) for k in shown)]
    words += ["--concurrency", ",".join(str(load) for load in request.loads)]
    words += ["--context", str(request.layout.context)]
    words += request.engine.words(request)
    return (shlex.join(words),)
