"""A Plan as the JSON document of `plan --json`; schema 1, fields may be added and never change their meaning. Pure."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, final, overload

from speclift import __version__
from speclift.core.documents import AnswerDocument, answer_document
from speclift.core.model_shape import ModelShape
from speclift.core.results import Level
from speclift.planner.answer import plan_answer
from speclift.planner.candidates import PlannedDraft
from speclift.planner.memory import MemoryPlan, Placed, kv_bytes_per_token
from speclift.planner.planning import Plan
from speclift.planner.precision import PRECISIONS
from speclift.planner.prediction import Prediction, Range
from speclift.planner.tokens import TokenText


class PlannedModelDocument(TypedDict):
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


class DeviceDocument(TypedDict):
    name: str
    title: str
    count: int
    gpus: int
    memory_bytes: int
    nominal_bytes: int
    bandwidth_bytes_s: float
    flops_16: float
    source: str


class LayoutDocument(TypedDict):
    tensor_parallel: int
    draft_tensor_parallel: int | None
    pipeline_parallel: int
    utilisation: float
    context: int
    kv_dtype: str
    max_num_seqs: int


class PairBytesDocument(TypedDict):
    target: int
    draft: int


class NominalMemoryDocument(TypedDict):
    vram_bytes: int
    usable_bytes: int
    weight_bytes: int
    kv_bytes: int
    kv_bytes_without_draft: int


class KvBuffersDocument(TypedDict):
    slots: int
    target: int
    draft: int | None


class GpuMemoryDocument(TypedDict):
    total_bytes: int
    usable_bytes: int
    target_weight_bytes: int
    draft_weight_bytes: int
    activation_bytes: int
    speculation_bytes: int
    runtime_bytes: int
    kv_bytes: int
    kv_bytes_per_token: PairBytesDocument
    block_tokens: int
    blocks: int


class MemoryDocument(TypedDict):
    """Of the whole deployment; one GPU, the busiest, under per_gpu."""

    total_bytes: int
    usable_bytes: int
    target_weight_bytes: int
    draft_weight_bytes: int
    nominal_weight_bytes: PairBytesDocument
    nominal: NominalMemoryDocument
    kv_bytes_per_token: PairBytesDocument
    kv_bytes: int
    kv_tokens: int
    kv_tokens_without_draft: int
    max_concurrency: float
    max_concurrency_without_draft: float
    context: int
    kv_buffer_bytes: KvBuffersDocument | None
    per_gpu: GpuMemoryDocument
    per_gpu_without_draft: GpuMemoryDocument


class PairCountsDocument(TypedDict):
    target: int | None
    draft: int | None


class PairingRuleDocument(TypedDict):
    ok: bool
    why: str


class TokenDifferenceDocument(TypedDict):
    id: int
    target: str | None
    draft: str | None


@final
class PairingDocument(TypedDict):
    """Null: not known."""

    ratio: float
    same_tokenizer: bool | None
    compared: str
    same_family: bool | None
    vocabulary: PairCountsDocument
    max_positions: PairCountsDocument
    rules: dict[str, PairingRuleDocument]
    padding_only: bool | None
    differing_tokens: int | None
    only_target: NotRequired[int]
    only_draft: NotRequired[int]
    differences: list[TokenDifferenceDocument]


@final
class NoPairingDocument(TypedDict):
    """Where no draft model was named."""

    ratio: None
    same_tokenizer: None


class AcceptanceSourcesDocument(TypedDict):
    assumed: bool
    sources: list[str]


class LossesDocument(TypedDict):
    bandwidth_share: float
    compute_share: float
    narrow_compute_share: float
    overlap: float
    step_s: float
    speculation_s: float
    unscheduled_s: NotRequired[float]
    draft_pass_s: NotRequired[float]
    draft_layer_s: float
    head_pass_s: NotRequired[float]
    ngram_sequence_s: float
    graph_tokens: NotRequired[int]
    ungraphed_layer_s: NotRequired[float]


class TrustDocument(TypedDict):
    factor: float
    source: str
    losses: LossesDocument


class PredictedStepDocument(TypedDict):
    k: int
    step_s: float
    cost_ratio: float
    break_even_acceptance: float | None
    break_even_low: float | None
    break_even_high: float | None
    ideal_cost_ratio: float


class RangeDocument(TypedDict):
    value: float
    low: float
    high: float


class BestChoiceDocument(TypedDict):
    acceptance: str
    k: int
    speedup: RangeDocument
    ceiling: float


class PredictedArmDocument(TypedDict):
    method: str
    k: int
    acceptance: str
    speedup: RangeDocument
    ceiling: float


class LoadPredictionDocument(TypedDict):
    concurrency: int
    baseline_step_s: float
    draft_token_cost: float
    steps: list[PredictedStepDocument]
    best: list[BestChoiceDocument]
    # Every k that was asked for, with every acceptance.
    arms: NotRequired[list[PredictedArmDocument]]


class LoadRangeDocument(TypedDict):
    """`high` null: up to the largest concurrency looked at."""

    low: int
    high: int | None


class PredictedCrossoverDocument(TypedDict):
    """By the best k of each load; `k` is that of the lowest."""

    acceptance: str
    k: int
    metric: Literal["throughput"]
    axis: Literal["concurrency"]
    value: int | None
    low: int | None
    high: int | None
    pays: NotRequired[list[LoadRangeDocument]]


class ThumbRuleDocument(TypedDict):
    acceptance: str
    k: int


class PredictionDocument(TypedDict):
    method: str
    metric: Literal["tpot"]
    context: int
    acceptance: AcceptanceSourcesDocument
    trust: TrustDocument
    loads: list[LoadPredictionDocument]
    crossover: list[PredictedCrossoverDocument]
    rule_of_thumb_k: list[ThumbRuleDocument]


class LoadNeedDocument(TypedDict):
    concurrency: int
    k: int
    cost_ratio: float
    break_even_acceptance: float | None
    speedup: float | None


class CandidateDocument(TypedDict):
    rank: int
    method: str
    draft: str | None
    reference: str | None
    precision: str | None
    ratio: float | None
    fits: bool
    usable: bool
    objection: str
    kv_tokens: int
    max_concurrency: float
    loads: list[LoadNeedDocument]


class AdviceDocument(TypedDict):
    check: str
    level: Level
    message: str
    source: str
    next_step: str


class PlanDocument(TypedDict):
    schema: Literal[1]
    speclift: str
    fits: bool
    # False: the engine refuses it, whatever memory there is.
    runs: NotRequired[bool]
    refusal: NotRequired[str]
    # Not in documents of speclift 0.2.
    answer: NotRequired[AnswerDocument]
    engine: str
    engine_version: NotRequired[str | None]
    target: PlannedModelDocument
    draft: PlannedModelDocument | None
    device: DeviceDocument
    layout: LayoutDocument
    memory: MemoryDocument
    pairing: PairingDocument | NoPairingDocument
    prediction: PredictionDocument
    candidates: list[CandidateDocument]
    findings: list[AdviceDocument]
    next: list[str]


def plan_document(plan: Plan) -> PlanDocument:
    request, draft = plan.request, plan.request.draft
    device, layout = request.device, request.layout
    return {
        "schema": 1,
        "speclift": __version__,
        "fits": plan.fits,
        "runs": plan.runs,
        "refusal": plan.refusal,
        "answer": answer_document(plan_answer(plan)),
        "engine": request.engine.name,
        "engine_version": request.engine_version or plan.prediction.model.version or None,
        "target": _model(request.target, request.reference),
        "draft": _model(draft.placed, draft.reference) if draft else None,
        "device": {
            "name": device.name,
            "title": device.title,
            "count": layout.gpus,
            "gpus": request.gpu_count,
            "memory_bytes": device.memory_bytes,
            "nominal_bytes": device.nominal_bytes,
            "bandwidth_bytes_s": device.bandwidth_bytes_s,
            "flops_16": device.flops_16,
            "source": device.source,
        },
        "layout": {
            "tensor_parallel": layout.tensor_parallel,
            "draft_tensor_parallel": layout.draft_tensor_parallel if draft else None,
            "pipeline_parallel": layout.pipeline_parallel,
            "utilisation": layout.utilisation,
            "context": layout.context,
            "kv_dtype": layout.kv_dtype,
            "max_num_seqs": layout.max_sequences,
        },
        "memory": _memory(plan),
        "pairing": _pairing(plan),
        "prediction": _prediction(plan),
        "candidates": [_candidate(rank, each) for rank, each in enumerate(plan.candidates, 1)],
        "findings": [
            {
                "check": found.check,
                "level": found.level,
                "message": found.message,
                "source": found.source,
                "next_step": found.next_step,
            }
            for found in plan.advice
        ],
        "next": list(plan.next_commands),
    }


def _model(placed: Placed, reference: str) -> PlannedModelDocument:
    shape = placed.shape
    return {
        "name": shape.name,
        "reference": reference,
        "architecture": shape.architecture,
        "family": shape.family or None,
        "parameters": shape.parameters.total,
        "active_parameters": shape.active_parameters,
        "precision": placed.weights.precision,
        "precision_note": PRECISIONS[placed.weights.precision].note
        if placed.weights.precision in PRECISIONS and not placed.weights.is_from_file
        else "as the files hold it",
        "layers": shape.layers,
        "kv_heads": max((kv.heads for kv in shape.kv), default=0),
        "vocabulary": shape.vocabulary,
        "max_positions": shape.max_positions or None,
        "experts": shape.experts or None,
        "experts_per_token": shape.experts_per_token or None,
        "weights_from_file": placed.weights.is_from_file,
        "source": shape.source,
    }


def _memory(plan: Plan) -> MemoryDocument:
    request, memory, bare = plan.request, plan.memory, plan.memory_without_draft
    draft = request.draft
    gpus = request.layout.gpus if request.engine.works_as_one else 1
    return {
        "total_bytes": memory.total_bytes * gpus,
        "usable_bytes": memory.usable_bytes * gpus,
        "target_weight_bytes": request.target.weights.total,
        "draft_weight_bytes": draft.placed.weights.total if draft else 0,
        "nominal_weight_bytes": {
            "target": request.target.nominal_bytes,
            "draft": draft.placed.nominal_bytes if draft else 0,
        },
        "nominal": _nominal(plan),
        "kv_bytes_per_token": {
            "target": _whole_per_token(plan, request.target.shape, memory.kv_bytes_per_token_target),
            "draft": _whole_per_token(plan, draft.placed.shape, memory.kv_bytes_per_token_draft)
            if draft
            else 0,
        },
        "kv_bytes": memory.kv_bytes * gpus,
        "kv_tokens": memory.pool.tokens,
        "kv_tokens_without_draft": bare.pool.tokens,
        "max_concurrency": round(memory.pool.max_concurrency, 3),
        "max_concurrency_without_draft": round(bare.pool.max_concurrency, 3),
        "context": request.layout.context,
        "kv_buffer_bytes": None
        if memory.buffer_bytes_target is None
        else {
            "slots": max(request.loads),
            "target": memory.buffer_bytes_target,
            "draft": memory.buffer_bytes_draft,
        },
        "per_gpu": _per_gpu(memory),
        "per_gpu_without_draft": _per_gpu(bare),
    }


def _whole_per_token(plan: Plan, shape: ModelShape, on_one_gpu: float) -> int:
    """The model's own, whatever is split or repeated over a group."""
    if not plan.request.engine.works_as_one:
        return round(on_one_gpu)
    value_bytes = plan.request.engine.kv_value_bytes(plan.request.layout.kv_dtype)
    return round(kv_bytes_per_token(shape, value_bytes=value_bytes))


