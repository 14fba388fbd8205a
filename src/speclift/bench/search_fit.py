"""What does the memory of this machine not hold, what does the engine refuse? As far as plan can tell without launching
anything."""

from __future__ import annotations

from functools import cache

from speclift.bench.ask import Ask, PlanAsk
from speclift.bench.deployment import plan_terms, request_for
from speclift.core.arm import ServerSettings
from speclift.core.errors import OperatingError, UsageError, WillNotRun
from speclift.core.quantities import size
from speclift.core.speculation import DraftModel, Head, Off, drafters_of
from speclift.planner.memory import MAX_SEQUENCES, UTILISATION_DEFAULT
from speclift.planner.plan import Plan
from speclift.planner.planning import plan_deployment
from speclift.search.space import Candidate, Predicate


def require_fit(ask: Ask, settings: ServerSettings) -> None:
    """WillNotRun where plan knows that the user's own line cannot start: the pair, a format, or the memory."""
    if settings.line is None or ask.engine not in plan_terms():
        return
    drafter = next((part for part in drafters_of(ask.yours or Off()) if isinstance(part, DraftModel)), None)
    plan = _plan(
        ask,
        settings,
        draft=None if drafter is None else drafter.model,
        draft_quant=None if drafter is None else _quantisation(drafter),
    )
    if plan is not None and not (plan.runs and plan.fits):
        raise WillNotRun(
            f"your line would not run: {plan.refusal or _no_room(plan)}",
            hint="speclift plan shows what it needs; --dry-run shows the commands without a machine to run them",
        )


def _plan(
    ask: Ask,
    settings: ServerSettings,
    *,
    draft: str | None,
    draft_quant: str | None,
    target_quant: str | None = None,
    budget: int | None = None,
) -> Plan | None:
    """None where plan cannot judge it."""
    utilisation = None if settings.line is None else settings.line.utilisation
    try:
        request = request_for(
            PlanAsk(
                target=settings.model,
                drafts=(draft,) if draft is not None else (),
                engine=ask.engine,
                target_quant=target_quant or settings.target_quant,
                draft_quant=draft_quant,
                context=settings.context_tokens,
                concurrency=ask.concurrency,
                gpus=settings.tp * settings.pp,
                tp=settings.tp,
                pp=settings.pp,
                token_budget=budget or settings.token_budget,
                max_num_seqs=settings.max_num_seqs or MAX_SEQUENCES,
                utilisation=utilisation or UTILISATION_DEFAULT,
            )
        )
        return plan_deployment(request)
    except (OperatingError, UsageError):
        return None


def _no_room(plan: Plan) -> str:
    memory = plan.memory.per_gpu
    weights = memory.target_weight_bytes + memory.draft_weight_bytes
    room = size(memory.usable_bytes)
    return f"does not fit: {size(weights)} of weights in {room} leave no room for the KV cache of one request"


def _quantisation(drafter: DraftModel | Head) -> str | None:
    quant = dict(drafter.extra).get("quantization")
    return quant.strip('"') if quant else None


def too_large(ask: Ask, settings: ServerSettings) -> Predicate:
    """Only for candidates that load more than the baseline does; what plan cannot judge is left to the engine."""

    @cache
    def verdict(
        draft: str | None, draft_quant: str | None, quantisation: str | None, budget: int | None
    ) -> str | None:
        plan = _plan(
            ask, settings, draft=draft, draft_quant=draft_quant, target_quant=quantisation, budget=budget
        )
        return None if plan is None or plan.fits else _no_room(plan)

    def refuse(candidate: Candidate) -> str | None:
        if ask.engine not in plan_terms():
            return None
        loaded = [
            each
            for each in drafters_of(candidate.arm.speculation)
            if isinstance(each, DraftModel | Head) and each.model is not None
        ]
        if not loaded and candidate.quantisation is None and candidate.token_budget is None:
            return None
        draft = loaded[0].model if loaded else None
        quant = _quantisation(loaded[0]) if loaded else None
        return verdict(draft, quant, candidate.quantisation, candidate.token_budget)

    return refuse
