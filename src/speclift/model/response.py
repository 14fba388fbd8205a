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
        return DraftCounts(
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            output_tokens=int(timings["predicted_n"]),
        )
    metrics = payload.get("metrics")
    if not isinstance(metrics, Mapping):
        return None
    speculative = metrics.get("speculative_decoding")
    if not isinstance(speculative, Mapping):
        return None
    return DraftCounts(
        drafted=int(speculative.get("num_draft_tokens", 0)),
        accepted=int(speculative.get("num_accepted_draft_tokens", 0)),
        steps=_steps(speculative),
    )


def _steps(speculative: Mapping[str, Any]) -> tuple[Step, ...] | None:
    accepted, drafted = speculative.get("per_step_accepted"), speculative.get("per_step_drafted")
    if not isinstance(accepted, list) or not isinstance(drafted, list) or len(accepted) != len(drafted):
        return None
    return tuple(Step(drafted=int(d), accepted=int(a)) for d, a in zip(drafted, accepted, strict=True))