def _nominal(plan: Plan) -> NominalMemoryDocument:
    """As S4 reckons: memory of the label x utilisation - parameters x bytes."""
    request, draft = plan.request, plan.request.draft
    vram = request.device.nominal_bytes * request.layout.gpus
    usable = round(vram * request.layout.utilisation)
    weights = request.target.nominal_bytes + (draft.placed.nominal_bytes if draft else 0)
    return {
        "vram_bytes": vram,
        "usable_bytes": usable,
        "weight_bytes": weights,
        "kv_bytes": max(0, usable - weights),
        "kv_bytes_without_draft": max(0, usable - request.target.nominal_bytes),
    }


def _per_gpu(memory: MemoryPlan) -> GpuMemoryDocument:
    return {
        "total_bytes": memory.total_bytes,
        "usable_bytes": memory.usable_bytes,
        "target_weight_bytes": memory.target_weight_bytes,
        "draft_weight_bytes": memory.draft_weight_bytes,
        "activation_bytes": memory.activation_bytes,
        "speculation_bytes": memory.speculation_bytes,
        "runtime_bytes": memory.runtime_bytes,
        "kv_bytes": memory.kv_bytes,
        "kv_bytes_per_token": {
            "target": round(memory.kv_bytes_per_token_target),
            "draft": round(memory.kv_bytes_per_token_draft),
        },
        "block_tokens": memory.block_tokens,
        "blocks": memory.pool.blocks,
    }


