"""watch as JSON: one document per server and look, and what it says to a webhook. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, TypedDict

from speclift.core.answer import ShortAnswer
from speclift.core.documents import AnswerDocument, FindingDocument, answer_document, finding_document
from speclift.core.live import (
    BreakEvenPoint,
    BreakEvenSource,
    Event,
    KeptLook,
    LivePercentiles,
    Payoff,
    Watched,
)
from speclift.core.results import Estimate
from speclift.core.units import Seconds


class LiveEstimateDocument(TypedDict):
    value: float
    low: float
    high: float
    # How sure the bounds are: a watch that looks for weeks is stricter than a single look.
    level: float
    scrapes: int


class BreakEvenDocument(TypedDict):
    accepted_length: float
    source: BreakEvenSource
    # Of a guess, and of a load beyond what was measured; null where there is no bound.
    low: float | None
    high: float | None
    running: float | None


class LivePercentilesDocument(TypedDict):
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None


class WatchDocument(TypedDict):
    schema: Literal[1]
    url: str
    engine: str | None
    version: str | None
    model: str | None
    at: str
    window_s: float
    verdict: Payoff
    since: str
    answer: AnswerDocument
    accepted_length: LiveEstimateDocument | None
    acceptance_rate: float | None
    per_position: list[float]
    drafts: float | None
    break_even: BreakEvenDocument | None
    ttft_s: LivePercentilesDocument
    tpot_s: LivePercentilesDocument
    tokens_s: float | None
    requests_s: float | None
    prompt_tokens_per_request: float | None
    tokens_per_request: float | None
    running: float | None
    waiting: float | None
    kv_used: float | None
    prefix_hit_rate: float | None
    events: list[Event]
    findings: list[FindingDocument]
    # Why the server could not be read; null where it was.
    unreachable: str | None


class LookDocument(TypedDict):
    at: str
    verdict: str
    unreachable: bool
    marks: list[str]
    accepted_length: float | None
    low: float | None
    high: float | None
    break_even: float | None
    acceptance_rate: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    tokens_s: float | None
    running: float | None
    waiting: float | None


class HistoryDocument(TypedDict):
    schema: Literal[1]
    url: str
    hours: float
    # The oldest first; where there are too many, of those that stand together the last.
    looks: list[LookDocument]


def watch_document(watched: Watched, answer: ShortAnswer) -> WatchDocument:
    return {
        "schema": 1,
        "url": watched.url,
        "engine": watched.engine,
        "version": watched.version,
        "model": watched.model,
        "at": instant(watched.at_s),
        "window_s": round(watched.window_s, 3),
        "verdict": watched.payoff,
        "since": instant(watched.since_s),
        "answer": answer_document(answer),
        "accepted_length": _estimate(watched.accepted_length),
        "acceptance_rate": _short(watched.acceptance_rate),
        "per_position": [round(share, 4) for share in watched.per_position],
        "drafts": watched.drafts,
        "break_even": _break_even(watched.break_even),
        "ttft_s": _percentiles(watched.ttft_s),
        "tpot_s": _percentiles(watched.tpot_s),
        "tokens_s": _short(watched.tokens_s),
        "requests_s": _short(watched.requests_s),
        "prompt_tokens_per_request": _short(watched.prompt_tokens_per_request),
        "tokens_per_request": _short(watched.tokens_per_request),
        "running": watched.running,
        "waiting": watched.waiting,
        "kv_used": _short(watched.kv_used),
        "prefix_hit_rate": _short(watched.prefix_hit_rate),
        "events": list(watched.events),
        "findings": [finding_document(finding) for finding in watched.findings],
        "unreachable": watched.unreachable or None,
    }


def history_document(url: str, hours: float, looks: Sequence[KeptLook]) -> HistoryDocument:
    return {"schema": 1, "url": url, "hours": hours, "looks": [_look(look) for look in looks]}


def instant(wall_s: Seconds) -> str:
    """ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(wall_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _look(look: KeptLook) -> LookDocument:
    return {
        "at": instant(look.at_s),
        "verdict": look.payoff.value,
        "unreachable": look.is_unreachable,
        "marks": list(look.marks),
        "accepted_length": look.accepted_length,
        "low": look.low,
        "high": look.high,
        "break_even": look.break_even,
        "acceptance_rate": look.acceptance_rate,
        "ttft_p50_s": look.ttft_p50_s,
        "ttft_p95_s": look.ttft_p95_s,
        "tpot_p50_s": look.tpot_p50_s,
        "tpot_p95_s": look.tpot_p95_s,
        "tokens_s": look.tokens_s,
        "running": look.running,
        "waiting": look.waiting,
    }


def _estimate(estimate: Estimate | None) -> LiveEstimateDocument | None:
    if estimate is None:
        return None
    return {
        "value": round(estimate.value, 4),
        "low": round(estimate.low, 4),
        "high": round(estimate.high, 4),
        "level": estimate.level,
        "scrapes": estimate.n,
    }


def _break_even(point: BreakEvenPoint | None) -> BreakEvenDocument | None:
    if point is None:
        return None
    return {
        "accepted_length": round(point.accepted_length, 4),
        "source": point.source,
        "low": _short(point.low),
        "high": _short(point.high) if math.isfinite(point.high) else None,
        "running": point.running,
    }


def _percentiles(percentiles: LivePercentiles) -> LivePercentilesDocument:
    return {
        "p50": _short(percentiles.p50),
        "p95": _short(percentiles.p95),
        "p99": _short(percentiles.p99),
        "mean": _short(percentiles.mean),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
