"""Heads that draft from the target's hidden states: what they weigh and what a pass of theirs reads. Pure.

Heads of one kind are built alike, so the target's shape tells their size to within some percent: an estimate, and said
to be one. Where the head's own files are at hand they are counted instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from speclift.core.errors import UsageError
from speclift.core.model_shape import KvLayers, ModelShape, ParameterCounts
from speclift.planner.memory import Placed
from speclift.planner.precision import PRECISIONS, Precision, nominal_bytes, precision_named, weights_in

# Kinds whose size the target tells.
SIZED_HEADS = ("eagle", "eagle3", "mtp", "medusa", "dflash", "dspark")
# EAGLE-3 heads score a vocabulary of their own (draft_vocab_size of the published ones).
EAGLE3_VOCABULARY = 32_000
# Medusa's published heads: five, each with a matrix of the hidden size and an output matrix of its own.
MEDUSA_HEADS = 5
# Layers of a block drafter (DFlash's published ones).
BLOCK_LAYERS = 5
# Of a dense layer of a transformer: four matrices of attention and three of a feed-forward of about 8/3 the width.
_DENSE_LAYER_WIDTHS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHead:
    """`added` is what comes to the target's memory, `read` what a pass reads: the target's own output matrix as well,
    which most heads share."""

    added: Placed
    read: Placed
    is_parallel: bool
    note: str


def estimated_head(kind: str, target: Placed, *, quantisation: str | None = None) -> PlannedHead:
    shape = target.shape
    counts, note = _counts(kind, shape)
    own = replace(
        shape,
        name=f"{kind} head",
        architecture=kind,
        layers=BLOCK_LAYERS if kind == "dflash" else 1,
        parameters=counts,
        kv=_kv(kind, shape),
        state_bytes_per_sequence=0,
        experts=shape.experts if counts.experts else 0,
        experts_per_token=shape.experts_per_token if counts.experts else 0,
        precision=shape.precision if kind == "mtp" else "bf16",
        source=f"estimated from the shape of {shape.name}",
    )
    # What stands in the target is in its format; heads are published in 16 bits.
    is_told = kind == "mtp" and target.weights.precision in PRECISIONS
    stored = target.weights.precision if is_told else "bf16"
    precision = precision_named(quantisation or stored, flag="--draft-quant")
    return PlannedHead(
        added=_placed(own, precision),
        read=_placed(_with_shared_output(own, shape), precision),
        is_parallel=kind in ("medusa", "dflash", "dspark"),
        note=f"{note}; an estimate from the shape of {shape.name}",
    )


def head_from_files(kind: str, head: Placed, target: Placed) -> PlannedHead:
    """A head whose config and weights were read."""
    read = head
    if head.weights.head == 0 and kind != "medusa":
        widened = _with_shared_output(head.shape, target.shape)
        borrowed = target.weights.head or target.weights.embedding
        read = replace(head, shape=widened, weights=replace(head.weights, head=borrowed))
    return PlannedHead(
        added=head,
        read=read,
        is_parallel=kind in ("medusa", "dflash", "dspark"),
        note="counted from the head's own files",
    )


def _placed(shape: ModelShape, precision: Precision) -> Placed:
    return Placed(
        shape=shape,
        weights=weights_in(shape, precision),
        nominal_bytes=nominal_bytes(shape.parameters.total, precision),
    )


def _with_shared_output(head: ModelShape, target: ModelShape) -> ModelShape:
    if head.parameters.head:
        return head
    output = target.parameters.head or target.parameters.embedding
    return replace(head, parameters=replace(head.parameters, head=output, embedding=0))


def _counts(kind: str, shape: ModelShape) -> tuple[ParameterCounts, str]:
    hidden, whole = shape.hidden, shape.parameters
    dense = whole.linear // shape.layers if not shape.is_moe else _DENSE_LAYER_WIDTHS * hidden * hidden
    norms = 4 * hidden
    match kind:
        case "eagle":
            linear = dense + 2 * hidden * hidden
            return _only(linear=linear, other=norms), "one layer and a joint of 2 x hidden; output shared"
        case "eagle3":
            vocabulary = min(shape.vocabulary, EAGLE3_VOCABULARY)
            linear = dense + 4 * hidden * hidden
            counts = _only(linear=linear, other=norms, head=vocabulary * hidden)
            return counts, f"one layer, a joint of 3 x hidden and an output of {vocabulary:,} tokens"
        case "mtp":
            layers = max(1, shape.mtp_layers)
            counts = _only(
                linear=layers * (whole.linear // shape.layers + 2 * hidden * hidden),
                experts=layers * (whole.experts // shape.layers),
                other=layers * (norms + (whole.other // shape.layers)),
            )
            return counts, f"{layers} more of the target's layers, output shared"
        case "medusa":
            linear = MEDUSA_HEADS * hidden * hidden
            counts = _only(linear=linear, head=MEDUSA_HEADS * shape.vocabulary * hidden)
            return counts, f"{MEDUSA_HEADS} heads, each with an output of its own"
        case "dflash" | "dspark":
            layers = BLOCK_LAYERS if kind == "dflash" else 1
            linear = layers * dense + 2 * hidden * hidden
            return _only(linear=linear, other=layers * norms), f"{layers} layers in one pass, output shared"
    raise UsageError(f"plan cannot size a {kind} head", hint="measure it with speclift decide")


def _only(*, linear: int, head: int = 0, experts: int = 0, other: int = 0) -> ParameterCounts:
    return ParameterCounts(embedding=0, head=head, linear=linear, experts=experts, other=other)


def _kv(kind: str, shape: ModelShape) -> tuple[KvLayers, ...]:
    """Keys and values like those of the target's layers, all of the context."""
    if kind == "medusa" or not shape.kv:
        return ()
    layers = {"dflash": BLOCK_LAYERS, "mtp": max(1, shape.mtp_layers)}.get(kind, 1)
    return (replace(shape.kv[0], layers=layers, window=None),)
