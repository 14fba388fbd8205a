"""What engines say about drafts in a response: one reader for llama.cpp's and vLLM's fields. Pure.

llama.cpp (b11549): `timings.draft_n` and `draft_n_accepted`, left out while nothing was drafted; running
totals on every chunk with `timings_per_token`. vLLM (0.32): `metrics.speculative_decoding` on the last chunk
when the server runs with --per-request-spec-decode-metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speclift.core.json_reading import as_object
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


def draft_counts(payload: Mapping[str, object]) -> DraftCounts | None:
    """None where the payload carries no counts at all, which is not the same as none drafted, or none that could be
    counts."""
    said = counts_said(payload)
    counts = {name: count(value) for name, value in said.items()}
    if not said or None in counts.values():
        return None
    if "predicted_n" in counts:
        tokens, drafted, accepted = counts.values()
        return DraftCounts(drafted=drafted or 0, accepted=accepted or 0, output_tokens=tokens)
    drafted, accepted = counts.values()
    steps = _steps(as_object(as_object(payload.get("metrics")).get("speculative_decoding")))
    return DraftCounts(drafted=drafted or 0, accepted=accepted or 0, steps=steps)


def counts_said(payload: Mapping[str, object]) -> dict[str, object]:
    """What stands where an engine counts, whatever it is, under the engine's own names; empty where nothing does."""
    timings = payload.get("timings")
    if isinstance(timings, dict) and "predicted_n" in timings:
        return {
            "predicted_n": timings["predicted_n"],
            "draft_n": timings.get("draft_n", 0),
            "draft_n_accepted": timings.get("draft_n_accepted", 0),
        }
    speculative = as_object(payload.get("metrics")).get("speculative_decoding")
    if not isinstance(speculative, dict):
        return {}
    names = ("num_draft_tokens", "num_accepted_draft_tokens")
    return {name: speculative.get(name, 0) for name in names}


def count(value: object) -> Tokens | None:
    """A number of tokens as servers send it, also as 12.0; None for anything that cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= COUNT_MAX:
        return None
    return int(value) if value == int(value) else None


def _steps(speculative: Mapping[str, object]) -> tuple[Step, ...] | None:
    accepted, drafted = speculative.get("per_step_accepted"), speculative.get("per_step_drafted")
    if not isinstance(accepted, list) or not isinstance(drafted, list) or len(accepted) != len(drafted):
        return None
    pairs = [(count(d), count(a)) for d, a in zip(drafted, accepted, strict=True)]
    steps = [Step(drafted=d, accepted=a) for d, a in pairs if d is not None and a is not None]
    return tuple(steps) if len(steps) == len(pairs) else None
