"""Metric names that dashboards still ask for, and what they are today. Pure data and its lookup."""

from __future__ import annotations

import re

from speclift.linter.findings import LintFinding, Release, Status, dotted
from speclift.linter.rows import Span

ACCEPTANCE = (
    "rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_draft_tokens_total[5m])"
)
LENGTH = (
    "1 + rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_drafts_total[5m])"
)
SOURCE = "vllm.engine.metrics, vllm.v1.metrics.loggers; vLLM PR 16665"

# name: lifetime, what gives the same today, why
METRICS: dict[str, tuple[Span, str, str]] = {
    "spec_decode_draft_acceptance_rate": (
        Span(since=(0, 4, 1), gone=(0, 10, 0)),
        ACCEPTANCE,
        "a gauge of the V0 engine; V1 counts tokens, and the rate is yours to take",
    ),
    "spec_decode_efficiency": (
        Span(since=(0, 4, 1), gone=(0, 10, 0)),
        LENGTH,
        "a gauge of the V0 engine; the mean accepted length says the same",
    ),
    "spec_decode_num_emitted_tokens": (
        Span(since=(0, 4, 1), gone=(0, 10, 0)),
        "vllm:spec_decode_num_accepted_tokens_total + vllm:spec_decode_num_drafts_total",
        "V1 counts accepted tokens and drafts apart",
    ),
    "gpu_cache_usage_perc": (
        Span(since=(0, 4, 0), gone=(0, 12, 0)),
        "vllm:kv_cache_usage_perc",
        "renamed",
    ),
    "time_per_output_token_seconds": (
        Span(since=(0, 4, 0), gone=(0, 15, 0)),
        "vllm:request_time_per_output_token_seconds",
        "inter_token_latency_seconds observes one value per step, so under speculation it is no time per token",
    ),
}
_NAME = re.compile(rf"(?<!\w)(?:vllm[:_])?({'|'.join(METRICS)})(?!\w)")


def metrics_in(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(match[1] for match in _NAME.finditer(text)))


def judge_metrics(names: tuple[str, ...], *, release: Release) -> tuple[LintFinding, ...]:
    findings = []
    for name in names:
        span, instead, why = METRICS[name]
        is_there = span.holds(release)
        status = Status.OK if is_there else Status.RENAMED if why == "renamed" else Status.REMOVED
        findings.append(
            LintFinding(
                flag=name,
                status=status,
                message="" if is_there else f"gone since vLLM {dotted(span.gone or span.since)}; {why}",
                replacement=None if is_there else instead,
                changed_in=None if is_there else dotted(span.gone or span.since),
                source=SOURCE,
            )
        )
    return tuple(findings)
