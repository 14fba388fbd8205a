"""Pages of a server with a known truth, one after the other, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from speclift.core.live import LiveTotals, MetricsReading

INTERVAL_S = 15.0
WALL_S = 1_800_000_000.0
NAMES = {
    "tokens": "vllm:generation_tokens_total",
    "requests": "vllm:time_to_first_token_seconds_count",
    "drafts": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}


def reading(at_s: float = 0.0, **fields: Any) -> MetricsReading:
    """Totals and fields of the page by name."""
    totals = {name: value for name, value in fields.items() if name in LiveTotals.__dataclass_fields__}
    rest = {name: value for name, value in fields.items() if name not in totals}
    page = MetricsReading(
        at_s=at_s, wall_s=WALL_S + at_s, engine="vllm", totals=replace(LiveTotals(), **totals)
    )
    return replace(page, **rest)


class Served:
    """A server that has served so and so much: each `interval` adds requests of 101 tokens whose steps accept so many
    of k drafted tokens on average; `page` is what it shows."""

    def __init__(self, *, k: int = 4, started_s: float | None = None, at_s: float = 0.0) -> None:
        self.k, self.started_s, self.at_s = k, started_s, at_s
        self.tokens = self.requests = self.drafts = self.accepted = 0.0

    def interval(
        self, *, accepted: float, requests: float = 30, seconds: float = INTERVAL_S
    ) -> MetricsReading:
        steps = 100 * requests / (1 + accepted)
        self.at_s += seconds
        self.tokens += 101 * requests
        self.requests += requests
        self.drafts += steps
        self.accepted += accepted * steps
        return self.page()

    def page(self) -> MetricsReading:
        return reading(
            self.at_s,
            tokens=self.tokens,
            requests=self.requests,
            drafts=self.drafts,
            drafted=self.k * self.drafts,
            accepted=self.accepted,
            accepted_at=tuple(self.accepted / self.k for _ in range(self.k)),
            started_s=self.started_s,
            running=8.0,
            waiting=0.0,
        )

    def intervals(self, count: int, *, accepted: float, requests: float = 30) -> Iterator[MetricsReading]:
        """Two kinds of requests in turn, so that there is something to differ."""
        for index in range(count):
            yield self.interval(accepted=accepted * (0.97 if index % 2 else 1.03), requests=requests)


def text_of(page: MetricsReading) -> str:
    """As vLLM writes it."""
    lines = [
        f'{name}{{engine="0",model_name="m"}} {getattr(page.totals, field)}' for field, name in NAMES.items()
    ]
    positions = [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="{place}"}} {count}'
        for place, count in enumerate(page.totals.accepted_at)
    ]
    started = [] if page.started_s is None else [f"process_start_time_seconds {page.started_s}"]
    gauges = [f'vllm:num_requests_running{{engine="0",model_name="m"}} {page.running or 0.0}']
    return "\n".join([*lines, *positions, *gauges, *started]) + "\n"
