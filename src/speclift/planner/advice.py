"""What plan has to say about a pair on a machine: engine rules, and the articles' rules of thumb with their source.

S0-S4 are the five articles behind the product (docs/plan.md). Rules of thumb inform or warn, they never refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import field
from msgspec.structs import replace

from speclift.core.document import Document
from speclift.core.hardware import Device
from speclift.core.model_shape import ModelShape
from speclift.core.results import Level
from speclift.core.units import Tokens
from speclift.planner.memory import Layout, MemoryPerGpu, Placed
from speclift.planner.tokens import TokenComparison, TokenText

# S0 and S4: shares of the memory above which to look again.
DRAFT_SHARE_MAX, TARGET_SHARE_MAX, HEADROOM_MIN = 0.15, 0.70, 0.20
# S1: a draft has at least three times fewer parameters. S4: 1:8 to 1:12 is the claimed sweet spot.
RATIO_MIN, RATIO_SWEET, RATIO_LARGE = 3.0, (8.0, 12.0), 70.0
# S3: where to start; S2 and S3: small targets rarely gain.
START_TARGET_MIN, START_DRAFT_MAX, TINY_TARGET_MAX = 30e9, 8.5e9, 9e9


class Advice(Document, frozen=True, kw_only=True):
    check: str
    level: Level
    message: str
    source: str
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """What is known of target and draft together. None: not known."""

    target: ModelShape
    draft: ModelShape
    ratio: float
    same_tokenizer: bool | None
    # token by token, by name, or not at all
    compared: str
    comparison: TokenComparison | None
    same_family: bool | None
    # What the engine's own check of both files objects to; empty where it has none, or nothing.
    file_objection: str = ""


class PairCounts(Document, frozen=True, kw_only=True):
    target: int | None
    draft: int | None


class PairingRule(Document, frozen=True, kw_only=True):
    """One engine's word on the pair."""

    ok: bool
    why: str


class TokenDifference(Document, frozen=True, kw_only=True):
    """Null: that side has no token at this id."""

    id: int
    target: str | None
    draft: str | None


class PlannedPairing(Document, frozen=True, kw_only=True):
    """Null: not known, or no draft model was named."""

    ratio: float | None = None
    same_tokenizer: bool | None = None
    compared: str | None = None
    same_family: bool | None = None
    vocabulary: PairCounts | None = None
    max_positions: PairCounts | None = None
    # By engine.
    rules: dict[str, PairingRule] = field(default_factory=dict)
    padding_only: bool | None = None
    differing_tokens: int | None = None
    only_target: int | None = None
    only_draft: int | None = None
    differences: tuple[TokenDifference, ...] = ()


def planned_pairing(pairing: Pairing, rules: dict[str, str]) -> PlannedPairing:
    """`rules`: by engine, why it will not run the pair; empty where it will."""
    planned = PlannedPairing(
        ratio=round(pairing.ratio, 3),
        same_tokenizer=pairing.same_tokenizer,
        compared=pairing.compared,
        same_family=pairing.same_family,
        vocabulary=PairCounts(target=pairing.target.vocabulary, draft=pairing.draft.vocabulary),
        max_positions=PairCounts(
            target=pairing.target.max_positions or None, draft=pairing.draft.max_positions or None
        ),
        rules={engine: PairingRule(ok=not objection, why=objection) for engine, objection in rules.items()},
    )
    if (comparison := pairing.comparison) is None:
        return planned
    return replace(
        planned,
        padding_only=comparison.padding_only,
        differing_tokens=comparison.differing_count,
        only_target=comparison.only_target_count,
        only_draft=comparison.only_draft_count,
        differences=tuple(
            TokenDifference(id=token.token_id, target=_shown(token.target), draft=_shown(token.draft))
            for token in comparison.differences
        ),
    )


def _shown(token: TokenText | None) -> str | None:
    return token.decode("utf-8", "backslashreplace") if isinstance(token, bytes) else token


