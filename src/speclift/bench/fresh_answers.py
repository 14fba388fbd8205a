"""A fresh baseline asked again where its recorded answers and an arm's differ: for log-probabilities."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from speclift.bench.asking import ask_all
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError
from speclift.engines.protocol import Engine
from speclift.lossless.answers import Answer
from speclift.lossless.greedy import gap_noise
from speclift.lossless.questions import QUICK, Question
from speclift.lossless.recorded import Fresh


def always_enough(fresh: Fresh) -> bool:  # noqa: ARG001
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAgain:
    """The prompts that an arm parted on, and others, for where the answers to those are not enough."""

    questions: Sequence[Question]
    others: Sequence[Question] = ()
    is_enough: Callable[[Fresh], bool] = always_enough


async def ask_again(engine: Engine, asked: AskedAgain, *, log: Path, deadline: Deadline) -> Fresh:
    """Each prompt alone and again within a batch: the reference, and the noise of the baseline's arithmetic.

    Half of the time is for the first, so that both are there when it ends. Where that is not enough, the others: how
    often the baseline parts from itself shows on the prompts that nobody parted on as well.
    """
    references: list[Answer] = []
    again: list[Answer] = []

    def heard() -> Fresh:
        noise = [gap for pair in zip(references, again, strict=False) for gap in gap_noise(*pair)]
        return Fresh(
            references={answer.case: answer for answer in references if answer.is_ok}, noise=tuple(noise)
        )

    async with ends_at(deadline, lambda: "launching the baseline for the lossless gate"):
        server = await engine.launch(baseline_arm(), log=log)
    try:
        with contextlib.suppress(BudgetSpent):
            async with ends_at(deadline, lambda: "asking the baseline again"):
                enough = deadline.keeping(deadline.left_s / 2) if deadline.is_set else deadline
                for question in asked.questions:
                    references += await ask_all(server.endpoint, [question], at_once=1)
                    if enough.is_over:
                        break
                few = asked.questions[: min(len(references), 2 * QUICK.batch)]
                again = await ask_all(server.endpoint, few, at_once=QUICK.batch)
                if not asked.is_enough(heard()):
                    for question in asked.others:
                        references += await ask_all(server.endpoint, [question], at_once=1)
    finally:
        await to_the_end(server.stop())
    if not any(answer.is_ok for answer in references):
        why = references[0].error if references else "it did not answer in time"
        raise EngineError(f"the baseline gives no log-probabilities: {why}")
    return heard()
