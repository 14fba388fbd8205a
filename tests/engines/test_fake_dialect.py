"""Bodies of the fake server: what is refused, and how each engine's answers are worded."""

from __future__ import annotations

import json
from typing import Any

from speclift.testing.fake_dialect import (
    Reply,
    ServedTotals,
    metrics_text,
    read_body,
)
from speclift.testing.fake_truth import Truth, script_for


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "two words"}], **fields}


def reply_to(truth: Truth, **fields: Any) -> Reply:
    ask, form = read_body(chat(temperature=0, **fields), is_chat=True)
    return Reply(truth, script_for(truth, ask), form, id="x", created=0, prompt_s=0.5)


def as_read(payload: object) -> Any:
    """As whoever asked reads it."""
    return json.loads(json.dumps(payload))


def test_vllm_step_metrics_agree_with_the_script() -> None:
    reply = reply_to(Truth(flavour="vllm", k=3), max_tokens=60)
    metrics = as_read(reply.whole(decode_s=1.0))["metrics"]["speculative_decoding"]
    drafted_steps = [step for step in reply.script.steps if step.drafted]
    accepted = [step.accepted for step in drafted_steps]
    assert metrics == {
        "mean_acceptance_length": 1 + sum(accepted) / len(accepted),
        "draft_acceptance_rate": sum(accepted) / sum(step.drafted for step in drafted_steps),
        "acceptance_histogram": [accepted.count(j) for j in range(4)],
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(step.drafted for step in drafted_steps),
        "num_spec_tokens": 3,
        "per_step_accepted": accepted,
        "per_step_drafted": [step.drafted for step in drafted_steps],
    }


def test_vllm_counters_are_the_sum_of_the_step_metrics() -> None:
    truth, totals = Truth(flavour="vllm", k=3), ServedTotals()
    replies = [reply_to(truth, max_tokens=tokens) for tokens in range(2, 40)]
    for reply in replies:
        totals.add(reply.script)
    metrics = [as_read(reply.whole(decode_s=1.0))["metrics"]["speculative_decoding"] for reply in replies]
    accepted = [count for request in metrics for count in request["per_step_accepted"]]
    expected = {
        "generation_tokens_total{%s}": sum(range(2, 40)),
        "prompt_tokens_total{%s}": 2 * len(replies),
        "spec_decode_num_drafts_total{%s}": len(accepted),
        "spec_decode_num_draft_tokens_total{%s}": sum(request["num_draft_tokens"] for request in metrics),
        "spec_decode_num_accepted_tokens_total{%s}": sum(accepted),
        "num_requests_running{%s}": 2,
        "num_requests_waiting{%s}": 1,
    }
    for position in range(3):
        name = 'spec_decode_num_accepted_tokens_per_pos_total{%s,position="' + f'{position}"}}'
        expected[name] = sum(count > position for count in accepted)
    lines = metrics_text(truth, totals, running=2, waiting=1).splitlines()
    labels = 'engine="0",model_name="fake"'
    assert {f"vllm:{name % labels} {value}" for name, value in expected.items()} <= set(lines)
