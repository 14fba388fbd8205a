"""Whether an arm samples as the target does also under load: the gate's sampled test on answers given amid the fire.

The baseline answers amid the same fire as the control and, once nothing else is asked of it, tells how likely all of
these answers are. Where it cannot, nothing is claimed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from speclift.bench.asking import ask_all
from speclift.bench.observer import Observer
from speclift.bench.scoring import score_all, scorer_for
from speclift.bench.soak_fire import Fire
from speclift.bench.soak_result import offered
from speclift.bench.soak_run import ANSWER_LIMIT_MAX_S
from speclift.bench.soak_study import SoakStudy, Tested
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import BASELINE, Arm, baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError
from speclift.core.traffic import Request
from speclift.core.units import Seconds
from speclift.engines.protocol import Engine, Scorer, Server
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore
from speclift.lossless.questions import FULL, Question, sampled_questions
from speclift.lossless.sampled import judge_scores
from speclift.lossless.soak.outcome import Distribution
from speclift.lossless.soak.traffic import SPARE_SLOTS, SoakTraffic
from speclift.lossless.soak.values import SoakAnswer, SoakRequest, Stage

# Of the time that is left: asking amid the fire, all servers together; the rest is for telling how likely it was.
ASKING_SHARE = 0.5
# Kept back of the time, so that what was scored by then is judged.
TELLING_S = 0.5


@dataclass(slots=True)
class SaidUnderLoad:
    questions: list[Question] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class Sampling:
    def __init__(
        self,
        engine: Engine,
        traffic: SoakTraffic,
        study: SoakStudy,
        *,
        prompts: Sequence[Request],
        detect: float,
        observer: Observer,
        deadline: Deadline,
        elapsed_s: Callable[[], Seconds],
    ) -> None:
        self._engine, self._study = engine, study
        self._traffic = offered(traffic, study.record)
        self._prompts, self._detect = prompts, detect
        self._observer, self._deadline, self._elapsed_s = observer, deadline, elapsed_s
        self._logs: Path = study.folder / "logs"

    async def run(self, arms: Sequence[Arm]) -> None:
        left = [arm for arm in arms if arm.name not in {each.arm for each in self._study.record.tested}]
        if not left or not self._prompts:
            return
        self._observer.say("sampling amid the fire: " + ", ".join(arm.name for arm in left))
        try:
            with suppress(BudgetSpent):
                async with ends_at(self._deadline, lambda: "answers under load were scored"):
                    await self._test(left)
        except EngineError as error:
            self._observer.say(f"answers under load are not scored: {error}")

    async def _test(self, arms: Sequence[Arm]) -> None:
        begun_s, all_s = time.monotonic(), self._deadline.left_s
        servers = (baseline_arm(), *arms)
        said: dict[str, SaidUnderLoad] = {}
        scorer: Scorer | None = None
        for place, arm in enumerate(servers):
            async with self._up(arm) as server:
                if arm.name == BASELINE:
                    scorer = await scorer_for(server.endpoint)
                    if scorer is None:
                        self._observer.say(
                            "the server does not tell probabilities: no test of them under load"
                        )
                        return
                assert scorer is not None
                spent_s = time.monotonic() - begun_s
                share_s = max(0.0, ASKING_SHARE * all_s - spent_s) / (len(servers) - place)
                said[arm.name] = await self._ask(server, arm, scorer, share_s)
        async with self._up(baseline_arm()) as server:
            scorer = await scorer_for(server.endpoint)
            if scorer is not None:
                await self._score(scorer, said)

    @asynccontextmanager
    async def _up(self, arm: Arm) -> AsyncIterator[Server]:
        server = await self._engine.launch(arm, log=self._logs / f"sampling-{arm.name}.log")
        try:
            yield server
        finally:
            await to_the_end(server.stop())

    async def _ask(self, server: Server, arm: Arm, scorer: Scorer, share_s: Seconds) -> SaidUnderLoad:
        """The same questions of every server in the same order, as many as there is time for, beside the fire."""
        ends_s = time.monotonic() + share_s
        streams = max(self._study.terms.levels)
        fire = Fire(server, arm=arm.name, launch=0, clock=time.monotonic, limit_s=ANSWER_LIMIT_MAX_S)

        def left_s() -> Seconds:
            return ends_s - time.monotonic()

        def heed(_request: SoakRequest, _answer: SoakAnswer) -> None:
            return None

        burning = asyncio.create_task(
            fire.ask(
                map(self._traffic.opening, itertools.count(SPARE_SLOTS)),
                streams=max(1, streams // 2),
                stage=Stage.DURING,
                left_s=left_s,
                heed=heed,
            )
        )
        said, wave = SaidUnderLoad(), max(1, streams // 2)
        try:
            while left_s() > 0 and not fire.failure:
                count = len(said.questions) + wave
                asked = self._questions(scorer, count)[len(said.questions) :]
                said.answers += await ask_all(server.endpoint, asked, at_once=wave)
                said.questions += asked
        finally:
            burning.cancel()
            await asyncio.gather(burning, return_exceptions=True)
        return said

    def _questions(self, scorer: Scorer, count: int) -> list[Question]:
        hot = dict.fromkeys(
            min(value, scorer.temperature_max) for value in self._traffic.temperatures if value > 0
        )
        depth = replace(FULL, sampled_prompts=count, sampled_tokens=self._traffic.tokens_max)
        questions = sampled_questions(self._prompts, tuple(hot), depth, seed=self._study.terms.seed + 1)
        return [
            replace(question, settings=scorer.settings, listed=scorer.listed, wants_ids=True)
            for question in questions
        ]

    async def _score(self, scorer: Scorer, said: dict[str, SaidUnderLoad]) -> None:
        """Wave after wave of all servers' answers, so that whatever time there is goes to all of them alike."""
        scores: dict[str, list[TokenScore]] = {name: [] for name in said}
        longest = max((len(each.questions) for each in said.values()), default=0)
        wave = max(1, max(self._study.terms.levels) // 2)
        with suppress(BudgetSpent):
            async with ends_at(self._deadline.keeping(TELLING_S), lambda: "answers under load were scored"):
                for start in range(0, longest, wave):
                    for name, each in said.items():
                        questions, answers = (
                            each.questions[start : start + wave],
                            each.answers[start : start + wave],
                        )
                        scores[name] += await score_all(scorer, questions, answers, at_once=wave)
        for name in said:
            if name != BASELINE and scores[name]:
                judged = judge_scores(scores[name], scores[BASELINE], detect=self._detect)
                self._study.keep(
                    Tested(
                        arm=name,
                        distribution=Distribution(
                            result=judged.result,
                            message=judged.message,
                            tokens=judged.tokens,
                            tokens_needed=judged.tokens_needed,
                            detectable=judged.detectable,
                        ),
                        elapsed_s=self._elapsed_s(),
                    )
                )
