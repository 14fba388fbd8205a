"""What makes a comparison worth less than it looks is said: each check, its sentence and the next step."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from changes import (
    DRIFTING,
    ON_THREE_NODES,
    ON_VLLM,
    UNSEEN,
    WITH_CONTROL,
    counted,
    failing,
    gate,
    kept,
    nodes,
    only,
    said,
    slower,
    suffix_drafts,
)

from recorded import recorded_study
from running import Cli


class Finding(NamedTuple):
    check: str
    change: str
    message: str
    next_step: str
    level: str = "warn"
    study: str = "faster"


CASES = [
    Finding(
        "client-cpu",
        "UPDATE turns SET cpu_s = 0.95",
        "at c=1 the load generator used 95% of a core; its event loop was up to 0.2 ms late",
        "add --workers 2",
    ),
    Finding(
        "client-reading",
        "UPDATE turns SET stamp_blur_p99_s = 0.02",
        "at c=1 the client read first tokens late in over 10% of its turns: up to 20.0 ms at P99",
        "free a core",
        "fail",
    ),
    Finding(
        "client-lag",
        "UPDATE records SET sent_s = intended_s + 0.02",
        "at c=1 the client sent requests 20.0 ms late at P99, more than 5% of the TTFT P50 of 40.8 ms",
        "lower the load",
        "fail",
    ),
    Finding("drift", DRIFTING, "the baseline's own time per token changed by +20%", "what else runs"),
    Finding(
        "output-length",
        "UPDATE records SET output_tokens = 80 WHERE arm = 'arm'",
        "arm wrote 80.0 tokens per answer, the baseline 64.0",
        "lower --max-tokens",
    ),
    Finding(
        "no-token-counts",
        "UPDATE records SET output_tokens = NULL, drafted = NULL, accepted = NULL",
        "baseline: the server sends no token counts",
        "stream_options.include_usage",
    ),
    Finding("single-launch", only("round = 0"), "one launch per arm", "--launches 3"),
    Finding("few-launches", only("round < 2"), "only 2 launches per arm", "--launches 3"),
    Finding("few-prompts", only("request_id < 'p12'"), "only 4 prompts; use at least 20", "--prompts"),
    Finding(
        "few-prompts-per-segment",
        "",
        "under 10 prompts in: chat, code, copy",
        "raise --requests",
        "info",
    ),
    Finding(
        "short-load",
        only("request_id < 'p12'"),
        "only 4 requests at c=4",
        "at least 16 requests at this load",
    ),
    Finding(
        "failed-requests",
        failing("arm = 'arm' AND id % 10 = 0", "429: slow down"),
        "arm: 14 of 144 requests failed\n  14 x http-error: 429: slow down",
        "the server limits the request rate",
    ),
    Finding(
        "failed-requests",
        failing("arm = 'arm' AND id % 10 = 0", "401: who is it"),
        "14 x http-error: 401",
        "--api-key-env NAME",
    ),
    Finding(
        "failed-requests",
        failing("arm = 'arm' AND id % 10 = 0", "reset", "disconnected"),
        "14 x disconnected: reset",
        "is the server up",
    ),
    Finding(
        "failed-requests",
        failing("arm = 'arm' AND id % 10 = 0", "", "timeout"),
        "14 x timeout: no details",
        "the server hangs or is too slow for this load",
    ),
    Finding(
        "degenerate-output",
        said("la " * 40, "segment = 'chat'"),
        "96 of 96 answers in chat end in a repetition loop",
        "lower --max-tokens",
    ),
    Finding(
        "buffered-answers",
        "UPDATE records SET first_token_s = last_token_s - 0.0001 WHERE arm = 'arm' AND id % 4 = 0",
        "arm: 24 of 144 answers with 8 tokens or more came in one burst",
        "proxy_buffering off",
    ),
    Finding(
        "impossible-counts",
        """UPDATE records SET refused = '[["over", "9 of 4"]]' WHERE id = 10""",
        "arm: 1 of 144 answers report impossible numbers: 9 of 4 (1 times)",
        "counts wrongly",
        "fail",
    ),
    Finding(
        "steps-disagree",
        "UPDATE records SET steps = '[' || substr(replace(hex(zeroblob(63)), '00', ',[0,0]'), 2) || ']' "
        "WHERE arm = 'arm'",
        "arm: by their chunks 144 answers took 9072 decode steps, by their draft counts ",
        "splits the chunks",
    ),
    Finding(
        "counters-disagree",
        counted(spec_decode_num_draft_tokens_total=13552),
        "arm: responses report 3552 draft tokens, the engine's metrics 13552",
        "does another client use this server?",
    ),
    Finding(
        "unequal-settings",
        """UPDATE launches SET settings = '{"dtype": "fp16"}' WHERE arm = 'arm'""",
        "arm differs from the baseline in more than speculation: dtype fp16 (baseline bf16)",
        "--engine-arg",
    ),
    Finding(
        "engine-warning",
        """UPDATE launches SET notices = '["caching is disabled"]' WHERE arm = 'arm'""",
        "arm: warning when the engine started: caching is disabled",
        "see the engine's log",
    ),
    Finding(
        "engine-warning",
        """UPDATE launches SET notices = '["hello"]' WHERE arm = 'arm'""",
        "arm: warning when the engine started: hello",
        "see the engine's log",
        "info",
    ),
    Finding(
        "preemptions",
        counted(num_preemptions_total=5),
        "arm: the engine preempted 15 running requests",
        "give it more KV cache",
    ),
    Finding(
        "prefix-hits",
        counted(prefix_cache_queries_total=100, prefix_cache_hits_total=60)
        + ";"
        + counted(prefix_cache_queries_total=100, prefix_cache_hits_total=92).replace("'arm'", "'baseline'"),
        "arm: the prefix cache served 60% of prompt tokens, 92% without speculation",
        "TTFT becomes longer",
    ),
    Finding(
        "kv-full",
        "UPDATE launches SET usage = replace(usage, '0.3', '0.97') WHERE arm = 'arm'",
        "arm: the KV cache was 97% full at its peak",
        "lower --concurrency",
    ),
    Finding(
        "speculation-tax",
        "UPDATE records SET drafted = 0, accepted = 0 WHERE arm = 'arm'; " + slower(1.9),
        "arm: 24 prompts without any draft token were still 18.",
        "route traffic that rarely drafts",
        "info",
    ),
    Finding(
        "budget-spent",
        kept("left-out", {"left_out": ["launch 3 of arm"]}),
        "launch 3 of arm",
        "longer --budget",
        "info",
    ),
    Finding(
        "metrics-lost",
        "INSERT INTO findings VALUES (1, 'metrics-lost', 'warn', 'it went away', 'see its log', 'arm')",
        "it went away",
        "see its log",
    ),
    Finding(
        "saturation",
        "UPDATE records SET first_token_s = sent_s + (first_token_s - sent_s) * (1 + 4 * (id % 96) / 96.0), "
        "last_token_s = last_token_s + 1, end_s = end_s + 1",
        "arm at 2 req/s: TTFT grew from 44 to 89 ms within a turn",
        "compare at lower loads",
        study="open-loop",
    ),
    Finding(
        "slow-requests",
        "",
        "arm: most requests are faster and the slowest are slower. 28% of the requests with segment "
        "chat are slow, 0% of the others",
        "serve requests with segment chat without speculation",
        "info",
        "slow-tail",
    ),
    Finding(
        "repeated-prompts",
        "",
        "12 distinct prompts were sent as 48 requests per cell and launch, each up to 4 times",
        "more distinct prompts",
        "info",
        "repeated",
    ),
    Finding(
        "gain-explained",
        f"{ON_VLLM}; {WITH_CONTROL}",
        "arm: 1.60x in the launch next to the control: scheduling alone gives 0.91x, drafting gives 1.76x",
        "the engine's normal baseline",
        "info",
    ),
    Finding(
        "repeats-remembered",
        suffix_drafts(),
        "arm drafts from its earlier answers, so it already knows the answer to a repeated prompt: its 72 repeats",
        "give 48 distinct prompts",
        study="repeated",
    ),
    Finding(
        "unseen-tokens",
        UNSEEN + "id % 40 = 0",
        "baseline: 5 of 144 answers count more tokens than their text has bytes (64 tokens, 10 bytes)",
        "including reasoning",
    ),
    Finding(
        "unseen-tokens",
        UNSEEN + "arm = 'arm'",
        "arm: 144 of 144 answers count more",
        "including reasoning",
        "fail",
    ),
    Finding(
        "node-spread",
        ON_THREE_NODES,
        "arm by node (e2e): n2 1.60x, n0 1.61x, n1 1.61x; nodes differ by 0.3%",
        "more of them make it narrower",
        "info",
    ),
    Finding(
        "unlike-nodes",
        f"{ON_THREE_NODES}; {nodes('a', 'a', 'b')}",
        "the verdict is on n0, n1 (cpu a); beside it n2 (cpu b): arm 1.60x [1.59, 1.62]",
        "a cluster of those alone",
    ),
    Finding(
        "output-changed",
        gate("fail", arm="other", also="arm"),
        "other: greedy: as it was compared",
        "both outputs side by side",
        "fail",
        "two-arms",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.message[:24]}")
def test_it_is_said(case: Finding, cli: Cli, tmp_path: Path) -> None:
    recorded_study(case.study, tmp_path, case.change)
    findings = cli("compare", case.study, "--json").document["findings"]
    (first, *_) = [finding for finding in findings if finding["check"] == case.check]
    assert case.message in first["message"]
    assert (first["level"], case.next_step in first["next_step"]) == (case.level, True), first


def test_a_sound_study_has_nothing_to_be_said(cli: Cli, tmp_path: Path) -> None:
    recorded_study("two-arms", tmp_path)
    assert cli("compare", "two-arms", "--json").document["findings"] == []
