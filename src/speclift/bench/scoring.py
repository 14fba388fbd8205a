"""The target's own probabilities of tokens that an arm said, from a server that runs without speculation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError
from speclift.core.results import is_complete
from speclift.engines.kind import usable_kinds
from speclift.engines.protocol import Scorer
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore
from speclift.lossless.questions import Question

# What reading an answer of another shape than expected may raise: a list for an object, a word for a number.
ODD_SHAPE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


async def scorer_for(endpoint: Endpoint) -> Scorer | None:
    """The first of all engines' scorers that works: what a server can do says more than its name."""
    for kind in usable_kinds():
        try:
            scorer = await kind.scorer(endpoint)
        except (EngineError, *ODD_SHAPE):
            continue
        if scorer is not None:
            return scorer
    return None


async def score_all(
    scorer: Scorer, questions: Sequence[Question], answers: Sequence[Answer], *, at_once: int
) -> list[TokenScore]:
    """Of every answer whose token ids are known; EngineError where one cannot be scored or those of several are not
    known, for what is left out might be what is wrong."""
    held = asyncio.Semaphore(at_once)

    async def one(question: Question, answer: Answer) -> list[TokenScore] | EngineError:
        async with held:
            try:
                return await scorer.score(question, answer)
            except EngineError as error:
                return error
            except ODD_SHAPE as error:
                return EngineError(
                    f"the server's log-probabilities have an unexpected format: {type(error).__name__}"
                )

    given = [pair for pair in zip(questions, answers, strict=False) if pair[1].is_ok]
    known = []
    for scores in await asyncio.gather(*(one(question, answer) for question, answer in given if answer.ids)):
        if isinstance(scores, EngineError):
            raise scores
        if scores:
            known.append(scores)
    if not is_complete(asked=len(given), used=len(known)):
        raise EngineError(f"the token ids of {len(given) - len(known)} of {len(given)} answers are unknown")
    return [score for scores in known for score in scores]
