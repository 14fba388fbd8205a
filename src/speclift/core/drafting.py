"""How the time of drafting grows with k, by the way of drafting."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from speclift.core.speculation import Combined, Drafter, DraftModel, Head, Speculation, draft_length

# What a search varies k of.
Template: TypeAlias = Drafter | Combined

# vLLM's name in speculative_config (0.32); adapters of other engines refuse what they do not know.
PARALLEL_DRAFTING = "parallel_drafting"
# Heads that guess all their tokens in one pass.
ONE_PASS_HEADS = ("medusa", "dflash", "dspark")


class Drafting(StrEnum):
    """A pass per token, one pass for all of them, or a look-up without a model."""

    PASSES = "passes"
    ONE_PASS = "one-pass"
    LOOK_UP = "look-up"


def varied_parts(combined: Combined) -> tuple[Drafter, ...]:
    """Those whose k a search varies: the models, for a look-up before them keeps a k of its own; of look-ups all."""
    models = tuple(part for part in combined.parts if isinstance(part, DraftModel | Head))
    return models or combined.parts


def varied_k(speculation: Speculation) -> int:
    """The k that a search varies; 0 without speculation."""
    if isinstance(speculation, Combined):
        return max(part.k for part in varied_parts(speculation))
    return draft_length(speculation)


def kept_k(speculation: Speculation) -> int:
    """The longest draft of the parts that keep a k of their own in a search; 0 where there are none."""
    if not isinstance(speculation, Combined):
        return 0
    varied = varied_parts(speculation)
    return max((part.k for part in speculation.parts if part not in varied), default=0)


def drafting_of(speculation: Speculation) -> Drafting:
    """How the time of drafting grows with k."""
    match speculation:
        case Combined(parts=parts):
            kinds = [drafting_of(part) for part in parts]
            return next(
                (kind for kind in (Drafting.PASSES, Drafting.ONE_PASS) if kind in kinds), Drafting.LOOK_UP
            )
        case DraftModel(extra=extra) if (PARALLEL_DRAFTING, "true") in extra:
            return Drafting.ONE_PASS
        case Head(kind=kind) if kind in ONE_PASS_HEADS:
            return Drafting.ONE_PASS
        case DraftModel() | Head():
            return Drafting.PASSES
        case _:
            return Drafting.LOOK_UP
