"""Which configurations does a search choose from? Those named, or the engine's default space, less what cannot run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from msgspec import structs

from speclift.bench.ask import Ask, PlanAsk
from speclift.bench.deployment import plan_terms, request_for
from speclift.core.arm import YOURS, Arm, ServerSettings
from speclift.core.drafting import Template, varied_k, varied_parts
from speclift.core.errors import OperatingError, UsageError, WillNotRun
from speclift.core.quantities import size
from speclift.core.speculation import (
    K_MAX,
    Combined,
    Drafter,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    drafters_of,
)
from speclift.engines.kind import EngineKind, engine_kind
from speclift.planner.memory import MAX_SEQUENCES, UTILISATION_DEFAULT
from speclift.planner.methods import arms_for
from speclift.planner.plan import Plan
from speclift.planner.planning import plan_deployment
from speclift.search.space import (
    Axes,
    Candidate,
    Elimination,
    Predicate,
    Space,
    build_space,
    smallest_k,
    without_k,
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One way of drafting and the k to try it at."""

    template: Template
    ks: tuple[int, ...]


def wanted(ask: Ask, *, model: str, drafts: tuple[str, ...]) -> tuple[Wanted, ...]:
    """Empty where nothing was named that can be chosen among: forced acceptance, servers of somebody else."""
    kind = engine_kind(ask.engine)
    if not kind.launches:
        return ()
    methods = named_methods(ask)
    if not methods:
        return (
            *usual(kind, kind.drafters(model)),
            *_wanted_yours(ask, lambda template: _usual_ks(kind, template)),
        )
    named = [*_wanted_yours(ask, lambda _: ())]
    for method in methods:
        # At the largest k, because k_min forbids the smaller ones.
        for first, second in zip(_at(method, K_MAX - 1, drafts), _at(method, K_MAX, drafts), strict=True):
            if not isinstance(first, DraftModel | NGram | Suffix | Head | Combined):
                return ()
            template = without_k(_with_own_ks(first, second, lambda part: ask.ks or kind.ks(part)))
            says_k = varied_k(first) == varied_k(second)
            ks = (varied_k(first),) if says_k else ask.ks or _usual_ks(kind, template)
            named.append(Wanted(template=template, ks=ks))
    return tuple(dict.fromkeys(named))


def _with_own_ks(first: Template, second: Speculation, ks: Callable[[Drafter], tuple[int, ...]]) -> Template:
    """A look-up before a model gets the longest of its k, unless its own was said: then it is in both texts."""
    if not isinstance(first, Combined) or not isinstance(second, Combined):
        return first
    varied = varied_parts(first)
    pairs = zip(first.parts, second.parts, strict=True)
    return Combined(
        parts=tuple(
            part if part in varied or part == other else structs.replace(part, k=max(ks(part)))
            for part, other in pairs
        )
    )


def usual(kind: EngineKind, templates: Sequence[Template]) -> tuple[Wanted, ...]:
    """At the k that the engine usually has."""
    return tuple(Wanted(template=each, ks=kind.ks(each)) for each in templates)


def _wanted_yours(ask: Ask, ks: Callable[[Template], tuple[int, ...]]) -> Iterator[Wanted]:
    """The user's own way of drafting, at its own k and at these others."""
    if ask.yours is not None:
        k = varied_k(ask.yours)
        yield Wanted(template=without_k(ask.yours), ks=tuple(sorted({k, *ks(ask.yours)})))


def with_yours(space: Space, yours: Template | None) -> Space:
    """With the user's own speculation under its own name, whether or not the axes led to it."""
    if yours is None:
        return space
    arm = Arm(name=YOURS, speculation=yours)
    kept, is_there = [], False
    for candidate in space.candidates:
        is_yours = not is_there and candidate.arm.speculation == yours
        kept.append(replace(candidate, arm=arm) if is_yours else candidate)
        is_there = is_there or is_yours
    if not is_there:
        kept.append(Candidate(arm=arm, drafter=YOURS))
    return replace(space, candidates=tuple(kept))


def _usual_ks(kind: EngineKind, template: Template) -> tuple[int, ...]:
    """Those of the engine that are not below the template's shortest draft."""
    smallest = smallest_k(template)
    return tuple(k for k in kind.ks(template) if k >= smallest) or (smallest,)


def named_methods(ask: Ask) -> tuple[str, ...]:
    """Empty where the engine's default space is meant."""
    if ask.methods or (ask.ks and not ask.drafts):
        return engine_kind(ask.engine).methods_at(ask.methods, ask.ks)
    return ("draft",) if ask.drafts else ()


def space_of(
    found: Sequence[Wanted],
    axes: Axes,
    predicates: Sequence[Predicate] = (),
) -> Space:
    """`axes` without drafters and k: those are what was found."""
    by_ks: dict[tuple[int, ...], list[Template]] = {}
    for each in found:
        by_ks.setdefault(each.ks, []).append(each.template)
    candidates: dict[str, Candidate] = {}
    eliminated: dict[str, Elimination] = {}
    for ks, templates in by_ks.items():
        space = build_space(replace(axes, drafters=tuple(templates), ks=ks), predicates)
        for candidate in space.candidates:
            candidates.setdefault(candidate.name, candidate)
        for refused in space.eliminated:
            eliminated.setdefault(refused.candidate, refused)
    kept = tuple(sorted(candidates.values(), key=lambda each: not each.is_baseline))
    return Space(candidates=kept, eliminated=tuple(eliminated.values()))


def refused_by(check: Callable[[Candidate], object]) -> Predicate:
    """`check` raises UsageError for what this engine in this version would refuse."""

    def refuse(candidate: Candidate) -> str | None:
        try:
            check(candidate)
        except UsageError as error:
            return str(error)
        return None

    return refuse


def silent_on(engine: str) -> Predicate:
    """What starts and would never draft."""

    def refuse(candidate: Candidate) -> str | None:
        return engine_kind(engine).never_drafts(candidate.arm)

    return refuse


def _at(method: str, k: int, drafts: tuple[str, ...]) -> list[Speculation]:
    arms = arms_for(methods=(method,), ks=(k,), drafts=drafts)
    return [arm.speculation for arm in arms if not arm.is_baseline]
