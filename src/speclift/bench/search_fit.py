"""Which candidates does the memory of this machine not hold? As far as plan can tell without launching anything."""

from __future__ import annotations

from functools import cache

from speclift.bench.ask import Ask, PlanAsk
from speclift.bench.deployment import plan_terms, request_for
from speclift.core.arm import ServerSettings
from speclift.core.errors import OperatingError, UsageError
from speclift.core.quantities import size
from speclift.core.speculation import DraftModel, Head, drafters_of
from speclift.planner.memory import MAX_SEQUENCES
from speclift.planner.planning import plan_deployment
from speclift.search.space import Candidate, Predicate


def too_large(ask: Ask, settings: ServerSettings) -> Predicate:
    """Only for candidates that load more than the baseline does; what plan cannot judge is left to the engine."""

    @cache
    def verdict(
        draft: str | None, draft_quant: str | None, quantisation: str | None, budget: int | None
    ) -> str | None:
        try:
            request = request_for(
                PlanAsk(
                    target=settings.model,
                    drafts=(draft,) if draft is not None else (),
                    engine=ask.engine,
                    target_quant=quantisation or settings.target_quant,
                    draft_quant=draft_quant,
                    context=settings.context_tokens,
                    concurrency=ask.concurrency,
                    gpus=settings.tp * settings.pp,
                    tp=settings.tp,
                    pp=settings.pp,
                    token_budget=budget or settings.token_budget,
                    max_num_seqs=settings.max_num_seqs or MAX_SEQUENCES,
                )
            )
            memory = plan_deployment(request).memory
        except (OperatingError, UsageError):
            return None
        if memory.fits:
            return None
        weights = memory.target_weight_bytes + memory.draft_weight_bytes
        room = size(memory.usable_bytes)
        return f"does not fit: {size(weights)} of weights in {room} leave no room for the KV cache of one request"

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
        quant = dict(loaded[0].extra).get("quantization") if loaded else None
        return verdict(
            draft, quant.strip('"') if quant else None, candidate.quantisation, candidate.token_budget
        )

    return refuse
