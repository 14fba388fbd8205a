"""Which configurations does a search choose from? Those named, or the engine's default space, less what cannot run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from speclift.bench.ask import Ask
from speclift.core.errors import UsageError
from speclift.core.speculation import Combined, DraftModel, Head, NGram, Speculation, Suffix, draft_length
from speclift.engines.llamacpp.flags import never_drafts
from speclift.planner.methods import arms_for, with_fitting_n
from speclift.search.cost_surface import Drafting
from speclift.search.space import (
    Axes,
    Candidate,
    Elimination,
    Predicate,
    Space,
    Template,
    build_space,
    drafting_of,
    with_k,
)
from speclift.weights.bundled_models import draft_for

# The CPU kernels verify in fours: k + 1 = 8, 12, 16 tokens are good, and 6 is between. A draft model pays a pass per k,
# and at k = 1 and 2 a step cost 1.9 and 2.9 tokens' time of the baseline, which it can hardly say.
LLAMACPP_KS: dict[Drafting, tuple[int, ...]] = {
    Drafting.LOOK_UP: (5, 7, 11, 15),
    Drafting.PASSES: (3, 5, 7),
}
GPU_KS: dict[Drafting, tuple[int, ...]] = {
    Drafting.LOOK_UP: (2, 3, 4, 5, 6, 8, 10),
    Drafting.PASSES: (1, 2, 3, 4, 5, 6, 7, 8),
}
KS = {"llamacpp": LLAMACPP_KS, "vllm": GPU_KS}
ANY_KS = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One way of drafting and the k to try it at."""

    template: Template
    ks: tuple[int, ...]


def default_drafters(engine: str, model: str) -> tuple[Template, ...]:
    """What is tried where no method is named. `model` is the target as it was asked for."""
    match engine:
        case "llamacpp":
            return _with_bundled_draft(model) or (NGram(n=4), NGram(n=7))
        case "vllm":
            return (NGram(n=3, n_min=2), NGram(n=5, n_min=3))
        case _:
            return (NGram(),)


def _with_bundled_draft(model: str) -> tuple[Template, ...]:
    """For a target that a draft came with: the look-up, the draft, and the draft where the look-up finds nothing."""
    bundled = draft_for(model)
    if bundled is None:
        return ()
    draft = DraftModel(model=str(bundled.checked_path()))
    # One k for both parts, and a look-up of more tokens than k never drafts.
    return (NGram(n=4), draft, Combined(parts=(NGram(n=3), draft)))


def default_ks(engine: str, template: Template) -> tuple[int, ...]:
    return KS.get(engine, {}).get(drafting_of(template), ANY_KS)


def wanted(ask: Ask, *, model: str, drafts: tuple[str, ...]) -> tuple[Wanted, ...]:
    """Empty where nothing was named that can be chosen among: forced acceptance, servers of somebody else."""
    if ask.engine == "attach":
        return ()
    methods = named_methods(ask)
    if not methods:
        found = default_drafters(ask.engine, model)
        return tuple(Wanted(template=each, ks=default_ks(ask.engine, each)) for each in found)
    named = []
    for method in methods:
        for first, second in zip(_at(method, 1, drafts), _at(method, 2, drafts), strict=True):
            if not isinstance(first, DraftModel | NGram | Suffix | Head | Combined):
                return ()
            template = with_k(first, 1)
            says_k = first == second
            ks = (draft_length(first),) if says_k else ask.ks or default_ks(ask.engine, template)
            named.append(Wanted(template=template, ks=ks))
    return tuple(dict.fromkeys(named))


def named_methods(ask: Ask) -> tuple[str, ...]:
    """Empty where the engine's default space is meant."""
    if ask.methods:
        return _able_to_draft(ask.methods, ask)
    if ask.drafts:
        return ("draft",)
    if ask.ks:
        # The default look-up of 12 tokens is llama.cpp's.
        return ("ngram,n=3",) if ask.engine == "vllm" else _able_to_draft(("ngram",), ask)
    return ()


def _able_to_draft(methods: tuple[str, ...], ask: Ask) -> tuple[str, ...]:
    """llama.cpp's simple look-up drafts nothing where k is below n: where nobody said n, it fits the k's."""
    if ask.engine != "llamacpp":
        return methods
    return tuple(with_fitting_n(method, ks=ask.ks) for method in methods)


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
        return never_drafts(candidate.arm) if engine == "llamacpp" else None

    return refuse


def _at(method: str, k: int, drafts: tuple[str, ...]) -> list[Speculation]:
    arms = arms_for(methods=(method,), ks=(k,), drafts=drafts)
    return [arm.speculation for arm in arms if not arm.is_baseline]
