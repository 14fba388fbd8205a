"""What engines say about drafts in a response: one reader for llama.cpp's and vLLM's fields. Pure.

llama.cpp (b11549): `timings.draft_n` and `draft_n_accepted`, left out while nothing was drafted; running
totals on every chunk with `timings_per_token`. vLLM (0.32): `metrics.speculative_decoding` on the last chunk
when the server runs with --per-request-spec-decode-metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from speclift.core.records import Step
from speclift.core.units import Tokens

COUNT_MAX = 1 << 24  # above the largest context windows of 2026, 10 million tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Totals of one response so far. `output_tokens` is set where the engine counts alongside."""

    drafted: Tokens
    accepted: Tokens
    output_tokens: Tokens | None = None
    steps: tuple[Step, ...] | None = None


def draft_counts(payload: Mapping[str, Any]) -> DraftCounts | None:
    """None where the payload carries no counts at all, which is not the same as none drafted."""
    timings = payload.get("timings")
    if isinstance(timings, Mapping) and "predicted_n" in timings:
        tokens = count(timings["predicted_n"])
        drafted, accepted = count(timings.get("draft_n", 0)), count(timings.get("draft_n_accepted", 0))
        if tokens is None or drafted is None or accepted is None:
            return None
        return DraftCounts(drafted=drafted, accepted=accepted, output_tokens=tokens)
    metrics = payload.get("metrics")
    speculative = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    if not isinstance(speculative, Mapping):
        return None
    drafted = count(speculative.get("num_draft_tokens", 0))
    accepted = count(speculative.get("num_accepted_draft_tokens", 0))
    if drafted is None or accepted is None:
        return None
    return DraftCounts(drafted=drafted, accepted=accepted, steps=_steps(speculative))


def count(value: Any) -> Tokens | None:
    """A number of tokens as servers send it; None for anything that cannot be one."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX
    return value if is_count else None


def _steps(speculative: Mapping[str, Any]) -> tuple[Step, ...] | None:
    accepted, drafted = speculative.get("per_step_accepted"), speculative.get("per_step_drafted")
    if not isinstance(accepted, list) or not isinstance(drafted, list) or len(accepted) != len(drafted):
        return None
    pairs = [(count(d), count(a)) for d, a in zip(drafted, accepted, strict=True)]
    steps = [Step(drafted=d, accepted=a) for d, a in pairs if d is not None and a is not None]
    return tuple(steps) if len(steps) == len(pairs) else None
