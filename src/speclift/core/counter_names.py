"""What one engine calls the counters that say how its speculation does; None is what it does not export."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterNames:
    """Names as Prometheus stores them; histograms by their buckets."""

    engine: str
    tokens: str
    drafts: str
    drafted: str
    accepted: str
    accepted_at: str
    running: str
    waiting: str
    # Answers begun; without them an answer's first token counts as a step.
    requests: str | None = None
    kv_used: str | None = None
    prefix_queries: str | None = None
    prefix_hits: str | None = None
    ttft: str | None = None
    tpot: str | None = None
    # Seconds spent decoding, where there is no histogram of times per token.
    decode_s: str | None = None
    # Whether series say which model they are of, under `model_name`.
    has_model: bool = False