def _pairing(plan: Plan) -> PairingDocument | NoPairingDocument:
    pairing, draft = plan.pairing, plan.request.draft
    if pairing is None or draft is None:
        return {"ratio": None, "same_tokenizer": None}
    comparison = pairing.comparison
    document: PairingDocument = {
        "ratio": round(pairing.ratio, 3),
        "same_tokenizer": pairing.same_tokenizer,
        "compared": pairing.compared,
        "same_family": pairing.same_family,
        "vocabulary": {
            "target": plan.request.target.shape.vocabulary,
            "draft": draft.placed.shape.vocabulary,
        },
        "max_positions": {
            "target": plan.request.target.shape.max_positions or None,
            "draft": draft.placed.shape.max_positions or None,
        },
        "rules": {
            terms.name: {"ok": not objection, "why": objection}
            for terms in dict.fromkeys((plan.request.engine, *plan.request.others))
            for objection in [terms.objection(pairing, plan.request.layout)]
        },
        "padding_only": None,
        "differing_tokens": None,
        "differences": [],
    }
    if comparison is not None:
        document["padding_only"] = comparison.padding_only
        document["differing_tokens"] = comparison.differing_count
        document["only_target"] = comparison.only_target_count
        document["only_draft"] = comparison.only_draft_count
        document["differences"] = [
            {"id": difference.token_id, "target": _text(difference.target), "draft": _text(difference.draft)}
            for difference in comparison.differences
        ]
    return document


