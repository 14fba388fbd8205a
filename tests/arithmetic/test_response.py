"""What stands in an answer where an engine counts, and what of it is a count."""

from __future__ import annotations

import math
from typing import Any

import pytest

from speclift.arithmetic.response import COUNT_MAX, count, draft_counts


@pytest.mark.parametrize(
    ("value", "tokens"),
    [(0, 0), (1, 1), (12, 12), (12.0, 12), (0.0, 0), (COUNT_MAX, COUNT_MAX), (COUNT_MAX - 0.0, COUNT_MAX)],
)
def test_whole_numbers_are_counts_also_as_decimals(value: Any, tokens: int) -> None:
    assert count(value) == tokens
    assert type(count(value)) is int


@pytest.mark.parametrize(
    "value",
    [True, False, None, "12", "", [], {}, -1, -0.5, 1.5, COUNT_MAX + 1, math.nan, math.inf, -math.inf],
)
def test_anything_else_is_none(value: Any) -> None:
    assert count(value) is None


@pytest.mark.parametrize("said", [True, False, "3", None, -1])
def test_a_payload_with_one_field_that_is_no_count_tells_nothing(said: Any) -> None:
    llama = {"timings": {"predicted_n": 8, "draft_n": said, "draft_n_accepted": 2}}
    vllm = {"metrics": {"speculative_decoding": {"num_draft_tokens": 4, "num_accepted_draft_tokens": said}}}
    assert draft_counts(llama) is None
    assert draft_counts(vllm) is None


def test_counts_of_both_engines_are_read() -> None:
    llama = draft_counts({"timings": {"predicted_n": 8, "draft_n": 4, "draft_n_accepted": 2.0}})
    assert llama is not None
    assert (llama.output_tokens, llama.drafted, llama.accepted) == (8, 4, 2)
    speculative = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2}
    steps = {"per_step_drafted": [2, 2], "per_step_accepted": [2, 0]}
    vllm = draft_counts({"metrics": {"speculative_decoding": speculative | steps}})
    assert vllm is not None
    assert (vllm.output_tokens, vllm.drafted, vllm.accepted) == (None, 4, 2)
    assert vllm.steps is not None
    assert [(step.drafted, step.accepted) for step in vllm.steps] == [(2, 2), (2, 0)]


@pytest.mark.parametrize(
    "steps",
    [
        {"per_step_drafted": [2, 2], "per_step_accepted": [2]},
        {"per_step_drafted": [2, True], "per_step_accepted": [2, 0]},
        {"per_step_drafted": [2, 2], "per_step_accepted": [2, True]},
        {"per_step_drafted": 2, "per_step_accepted": 2},
        {"per_step_drafted": [2, 2]},
    ],
)
def test_steps_that_do_not_add_up_are_left_out_and_the_totals_kept(steps: dict[str, Any]) -> None:
    speculative = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2} | steps
    found = draft_counts({"metrics": {"speculative_decoding": speculative}})
    assert found is not None
    assert (found.drafted, found.steps) == (4, None)
