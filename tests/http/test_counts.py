"""Which counts can be true: the last possible number passes, the first impossible one is refused by name."""

from __future__ import annotations

import pytest

from speclift.core.records import NO_TEXT_FOR_IT, Refused
from speclift.http import counts
from speclift.http.counts import (
    NO_LIMITS,
    DraftCounts,
    Limits,
    judge_drafts,
    judge_tokens,
)


def rule(refused: Refused | None) -> str | None:
    return None if refused is None else refused.rule


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
