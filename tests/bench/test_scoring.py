"""Answers whose tokens are not all known do not vanish from what is scored."""

from __future__ import annotations

import asyncio

import pytest

from speclift.bench.gate_run import score_all
from speclift.core.errors import EngineError
from speclift.core.traffic import Message, Request
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore
from speclift.lossless.questions import Question


class OfSome:
    """Knows the tokens of the first answers alone."""

    settings: tuple[tuple[str, object], ...] = ()
    listed = 1
    temperature_max = 2.0

    def __init__(self, known: int) -> None:
        self.known = known

    async def score(self, question: Question, answer: Answer) -> list[TokenScore]:
        score = TokenScore(chosen=1, top=((1, 1.0),), tail_low=0.0, tail_high=0.0)
        return [score] * (int(answer.case) < self.known)


@pytest.mark.parametrize(("known", "is_scored"), [(20, True), (19, True), (18, False), (0, False)])
def test_answers_that_could_not_be_scored_do_not_vanish(
    known: int, is_scored: bool, questions: list[Question]
) -> None:
    answers = [
        Answer(case=str(i), text="x", finish_reason="stop", tokens=1, ids=(1,)) for i in range(len(questions))
    ]
    scoring = score_all(OfSome(known), questions, answers, at_once=2)
    if is_scored:
        assert len(asyncio.run(scoring)) == known
    else:
        with pytest.raises(EngineError, match=f"{20 - known} of 20 answers"):
            asyncio.run(scoring)


@pytest.fixture
def questions() -> list[Question]:
    request = Request(id="r", segment="s", messages=(Message(role="user", content="hi"),), max_tokens=8)
    return [Question(case=str(i), request=request, temperature=1.0, seed=i) for i in range(20)]
