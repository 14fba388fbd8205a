"""Which configurations does a search choose from? Those named, or the engine's default space, less what cannot run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from speclift.bench.ask import Ask
from speclift.core.arm import YOURS, Arm
from speclift.core.drafting import Template, varied_k, varied_parts
from speclift.core.errors import UsageError
from speclift.core.speculation import (
    K_MAX,
    Combined,
    Drafter,
    DraftModel,
    Head,
    NGram,
    Speculation,
    Suffix,
)
from speclift.engines.kind import EngineKind, engine_kind
from speclift.planner.methods import arms_for
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
