"""Which counts can be true: the last possible number passes, the first impossible one is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from speclift.core.records import NO_TEXT_FOR_IT, Refused, Step
from speclift.http import counts
from speclift.http.counts import (
    COUNT_MAX,
    NO_LIMITS,
    DraftCounts,
    Limits,
    count,
    draft_counts,
    judge_drafts,
    judge_tokens,
    refused_values,
)


def counts_of(payload: dict[str, Any]) -> DraftCounts | None:
    return draft_counts(payload.get("timings"), payload.get("metrics"))


def rule(refused: Refused | None) -> str | None:
    return None if refused is None else refused.rule


def test_only_what_was_said_and_is_no_count_is_refused() -> None:
    refused = refused_values({"null": None, "zero": 0, "seven": 7, "word": "7", "below": -1})
    assert [one.said for one in refused] == ["word '7'", "below -1"]
    assert {one.rule for one in refused} == {counts.NOT_A_COUNT}


@pytest.mark.parametrize(
    ("tokens", "text_bytes", "tokens_max", "refused_by"),
    [
        pytest.param(64, 200, 64, None, id="as many as were asked for"),
        pytest.param(65, 200, 64, counts.OVER_MAX_TOKENS, id="one more than was asked for"),
        pytest.param(65, 200, None, None, id="nobody set a limit"),
        pytest.param(9, 0, None, None, id="silent tokens and no text"),
        pytest.param(10, 0, None, NO_TEXT_FOR_IT, id="one more than can be silent"),
        pytest.param(19, 10, None, None, id="a byte each, and the silent ones"),
        pytest.param(20, 10, None, NO_TEXT_FOR_IT, id="more than a byte each and the silent ones"),
        pytest.param(0, 0, None, None, id="nothing at all"),
        pytest.param(2, 1024, None, None, id="the longest tokens there could be"),
        pytest.param(2, 1025, None, counts.TOO_MUCH_TEXT, id="a byte more than they hold"),
        pytest.param(0, 1, None, counts.TOO_MUCH_TEXT, id="text of no token"),
    ],
)
def test_tokens_against_limit_and_text(
    tokens: int, text_bytes: int, tokens_max: int | None, refused_by: str | None
) -> None:
    judged = judge_tokens(tokens, text_bytes=text_bytes, limits=Limits(tokens_max=tokens_max))
    assert rule(judged) == refused_by


def steps(*drafted_and_accepted: tuple[int, int]) -> list[Step]:
    return [Step(drafted=drafted, accepted=accepted) for drafted, accepted in drafted_and_accepted]


@pytest.mark.parametrize(
    ("drafted", "accepted", "in_steps", "refused_by"),
    [
        pytest.param(8, 8, (), None, id="everything accepted"),
        pytest.param(8, 9, (), counts.ACCEPTED_OVER_DRAFTED, id="one more accepted than drafted"),
        pytest.param(
            8, 5, ((4, 5),), counts.ACCEPTED_OVER_DRAFTED, id="one step accepts more than it drafted"
        ),
        pytest.param(8, 4, ((4, 2), (4, 2)), None, id="steps that say all of it"),
        pytest.param(8, 4, ((4, 1),), None, id="steps that say a part"),
        pytest.param(7, 4, ((4, 2), (4, 2)), counts.CONTRADICTION, id="steps draft more than the answer"),
        pytest.param(8, 3, ((4, 2), (4, 2)), counts.CONTRADICTION, id="steps accept more than the answer"),
    ],
)
def test_drafts_against_each_other(
    drafted: int, accepted: int, in_steps: tuple[tuple[int, int], ...], refused_by: str | None
) -> None:
    counts = DraftCounts(drafted=drafted, accepted=accepted)
    assert rule(judge_drafts(counts, steps(*in_steps), tokens=None, limits=NO_LIMITS)) == refused_by


@pytest.mark.parametrize(
    ("drafted", "accepted", "tokens", "limits", "refused_by"),
    [
        pytest.param(33, 0, 10, Limits(draft_max=3), None, id="k in every step and one step that came late"),
        pytest.param(34, 0, 10, Limits(draft_max=3), counts.DRAFTED_OVER_K, id="one more than k allows"),
        pytest.param(13, 13, 10, Limits(draft_max=3), None, id="a step that was cut off at the end"),
        pytest.param(
            14, 14, 10, Limits(draft_max=3), counts.ACCEPTED_OVER_TOKENS, id="more than was answered"
        ),
        pytest.param(
            34, 0, None, Limits(tokens_max=10, draft_max=3), counts.DRAFTED_OVER_K, id="by the limit"
        ),
        pytest.param(33, 0, None, Limits(tokens_max=10, draft_max=3), None, id="within the limit"),
        pytest.param(
            34, 0, 11, Limits(tokens_max=10, draft_max=3), None, id="the answer counts, not its limit"
        ),
        pytest.param(34, 0, None, Limits(draft_max=3), None, id="a length that nobody knows"),
        pytest.param(2048, 0, 1, NO_LIMITS, None, id="the longest drafts anyone runs"),
        pytest.param(2049, 0, 1, NO_LIMITS, counts.DRAFTED_OVER_K, id="longer drafts than anyone runs"),
    ],
)
def test_drafts_against_k_and_the_length_of_the_answer(
    drafted: int, accepted: int, tokens: int | None, limits: Limits, refused_by: str | None
) -> None:
    judged = judge_drafts(DraftCounts(drafted=drafted, accepted=accepted), (), tokens=tokens, limits=limits)
    assert rule(judged) == refused_by


def test_a_refusal_says_what_k_would_have_allowed() -> None:
    judged = judge_drafts(DraftCounts(drafted=34, accepted=0), (), tokens=10, limits=Limits(draft_max=3))
    assert judged is not None
    assert judged.said == "34 draft tokens, but 10 tokens at k=3 allow at most 33"


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
    assert counts_of(llama) is None
    assert counts_of(vllm) is None


def test_counts_of_both_engines_are_read() -> None:
    llama = counts_of({"timings": {"predicted_n": 8, "draft_n": 4, "draft_n_accepted": 2.0}})
    assert llama is not None
    assert (llama.output_tokens, llama.drafted, llama.accepted) == (8, 4, 2)
    speculative = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2}
    steps = {"per_step_drafted": [2, 2], "per_step_accepted": [2, 0]}
    vllm = counts_of({"metrics": {"speculative_decoding": speculative | steps}})
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
    found = counts_of({"metrics": {"speculative_decoding": speculative}})
    assert found is not None
    assert (found.drafted, found.steps) == (4, None)
