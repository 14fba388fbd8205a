"""How long does a step take? A roofline with named losses, for plan, tune and simulate alike.

T(b, k) = overhead + forward(target, b(k+1) tokens) + speculation(b, k), docs/plan.md has formula and constants.
Memory time and compute time overlap in part: (m^r + c^r)^(1/r), r = 1 is their sum, r = inf the roofline itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from speclift.core.units import Bytes, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The group of devices as one: what it streams and multiplies, and what one exchange inside costs."""

    bandwidth_bytes_s: float
    flops_s: float
    # Two all-reduces per layer under tensor parallelism; 0 on one device.
    exchange_s: Seconds = 0.0
    exchange_bytes_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardModel:
    """What one forward pass reads and multiplies."""

    dense_bytes: Bytes
    expert_bytes: Bytes
    experts: int
    experts_per_token: int
    active_parameters: int
    # Read per token of context, and what windows bound: (bytes per token, tokens kept or None for all).
    kv: tuple[tuple[float, int | None], ...]
    layers: int
    hidden: int
    # Bits the matrix units multiply with.
    math_bits: int
    hardware: Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLosses:
    """What an engine loses against the roofline. `IDEAL` losses give the roofline itself."""

    bandwidth_share: float = 1.0
    compute_share: float = 1.0
    # With 8 bits or fewer, of a peak that is higher and harder to reach.
    narrow_compute_share: float = 1.0
    # r above.
    overlap: float = math.inf
    # Scheduling, sampling and launch of every step.
    step_s: Seconds = 0.0
    # Added to a step that speculates: rejection sampling, copies to the host.
    speculation_s: Seconds = 0.0
    # Added to a step whose successor cannot be prepared meanwhile: a look-up needs the tokens just accepted.
    unscheduled_s: Seconds = 0.0
    # Host time of each pass of a draft model, and of each of its layers: launches come on top of the GPU's work.
    draft_pass_s: Seconds = 0.0
    draft_layer_s: Seconds = 0.0
    # Host time of each pass of a head, which runs inside captured graphs.
    head_pass_s: Seconds = 0.0
    # Look-up per sequence and step.
    ngram_sequence_s: Seconds = 0.0
    # Passes over more tokens than graphs were captured for pay a launch per layer; 0: no such limit.
    graph_tokens: int = 0
    ungraphed_layer_s: Seconds = 0.0


IDEAL = EngineLosses()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPasses:
    """A drafter with weights: one pass per drafted token, or one for all of them where it was trained to."""

    model: ForwardModel
    # A layer or so on top of the target's hidden states (EAGLE, MTP): its passes run inside graphs.
    is_head: bool = False
    is_parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """Drafts copied from the text so far: no model, a little host time per sequence."""


Drafting = DraftPasses | LookUp


def experts_touched(tokens: float, experts: int, per_token: int) -> float:
    """Distinct experts that n tokens wake under uniform routing, E(1 - (1 - K/E)^n).

    Real routing is correlated within a text, so this is an upper bound for the tokens of one sequence.
    """
    if experts == 0:
        return 0.0
    return float(experts * (1.0 - (1.0 - per_token / experts) ** tokens))


def forward_s(
    model: ForwardModel, *, tokens: int, sequences: int, context: float, losses: EngineLosses = IDEAL
) -> Seconds:
    """One pass over `tokens` tokens that belong to `sequences` sequences with `context` tokens each."""
    hardware = model.hardware
    touched = experts_touched(tokens, model.experts, model.experts_per_token)
    expert_bytes = model.expert_bytes * touched / model.experts if model.experts else 0.0
    kept = sum(size * min(context, window or context) for size, window in model.kv)
    memory_s = (model.dense_bytes + expert_bytes + sequences * kept) / hardware.bandwidth_bytes_s
    compute_s = 2.0 * model.active_parameters * tokens / hardware.flops_s
    exchange_s = 0.0
    if hardware.exchange_s:
        # Two exchanges per layer, each of one 16-bit hidden state per token.
        message_s = tokens * model.hidden * 2 / hardware.exchange_bytes_s
        exchange_s = 2 * model.layers * (hardware.exchange_s + message_s)
    share = losses.narrow_compute_share if model.math_bits <= 8 else losses.compute_share
    return _together(memory_s / losses.bandwidth_share, compute_s / share, losses.overlap) + exchange_s


def _together(memory_s: Seconds, compute_s: Seconds, overlap: float) -> Seconds:
    longer = max(memory_s, compute_s)
    if math.isinf(overlap) or longer == 0:
        return longer
    # Relative to the longer one, so that small times do not vanish in the power.
    return float(longer * ((memory_s / longer) ** overlap + (compute_s / longer) ** overlap) ** (1 / overlap))


def step_s(
    target: ForwardModel,
    *,
    concurrency: int,
    context: float,
    k: int = 0,
    drafting: Drafting | None = None,
    losses: EngineLosses = IDEAL,
) -> Seconds:
    """One engine step at a closed-loop load: draft k tokens per sequence, verify k + 1. k = 0 is plain decoding."""
    if concurrency < 1 or k < 0:
        raise ValueError(f"a step needs at least 1 sequence and k >= 0, saw {concurrency} and k={k}")
    tokens = concurrency * (k + 1)
    verify_s = losses.step_s + forward_s(
        target, tokens=tokens, sequences=concurrency, context=context, losses=losses
    )
    if 0 < losses.graph_tokens < tokens:
        verify_s += target.layers * losses.ungraphed_layer_s
    if k == 0 or drafting is None:
        return verify_s
    drafting_s = drafting_time_s(drafting, k=k, concurrency=concurrency, context=context, losses=losses)
    return verify_s + losses.speculation_s + drafting_s


def drafting_time_s(
    drafting: Drafting, *, k: int, concurrency: int, context: float, losses: EngineLosses = IDEAL
) -> Seconds:
    """What drafting k tokens for every sequence adds to a step."""
    match drafting:
        case DraftPasses(is_parallel=True):
            return _draft_pass_s(drafting, k * concurrency, concurrency, context, losses)
        case DraftPasses():
            return k * _draft_pass_s(drafting, concurrency, concurrency, context, losses)
        case LookUp():
            return losses.unscheduled_s + concurrency * losses.ngram_sequence_s


def _draft_pass_s(
    drafting: DraftPasses, tokens: int, sequences: int, context: float, losses: EngineLosses
) -> Seconds:
    model = drafting.model
    pass_s = forward_s(model, tokens=tokens, sequences=sequences, context=context, losses=losses)
    if drafting.is_head:
        return pass_s + losses.head_pass_s
    return pass_s + losses.draft_pass_s + model.layers * losses.draft_layer_s