def pairing_of(
    target: ModelShape,
    draft: ModelShape,
    comparison: TokenComparison | None,
    *,
    file_objection: str = "",
) -> Pairing:
    same: bool | None = None
    compared = "not compared"
    if comparison is not None:
        same, compared = comparison.same, "token by token"
    elif target.tokenizer and draft.tokenizer:
        same, compared = target.tokenizer == draft.tokenizer, "by the catalogue's names"
    family = target.family == draft.family if target.family and draft.family else None
    return Pairing(
        target=target,
        draft=draft,
        ratio=target.parameters.total / draft.parameters.total,
        same_tokenizer=same,
        compared=compared,
        comparison=comparison,
        same_family=family,
        file_objection=file_objection,
    )


def pairing_advice(
    pairing: Pairing, target: ModelShape, draft: ModelShape, *, rule: Advice | None, context: Tokens
) -> Iterator[Advice]:
    """`rule`: what the engine itself objects to."""
    yield from _tokenizer_advice(pairing)
    if rule is not None:
        yield rule
    if pairing.same_family is False:
        yield Advice(
            check="family",
            level=Level.WARN,
            message=f"{target.name} and {draft.name} are of different families; the acceptance rate is usually low",
            source="S1 S2 S3 S4",
            next_step="prefer a quantised draft of the same family (S4)",
        )
    if 0 < draft.max_positions < context:
        yield Advice(
            check="positions",
            level=Level.WARN,
            message=f"the draft supports {draft.max_positions:,} positions, the context is {context:,}: "
            "beyond that there are no drafts, or bad ones",
            source="vLLM 0.32, max_model_len of a draft; speculators PR 684",
            next_step=f"use --context {draft.max_positions}, or a draft with a longer context",
        )
    yield from _ratio_advice(pairing.ratio, target, draft)


def _tokenizer_advice(pairing: Pairing) -> Iterator[Advice]:
    comparison = pairing.comparison
    if pairing.same_tokenizer is False:
        shown = ""
        if comparison is not None:
            listed = ", ".join(
                f"{found.token_id}: {found.target!r} / {found.draft!r}"
                for found in comparison.differences[:3]
            )
            shown = f": {comparison.differing_count} token ids differ ({listed}, ...)"
        yield Advice(
            check="tokenizer",
            level=Level.FAIL,
            message=f"target and draft do not share a tokenizer{shown}",
            source="S1 S2 S3 S4",
            next_step="choose a draft with the target's tokenizer",
        )
    elif pairing.same_tokenizer is None:
        yield Advice(
            check="tokenizer",
            level=Level.WARN,
            message="the tokenizers were not compared: at least one model has no vocabulary here",
            source="speclift",
            next_step="give folders with tokenizer.json, or GGUF files",
        )
    elif comparison is not None and (comparison.only_target_count or comparison.only_draft_count):
        who = "target" if comparison.only_target_count else "draft"
        count = comparison.only_target_count or comparison.only_draft_count
        yield Advice(
            check="tokenizer",
            level=Level.INFO,
            message=f"the {who} has {count} extra tokens at its end; all others are the same",
            source="speclift",
        )
    elif comparison is not None and comparison.padding_only:
        yield Advice(
            check="tokenizer",
            level=Level.PASS,
            message="the vocabularies differ only in padding",
            source="vLLM issue 7252",
        )


def _ratio_advice(ratio: float, target: ModelShape, draft: ModelShape) -> Iterator[Advice]:
    low, high = RATIO_SWEET
    if ratio < RATIO_MIN:
        message = (
            f"the target is {ratio:.1f} times the size of the draft; at least 3 to 5 times is recommended"
        )
        yield Advice(
            check="size-ratio",
            level=Level.WARN,
            message=message,
            source="S1",
            next_step="use a smaller draft",
        )
    else:
        where = "inside" if low <= ratio <= high else "below" if ratio < low else "above"
        note = " (1:70: S4 calls it too small, S2 recommends it)" if ratio >= RATIO_LARGE else ""
        yield Advice(
            check="size-ratio",
            level=Level.INFO,
            message=f"the target is {ratio:.1f} times the size of the draft, {where} the recommended 8 to 12{note}",
            source="S4" if not note else "S2 S4",
        )
    parameters = target.parameters.total
    if parameters < TINY_TARGET_MAX:
        yield Advice(
            check="target-size",
            level=Level.INFO,
            message=f"targets as small as {parameters / 1e9:.1f}B rarely gain from a draft model",
            source="S2 S3",
            next_step="try n-gram first",
        )
    elif parameters > START_TARGET_MIN and draft.parameters.total < START_DRAFT_MAX:
        yield Advice(
            check="target-size",
            level=Level.PASS,
            message="a target above 30B with a draft of at most 8B is the usual starting point",
            source="S3",
        )


