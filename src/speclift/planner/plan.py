"""A plan: what `plan --json` writes, its answer for somebody who has to choose, and what to measure first. Pure.

Schema 1: fields may be added and never change their meaning.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import product
from typing import Any, Literal

from speclift.core.answer import NextCommand, ShortAnswer, answered
from speclift.core.arm import CONTEXT_MIN
from speclift.core.document import Document, Json, plain_object
from speclift.core.drafting import PARALLEL_DRAFTING
from speclift.core.results import Level
from speclift.planner.advice import Advice, PlannedPairing
from speclift.planner.memory import Layout, Memory, PlannedDevice, PlannedModel
from speclift.planner.prediction import DRAFT, MTP, LoadPrediction, PlannedDraft, Prediction
from speclift.planner.request import DraftOption, PlanRequest

# A plan knows no start-up time, so its measurement gets a limit instead; the verdict uses what was measured by then.
BUDGET_S = 1800.0
BUDGET = "30m"


class Plan(Document, frozen=True, kw_only=True):
    schema: Literal[1]
    speclift: str
    fits: bool
    # False: the engine refuses it, whatever memory there is.
    runs: bool = True
    refusal: str = ""
    # Not in documents of speclift 0.2.
    answer: ShortAnswer | None = None
    engine: str
    engine_version: str | None = None
    target: PlannedModel
    draft: PlannedModel | None
    device: PlannedDevice
    layout: Layout
    memory: Memory
    pairing: PlannedPairing
    prediction: Prediction
    candidates: tuple[PlannedDraft, ...]
    findings: tuple[Advice, ...]
    next: tuple[str, ...]


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as `plan --json` writes it: of what was predicted six digits, more would only look exact."""
    document = plain_object(plan)
    prediction = document["prediction"]
    assert isinstance(prediction, dict)
    return {
        **document,
        "prediction": {**prediction, "loads": _short(prediction["loads"])},
        "candidates": _short(document["candidates"]),
    }


def _short(value: Json) -> Json:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _short(entry) for name, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value


def plan_answer(plan: Plan) -> ShortAnswer:
    return answered(_sentence(plan), _because(plan), _next(plan))


def _sentence(plan: Plan) -> str:
    if not plan.runs:
        return f"WILL NOT RUN: {plan.engine} refuses it, {plan.refusal}."
    if not plan.fits:
        memory = next((found.message for found in plan.findings if found.check == "memory"), "")
        return f"DOES NOT FIT: {memory.removeprefix('it does not fit: ') or 'the memory is too small'}."
    return f"It fits{_prospect(plan)}."


def _prospect(plan: Plan) -> str:
    loads = plan.prediction.loads
    shown = (loads[0], loads[-1]) if len(loads) > 1 else (loads[0],)
    if plan.prediction.acceptance.assumed:
        said = [_where_it_pays(load) for load in shown]
        return (
            f" and breaks even {', '.join(said)}"
            if any("from" in words for words in said)
            else ", but breaks even at no acceptance rate"
        )
    said = [_predicted(load) for load in shown]
    return f"; predicted {', '.join(said)}"


def _where_it_pays(load: LoadPrediction) -> str:
    """The acceptance rate that the least demanding k needs."""
    steps = [step for step in load.steps if step.break_even_acceptance is not None]
    where = _at(load.concurrency)
    if not steps:
        return f"at no acceptance rate with {where}"
    least = min(steps, key=lambda step: step.break_even_acceptance or 0.0)
    assert least.break_even_acceptance is not None
    return f"from {least.break_even_acceptance:.0%} accepted tokens on with {where} (k={least.k})"


def _predicted(load: LoadPrediction) -> str:
    best = max(load.best, key=lambda choice: choice.speedup.value)
    where, speedup = _at(load.concurrency), best.speedup
    if best.k == 0:
        return f"slower than without speculation with {where}"
    return f"{speedup.value:.2f}x ({speedup.low:.2f} to {speedup.high:.2f}) with {where} and k={best.k}"


def _at(concurrency: int) -> str:
    return "1 request at a time" if concurrency == 1 else f"{concurrency} at once"


def _because(plan: Plan) -> Iterator[str]:
    failed = [found for found in plan.findings if found.level is Level.FAIL]
    # What the sentence says already needs only its way out.
    yield from (
        found.next_step if found.check in ("memory", "engine-rule") else found.message for found in failed
    )
    memory = plan.memory
    if plan.fits:
        without = f" ({memory.kv_tokens_without_draft:,} without the draft)" if plan.draft is not None else ""
        context = plan.layout.context
        yield (
            f"the KV cache holds {memory.kv_tokens:,} tokens{without}: "
            f"{memory.max_concurrency:,.1f} requests of {context:,} tokens"
        )
    trust = plan.prediction.trust
    if plan.fits and plan.runs:
        yield f"predicted, not measured: off by up to a factor of {trust.factor:g} ({trust.source})"
    yield from (found.message for found in plan.findings if found.level is Level.WARN)


def _next(plan: Plan) -> NextCommand | None:
    if not (plan.fits and plan.runs and plan.next):
        return None
    return NextCommand(command=f"{plan.next[0]} --budget {BUDGET}", seconds=BUDGET_S)


def target_refusal(request: PlanRequest) -> str:
    engine, target = request.engine, request.target
    return engine.format_objection(target) or engine.size_objection(target.shape, request.layout)


def next_commands(request: PlanRequest, candidates: tuple[PlannedDraft, ...]) -> tuple[str, ...]:
    """What to type: the measurement of the best usable candidates, in the formats that were asked for."""
    engine = request.engine
    usable = [candidate for candidate in candidates if candidate.usable]
    target_words = engine.load_words(request.target, is_gguf=request.is_gguf)
    if not usable or target_words is None or not request.has_target or target_refusal(request):
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
