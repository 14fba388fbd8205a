"""Which configurations could be best? Axes multiplied out into candidates; predicates say which are never launched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, product
from pathlib import PurePath
from typing import Literal, TypeAlias

from msgspec import structs

from speclift.core.arm import BASELINE, Arm
from speclift.core.document import Document
from speclift.core.drafting import PARALLEL_DRAFTING, Template, varied_k, varied_parts
from speclift.core.errors import UsageError
from speclift.core.speculation import (
    Combined,
    Drafter,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    method_name,
)
from speclift.core.units import Tokens
from speclift.search.predictor import is_prefix_only

# vLLM's names in speculative_config (0.32); adapters of other engines refuse what they do not know.
DRAFT_QUANTISATION = "quantization"
DRAFT_TENSOR_PARALLEL = "draft_tensor_parallel_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What may vary. An axis with one value is fixed; an axis that a method does not have leaves it alone."""

    drafters: tuple[Template, ...]
    ks: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    # (n, n_min) of n-gram look-ups; empty keeps each template's own.
    ngram_sizes: tuple[tuple[int, int | None], ...] = ()
    p_mins: tuple[float, ...] = ()
    samplings: tuple[Literal["greedy", "probabilistic"], ...] = ()
    draft_quantisations: tuple[str | None, ...] = ()
    # A draft and its quantisation -> the file that is it, for engines that do not quantise as they load.
    draft_files: Mapping[tuple[str, str], str] = field(default_factory=dict)
    draft_tensor_parallels: tuple[int | None, ...] = ()
    # Of the server, so of the baseline too.
    quantisations: tuple[str | None, ...] = (None,)
    token_budgets: tuple[Tokens | None, ...] = (None,)

    def __post_init__(self) -> None:
        if not self.ks or any(k < 1 for k in self.ks):
            raise UsageError(f"k counts drafted tokens and must be at least 1, saw {list(self.ks)}")
        if not self.quantisations or not self.token_budgets:
            raise UsageError(
                "quantisations and token budgets need at least one value; None is the server's own"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An arm with the server settings that it varies. `drafter` names all that it drafts with but k."""

    arm: Arm
    drafter: str | None = None
    quantisation: str | None = None
    token_budget: Tokens | None = None

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def k(self) -> int:
        """What a search varies; of a combination the model's, while a look-up keeps its own."""
        return varied_k(self.arm.speculation)

    @property
    def target(self) -> str:
        """Candidates of one target share weights and compute; the token budget changes neither."""
        return self.quantisation or ""

    @property
    def is_baseline(self) -> bool:
        return self.arm.is_baseline


# The reason why a candidate is not worth a launch; None where it is.
Predicate: TypeAlias = Callable[[Candidate], str | None]


# When a candidate went out: before any launch, by a failed one, by prediction, in a race.
Stage: TypeAlias = Literal["space", "failed", "predicted", "raced"]


class Elimination(Document, frozen=True, kw_only=True, rename={"candidate": "arm"}):
    """Why a candidate is out. `load` where that holds at one load alone."""

    candidate: str
    stage: Stage
    reason: str
    load: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    candidates: tuple[Candidate, ...]
    eliminated: tuple[Elimination, ...]


def build_space(axes: Axes, predicates: Sequence[Predicate] = ()) -> Space:
    """Baselines first. What a predicate refuses is kept as an elimination with the first reason given."""
    kept: list[Candidate] = []
    eliminated: list[Elimination] = []
    for candidate in _candidates(axes):
        reason = next(filter(None, (refuse(candidate) for refuse in predicates)), None)
        if reason is None:
            kept.append(candidate)
        else:
            eliminated.append(Elimination(candidate=candidate.name, stage="space", reason=reason))
    return Space(candidates=tuple(kept), eliminated=tuple(eliminated))


def sees_text_alone(speculation: Speculation) -> bool:
    """Whether acceptance at every k can be replayed from one run."""
    match speculation:
        case Combined(parts=parts):
            return all(is_prefix_only(part) for part in parts)
        case DraftModel() | NGram() | Suffix() | Head():
            return is_prefix_only(speculation)
        case _:
            return False


def with_k(template: Template, k: int) -> Template:
    """UsageError below its shortest draft: k_min is part of the way of drafting and is never lowered."""
    if isinstance(template, Combined):
        varied = varied_parts(template)
        return Combined(
            parts=tuple(structs.replace(part, k=k) if part in varied else part for part in template.parts)
        )
    return structs.replace(template, k=k)


def smallest_k(template: Template) -> int:
    parts: tuple[Drafter, ...] = template.parts if isinstance(template, Combined) else (template,)
    return max([1, *(part.k_min for part in parts if isinstance(part, DraftModel))])


def without_k(template: Template) -> Template:
    """At the smallest k it can have, so that one way of drafting is one value whatever its k."""
    return with_k(template, smallest_k(template))


def _candidates(axes: Axes) -> Iterable[Candidate]:
    names: set[str] = set()

    def named(*, speculation: Speculation, parts: Sequence[str], **settings: object) -> Candidate:
        name = _free_name("-".join(filter(None, parts)), names)
        names.add(name)
        return Candidate(arm=Arm(name=name, speculation=speculation), **settings)  # type: ignore[arg-type]

    servers = list(product(axes.quantisations, axes.token_budgets))
    for quantisation, budget in servers:
        yield named(
            speculation=Off(),
            parts=[BASELINE, *_server_parts(quantisation, budget)],
            quantisation=quantisation,
            token_budget=budget,
        )
    labels: set[str] = set()
    templates: set[Template] = set()
    models = {each.model for each in axes.drafters if isinstance(each, DraftModel | Head) and each.model}
    names_models = len(models) > 1
    for template in dict.fromkeys(
        variant for drafter in axes.drafters for variant in _variants(drafter, axes)
    ):
        loaded = with_draft_files(template, axes.draft_files)
        if loaded in templates:
            continue  # a draft that is of the quantisation asked for as it is
        templates.add(loaded)
        drafter = _free_name(_label(template, names_model=names_models), labels)
        labels.add(drafter)
        for (quantisation, budget), k in product(servers, sorted(set(axes.ks))):
            yield named(
                speculation=with_k(loaded, k),
                parts=[drafter, f"k{k}", *_server_parts(quantisation, budget)],
                drafter=drafter,
                quantisation=quantisation,
                token_budget=budget,
            )


def _variants(template: Template, axes: Axes) -> Iterable[Template]:
    """The template at every value of the axes it has; k is set apart."""
    match without_k(template):
        case NGram() as ngram if axes.ngram_sizes:
            yield from (structs.replace(ngram, n=n, n_min=n_min) for n, n_min in axes.ngram_sizes)
        case DraftModel() as draft:
            for p_min, sampling in product(
                axes.p_mins or (draft.p_min,), axes.samplings or (draft.sampling,)
            ):
                yield from _loaded_variants(structs.replace(draft, p_min=p_min, sampling=sampling), axes)
        case Head() as head:
            yield from _loaded_variants(head, axes)
        case Combined(parts=parts):
            for quantisation in axes.draft_quantisations or (None,):
                yield Combined(parts=tuple(_quantised(part, quantisation) for part in parts))
        case other:
            yield other


def _loaded_variants(drafter: DraftModel | Head, axes: Axes) -> Iterable[Template]:
    for quantisation, parallel in product(
        axes.draft_quantisations or (None,), axes.draft_tensor_parallels or (None,)
    ):
        quantised = _quantised(drafter, quantisation)
        yield structs.replace(
            quantised, extra=_with_extra(quantised.extra, {DRAFT_TENSOR_PARALLEL: parallel})
        )


def _quantised(part: Drafter, quantisation: str | None) -> Drafter:
    if not isinstance(part, DraftModel | Head):
        return part
    return structs.replace(part, extra=_with_extra(part.extra, {DRAFT_QUANTISATION: quantisation}))


def with_draft_files(template: Template, files: Mapping[tuple[str, str], str]) -> Template:
    """With the files that are the drafts in the quantisations asked for; unchanged where the engine takes a key."""
    if isinstance(template, Combined):
        return Combined(parts=tuple(_with_draft_file(part, files) for part in template.parts))
    return _with_draft_file(template, files)


def _with_draft_file(part: Drafter, files: Mapping[tuple[str, str], str]) -> Drafter:
    asked = dict(part.extra).get(DRAFT_QUANTISATION)
    if not isinstance(part, DraftModel | Head) or part.model is None or asked is None:
        return part
    made = files.get((part.model, json.loads(asked)))
    if made is None:
        return part
    rest = tuple((key, value) for key, value in part.extra if key != DRAFT_QUANTISATION)
    return structs.replace(part, model=made, extra=rest)


def _with_extra(
    extra: tuple[tuple[str, str], ...], values: dict[str, str | int | None]
) -> tuple[tuple[str, str], ...]:
    merged = dict(extra) | {key: json.dumps(value) for key, value in values.items() if value is not None}
    return tuple(sorted(merged.items()))


def _label(template: Template, *, names_model: bool) -> str:
    """Method and whatever differs from its defaults: ngram-n3, draft-p0.5-probabilistic; the model where several
    are tried."""
    parts = [_method_label(template)]
    if isinstance(template, NGram) and (template.n, template.n_min) != (NGram().n, NGram().n_min):
        parts.append(f"n{template.n}" if template.n_min is None else f"n{template.n_min}-{template.n}")
    if isinstance(template, DraftModel):
        parts += [_stem(template.model)] if names_model else []
        parts += [f"min{template.k_min}"] if template.k_min else []
        parts += [f"p{template.p_min:g}"] if template.p_min else []
        parts += [template.sampling] if template.sampling != "greedy" else []
    if isinstance(template, Head) and template.model and names_model:
        parts.append(_stem(template.model))
    drafters: tuple[Drafter, ...] = template.parts if isinstance(template, Combined) else (template,)
    return "-".join([*parts, *chain.from_iterable(map(_extra_labels, drafters))])


def _method_label(template: Template) -> str:
    """With the k of what keeps its own: ngram-k15+draft."""
    if not isinstance(template, Combined):
        return method_name(template).replace(":", "-")
    varied = varied_parts(template)
    names = [(method_name(part).replace(":", "-"), part) for part in template.parts]
    return "+".join(name if part in varied else f"{name}-k{part.k}" for name, part in names)


def _extra_labels(drafter: Drafter) -> list[str]:
    short = {DRAFT_QUANTISATION: "draft", DRAFT_TENSOR_PARALLEL: "tp", PARALLEL_DRAFTING: "parallel"}
    return [f"{short[key]}{value.strip(chr(34))}" for key, value in drafter.extra if key in short]


def _server_parts(quantisation: str | None, budget: Tokens | None) -> list[str]:
    return [quantisation or "", f"budget{budget}" if budget is not None else ""]


def _stem(model: str) -> str:
    return PurePath(model).name.encode("utf-8", "backslashreplace").decode("utf-8")


def _free_name(name: str, taken: set[str]) -> str:
    numbered = (f"{name}-{number}" for number in count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)
