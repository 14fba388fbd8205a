"""The judgement on a text to repeat: does this server really speculate?"""

from __future__ import annotations

from typing import Any

import pytest

from speclift.core.errors import EngineError
from speclift.engines.probe import judge_probe


def answer(*, tokens: int, drafted: int, accepted: int) -> dict[str, Any]:
    timings = {"predicted_n": tokens, "draft_n": drafted, "draft_n_accepted": accepted}
    return {"usage": {"completion_tokens": tokens}, "timings": timings}


@pytest.mark.parametrize(
    ("tokens", "drafted", "accepted"),
    [(96, 80, 60), (96, 95, 95), (96, 96, 96), (96, 400, 9), (2, 1, 1)],
    ids=["a good drafter", "every step full", "a last step cut short", "just above the line", "two tokens"],
)
def test_a_drafter_whose_tokens_are_accepted_passes(tokens: int, drafted: int, accepted: int) -> None:
    said = judge_probe(answer(tokens=tokens, drafted=drafted, accepted=accepted), arm="ngram-k8")
    assert f"{accepted} of {drafted}" in said


def test_nothing_drafted_is_no_speculation() -> None:
    with pytest.raises(EngineError, match=r"arm ngram-k8 drafted no token .*\(96 tokens\)") as caught:
        judge_probe(answer(tokens=96, drafted=0, accepted=0), arm="ngram-k8")
    assert caught.value.hint


@pytest.mark.parametrize("accepted", [0, 8])
def test_a_drafter_that_is_hardly_ever_right_on_copied_text_is_broken(accepted: int) -> None:
    with pytest.raises(EngineError, match=rf"accepted {accepted} of 300 draft tokens"):
        judge_probe(answer(tokens=96, drafted=300, accepted=accepted), arm="draft-k4")
