"""`plan --method`: each way of drafting that was named, with what it loads and where that is known from."""

from __future__ import annotations

from collections.abc import Sequence

from speclift.bench.ask import PlanAsk
from speclift.core.drafting import Drafting, drafting_of
from speclift.core.errors import ModelError, UsageError
from speclift.core.speculation import DraftModel, Head, NGram, Speculation, Suffix, method_name
from speclift.planner.heads import PlannedHead, estimated_head, head_from_files
from speclift.planner.memory import Placed
from speclift.planner.methods import parse_method
from speclift.planner.prediction import MTP
from speclift.planner.request import DraftOption, PlannedMethod
from speclift.weights.named_models import find_source, place

LARGEST_HEAD_SHARE = 0.5


def speculations_of(ask: PlanAsk) -> tuple[Speculation, ...]:
    """UsageError for what is no single way of drafting."""
    draft = next(iter(ask.drafts), None)
    parsed = tuple(parse_method(method, draft=draft) for method in ask.methods)
    for method, speculation in zip(ask.methods, parsed, strict=True):
        if not isinstance(speculation, DraftModel | Head | NGram | Suffix):
            raise UsageError(
                f"--method {method} is not planned", hint="draft, ngram, suffix, eagle, eagle3, mtp or medusa"
            )
    return parsed


def named_drafts(ask: PlanAsk, speculations: Sequence[Speculation]) -> tuple[str, ...]:
    """Draft models; what --draft names for a head alone is that head."""
    own = [each.model for each in speculations if isinstance(each, DraftModel)]
    return tuple(dict.fromkeys((*ask.drafts, *own))) if own or not speculations else ()


def planned_methods(
    ask: PlanAsk,
    speculations: Sequence[Speculation],
    target: Placed,
    drafts: dict[str, DraftOption],
) -> tuple[PlannedMethod, ...]:
    """`drafts` are the options of draft models by what the user called them."""
    return tuple(_planned(each, ask, target, drafts) for each in speculations)


def _planned(
    speculation: Speculation, ask: PlanAsk, target: Placed, drafts: dict[str, DraftOption]
) -> PlannedMethod:
    name = method_name(speculation)
    match speculation:
        case DraftModel(model=model):
            return PlannedMethod(name=name, option=drafts[model])
        case Head(kind=kind, model=model):
            head = _head(kind, model, target, ask)
            return PlannedMethod(name=name, option=_head_option(kind, model, head, is_asked_for=True))
        case _:
            return PlannedMethod(name=name)


def head_options(methods: Sequence[PlannedMethod], target: Placed) -> tuple[DraftOption, ...]:
    """Those that were named; where no method was, the MTP layers that the target carries."""
    if methods or not target.shape.mtp_layers:
        return tuple(
            each.option for each in methods if each.option is not None and each.option.head is not None
        )
    return (_head_option(MTP, None, estimated_head(MTP, target), is_asked_for=False),)


def _head_option(kind: str, model: str | None, head: PlannedHead, *, is_asked_for: bool) -> DraftOption:
    return DraftOption(
        placed=head.added,
        reference=model or "",
        comparison=None,
        is_asked_for=is_asked_for,
        method=kind,
        head=head,
        is_parallel=head.is_parallel,
    )


def _head(kind: str, model: str | None, target: Placed, ask: PlanAsk) -> PlannedHead:
    if model is not None:
        try:
            source = find_source(model, prefers_gguf=False)
        except (ModelError, UsageError):
            source = None  # an id that nothing here holds, or a config of its own kind
        if source is not None and source.weights is not None:
            placed = place(source, ask.draft_quant, flag="--draft-quant")
            if placed.shape.parameters.total < LARGEST_HEAD_SHARE * target.shape.parameters.total:
                return head_from_files(kind, placed, target)
            raise UsageError(
                f"{model} has as many parameters as a model of its own; no {kind} head is so large",
                hint="--method draft plans a draft model",
            )
    return estimated_head(kind, target, quantisation=ask.draft_quant)


def is_parallel(speculation: Speculation) -> bool:
    return drafting_of(speculation) is Drafting.ONE_PASS