def memory_advice(
    plan: MemoryPerGpu,
    bare: MemoryPerGpu,
    target: Placed,
    draft: Placed | None,
    device: Device,
    layout: Layout,
    loads: tuple[int, ...],
    *,
    way_out: str = "",
) -> Iterator[Advice]:
    if not plan.fits:
        yield _does_not_fit(plan, bare, draft, layout, way_out)
    elif plan.max_concurrency < max(loads):
        yield Advice(
            check="concurrency",
            level=Level.WARN,
            message=f"the KV cache holds {plan.max_concurrency:.1f} requests of {layout.context:,} tokens, "
            f"the concurrency is {max(loads)}: the rest waits or is preempted",
            source="speclift",
            next_step="use a shorter --context, --kv-dtype fp8, a smaller draft, or more GPUs",
        )
    if draft is not None and bare.kv_tokens and plan.fits:
        lost = 1 - plan.kv_tokens / bare.kv_tokens
        yield Advice(
            check="kv-cost",
            level=Level.WARN if lost > HEADROOM_MIN else Level.INFO,
            message=f"the draft costs {lost:.0%} of the KV cache: {bare.kv_tokens:,} -> {plan.kv_tokens:,} tokens",
            source="speclift",
            next_step="use a quantised or smaller draft, or n-gram" if lost > HEADROOM_MIN else "",
        )
    gpus = layout.gpus
    total = device.memory_bytes * gpus
    target_share, draft_share = target.weights.total / total, (draft.weights.total / total if draft else 0.0)
    if draft_share > DRAFT_SHARE_MAX:
        yield Advice(
            check="draft-share",
            level=Level.WARN,
            message=f"the draft takes {draft_share:.0%} of the memory; at most 15 % is recommended",
            source="S0 S4",
            next_step="use --draft-quant int4, or a smaller draft",
        )
    if TARGET_SHARE_MAX < target_share <= 1:
        yield Advice(
            check="target-share",
            level=Level.WARN,
            message=f"the target alone takes {target_share:.0%} of the memory; test under load",
            source="S0 S4",
        )
    # S4 counts the whole memory, whatever part of it the engine may use.
    free = 1 - target_share - draft_share
    if plan.fits and free < HEADROOM_MIN:
        yield Advice(
            check="headroom",
            level=Level.WARN,
            message=f"{free:.0%} of the memory is left after the weights; at least 20 % is recommended",
            source="S0 S4",
        )


def _does_not_fit(
    plan: MemoryPerGpu, bare: MemoryPerGpu, draft: Placed | None, layout: Layout, way_out: str
) -> Advice:
    weights = plan.target_weight_bytes + plan.draft_weight_bytes
    needed = weights + plan.activation_bytes + plan.speculation_bytes + plan.runtime_bytes
    if needed > plan.usable_bytes:
        reason = f"weights and working memory need {needed / 1e9:.1f} GB of {plan.usable_bytes / 1e9:.1f} GB per GPU"
    else:
        reason = (
            f"{plan.kv_bytes / 1e9:.1f} GB are left for the KV cache, one request of {layout.context:,} tokens "
            f"needs more ({plan.max_concurrency:.2f} fit)"
        )
    alone = "; the target alone fits" if draft is not None and bare.fits else ""
    return Advice(
        check="memory",
        level=Level.FAIL,
        message=f"it does not fit: {reason}{alone}",
        source="speclift",
        next_step=f"{way_out} would fit"
        if way_out
        else "use a smaller target, a shorter --context, or more memory",
    )