def _text(token: TokenText | None) -> str | None:
    return token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else token


def _prediction(plan: Plan) -> PredictionDocument:
    prediction = plan.prediction
    losses = prediction.model.losses
    return {
        "method": prediction.method,
        "metric": "tpot",
        "context": prediction.context,
        "acceptance": {
            "assumed": not plan.request.acceptances,
            "sources": sorted({each.source for each in plan.request.acceptances}) or ["assumed curve"],
        },
        "trust": {
            "factor": prediction.model.trust_factor,
            "source": prediction.model.source,
            "losses": {
                "bandwidth_share": losses.bandwidth_share,
                "compute_share": losses.compute_share,
                "narrow_compute_share": losses.narrow_compute_share,
                "overlap": losses.overlap,
                "step_s": losses.step_s,
                "speculation_s": losses.speculation_s,
                "unscheduled_s": losses.unscheduled_s,
                "draft_pass_s": losses.draft_pass_s,
                "draft_layer_s": losses.draft_layer_s,
                "head_pass_s": losses.head_pass_s,
                "ngram_sequence_s": losses.ngram_sequence_s,
                "graph_tokens": losses.graph_tokens,
                "ungraphed_layer_s": losses.ungraphed_layer_s,
            },
        },
        "loads": [_load(place, plan) for place in range(len(prediction.loads))],
        "crossover": _crossovers(prediction),
        "rule_of_thumb_k": [{"acceptance": label, "k": k} for label, k in prediction.simple_k],
    }


def _load(place: int, plan: Plan) -> LoadPredictionDocument:
    load = plan.prediction.loads[place]
    return {
        "concurrency": load.concurrency,
        "baseline_step_s": _short(load.baseline_step_s),
        "draft_token_cost": _short(load.draft_cost),
        "steps": [
            {
                "k": step.k,
                "step_s": _short(step.step_s),
                "cost_ratio": _short(step.cost_ratio),
                "break_even_acceptance": _short(step.break_even),
                "break_even_low": _short(step.break_even_low),
                "break_even_high": _short(step.break_even_high),
                "ideal_cost_ratio": _short(step.ideal_cost_ratio),
            }
            for step in load.steps
        ],
        "best": [
            {
                "acceptance": best.acceptance,
                "k": best.k,
                "speedup": _range(best.speedup),
                "ceiling": _short(best.ceiling),
            }
            for best in load.best
        ],
        "arms": [
            {
                "method": prediction.method,
                "k": arm.k,
                "acceptance": arm.acceptance,
                "speedup": _range(arm.speedup),
                "ceiling": _short(arm.ceiling),
            }
            for prediction in (plan.prediction, *plan.other_predictions)
            for arm in prediction.loads[place].arms
        ],
    }


def _range(speedup: Range) -> RangeDocument:
    return {"value": _short(speedup.value), "low": _short(speedup.low), "high": _short(speedup.high)}


def _crossovers(prediction: Prediction) -> list[PredictedCrossoverDocument]:
    return [
        {
            "acceptance": each.acceptance,
            "k": each.k,
            "metric": "throughput",
            "axis": "concurrency",
            "value": each.concurrency,
            "low": each.low,
            "high": each.high,
            "pays": [{"low": loads.low, "high": loads.high} for loads in each.pays],
        }
        for each in prediction.crossovers
    ]


def _candidate(rank: int, candidate: PlannedDraft) -> CandidateDocument:
    return {
        "rank": rank,
        "method": candidate.method,
        "draft": candidate.draft,
        "reference": candidate.reference,
        "precision": candidate.precision,
        "ratio": _short(candidate.ratio),
        "fits": candidate.fits,
        "usable": candidate.is_usable,
        "objection": candidate.objection,
        "kv_tokens": candidate.kv_tokens,
        "max_concurrency": round(candidate.max_concurrency, 3),
        "loads": [
            {
                "concurrency": need.concurrency,
                "k": need.k,
                "cost_ratio": _short(need.cost_ratio),
                "break_even_acceptance": _short(need.break_even),
                "speedup": _short(need.speedup),
            }
            for need in candidate.needs
        ],
    }


@overload
def _short(value: float) -> float: ...
@overload
def _short(value: float | None) -> float | None: ...
def _short(value: float | None) -> float | None:
    """Six digits: more would only look exact."""
    return None if value is None else float(f"{value:.6g}")
