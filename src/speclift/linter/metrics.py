"""Metric names that dashboards still ask for, and what they are today. Pure data and its lookup."""

from __future__ import annotations

import re

from speclift.linter.findings import LintFinding, Release
from speclift.linter.pasted import Setting
from speclift.linter.row_rules import judge_flag
from speclift.linter.rows import SWITCH, NameTable, Row, by_name

ACCEPTANCE = (
    "rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_draft_tokens_total[5m])"
)
LENGTH = (
    "1 + rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_drafts_total[5m])"
)
SOURCE = "vllm.engine.metrics, vllm.v1.metrics.loggers; vLLM PR 16665"

METRICS = NameTable(
    engine="vLLM",
    thing="metric",
    rows=by_name(
        (
            Row(
                "spec_decode_draft_acceptance_rate",
                SWITCH,
                (0, 4, 1),
                (0, 10, 0),
                replacement=ACCEPTANCE,
                note="a gauge of the V0 engine; V1 counts tokens, and the rate is yours to take",
            ),
            Row(
                "spec_decode_efficiency",
                SWITCH,
                (0, 4, 1),
                (0, 10, 0),
                replacement=LENGTH,
                note="a gauge of the V0 engine; the mean accepted length says the same",
            ),
            Row(
                "spec_decode_num_emitted_tokens",
                SWITCH,
                (0, 4, 1),
                (0, 10, 0),
                replacement="vllm:spec_decode_num_accepted_tokens_total + vllm:spec_decode_num_drafts_total",
                note="V1 counts accepted tokens and drafts apart",
            ),
            Row(
                "gpu_cache_usage_perc",
                SWITCH,
                (0, 4, 0),
                (0, 12, 0),
                renamed_to="vllm:kv_cache_usage_perc",
                note="renamed",
            ),
            Row(
                "time_per_output_token_seconds",
                SWITCH,
                (0, 4, 0),
                (0, 15, 0),
                replacement="vllm:request_time_per_output_token_seconds",
                note="inter_token_latency_seconds observes one value per step, so under speculation it is no time per"
                " token",
            ),
        ),
        source=SOURCE,
    ),
)
_NAME = re.compile(rf"(?<!\w)(?:vllm[:_])?({'|'.join(METRICS.rows)})(?!\w)")


def metrics_in(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(match[1] for match in _NAME.finditer(text)))


def judge_metrics(names: tuple[str, ...], *, release: Release) -> tuple[LintFinding, ...]:
    return tuple(
        judge_flag(Setting(name=name, spelled=name), METRICS[name], METRICS, release) for name in names
    )
