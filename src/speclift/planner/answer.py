"""A plan as somebody reads it who has to choose: does it run, would it pay, what to measure first. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from speclift.core.answer import NextCommand, ShortAnswer, answered
from speclift.core.results import Level
from speclift.planner.planning import Plan
from speclift.planner.prediction import LoadPrediction

# A plan knows no start-up time, so its measurement gets a limit instead; the verdict uses what was measured by then.
BUDGET_S = 1800.0
BUDGET = "30m"


def plan_answer(plan: Plan) -> ShortAnswer:
    return answered(_sentence(plan), _because(plan), _next(plan))


def _sentence(plan: Plan) -> str:
    if not plan.runs:
        return f"WILL NOT RUN: {plan.request.engine.name} refuses it, {plan.refusal}."
    if not plan.fits:
        memory = next((found.message for found in plan.advice if found.check == "memory"), "")
        return f"DOES NOT FIT: {memory.removeprefix('it does not fit: ') or 'the memory is too small'}."
    return f"It fits{_prospect(plan)}."


def _prospect(plan: Plan) -> str:
    loads = plan.prediction.loads
    shown = (loads[0], loads[-1]) if len(loads) > 1 else (loads[0],)
    if not plan.request.acceptances:
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
    steps = [step for step in load.steps if step.break_even is not None]
    where = _at(load.concurrency)
    if not steps:
        return f"at no acceptance rate with {where}"
    least = min(steps, key=lambda step: step.break_even or 0.0)
    assert least.break_even is not None
    return f"from {least.break_even:.0%} accepted tokens on with {where} (k={least.k})"


def _predicted(load: LoadPrediction) -> str:
    best = max(load.best, key=lambda choice: choice.speedup.value)
    where, speedup = _at(load.concurrency), best.speedup
    if best.k == 0:
        return f"slower than without speculation with {where}"
    return f"{speedup.value:.2f}x ({speedup.low:.2f} to {speedup.high:.2f}) with {where} and k={best.k}"


def _at(concurrency: int) -> str:
    return "1 request at a time" if concurrency == 1 else f"{concurrency} at once"


def _because(plan: Plan) -> Iterator[str]:
    failed = [found for found in plan.advice if found.level is Level.FAIL]
    # What the sentence says already needs only its way out.
    yield from (
        found.next_step if found.check in ("memory", "engine-rule") else found.message for found in failed
    )
    pool, bare = plan.memory.pool, plan.memory_without_draft.pool
    if plan.fits:
        without = f" ({bare.tokens:,} without the draft)" if plan.request.draft is not None else ""
        context = plan.request.layout.context
        yield (
            f"the KV cache holds {pool.tokens:,} tokens{without}: "
            f"{pool.max_concurrency:,.1f} requests of {context:,} tokens"
        )
    model = plan.prediction.model
    if plan.fits and plan.runs:
        yield f"predicted, not measured: off by up to a factor of {model.trust_factor:g} ({model.source})"
    yield from (found.message for found in plan.advice if found.level is Level.WARN)


def _next(plan: Plan) -> NextCommand | None:
    if not (plan.fits and plan.runs and plan.next_commands):
        return None
    return NextCommand(command=f"{plan.next_commands[0]} --budget {BUDGET}", seconds=BUDGET_S)
