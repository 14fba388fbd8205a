"""The lossless gate on real servers: a baseline, each arm, another baseline, asked the same in every way.

Servers run one after the other, as they must where two do not fit on one GPU: the first baseline writes the
references, the last is the control and scores what the arms sampled.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from speclift.bench.asking import ask_all
from speclift.bench.observer import Observer
from speclift.bench.scoring import score_all, scorer_for
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import Arm, Endpoint, baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError
from speclift.core.traffic import Request, repeated_prompts
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.engines.protocol import Engine, Scorer, Server
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore
from speclift.lossless.divergence import compare
from speclift.lossless.gate import ArmGate, Gate, Told, lossy_by_design, lossy_gate, unsettled_gate
from speclift.lossless.greedy import Control, control_of, gap_noise
from speclift.lossless.questions import (
    LISTED,
    Depth,
    Question,
    edges,
    greedy_questions,
    sampled_questions,
    second_turns,
)
from speclift.lossless.sampled import (
    is_identical,
    planned_tokens,
)
from speclift.lossless.script import (
    ALONE,
    BATCHED,
    EDGES,
    MORE_SAMPLED,
    SAMPLED,
    TURNS,
    WHOLE,
    Script,
    judge_told,
    sampled_pairs,
)

PLANNED_VARIANCE = 0.15  # of one token's set membership; SmolLM2-135M at temperature 1 has 0.12 to 0.16


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAsk:
    """What is compared, on which servers, and how much is asked."""

    engine_spec: EngineSpec
    arms: Sequence[Arm]
    requests: Sequence[Request]
    temperatures: Sequence[float]
    depth: Depth
    seed: int
    # What a launch is known to take, before the gate has seen one.
    launch_s: Seconds = 0.0


class GateRun:
    def __init__(self, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline) -> None:
        self._engine: Engine = build_engine(ask.engine_spec)
        self._arms = [arm for arm in ask.arms if arm.speculates]
        # What says the same is one prompt, whatever a file calls it.
        repeated = repeated_prompts(ask.requests)
        self._requests = [request for request in ask.requests if request.id not in repeated]
        self._temperatures, self._engine_args = ask.temperatures, ask.engine_spec.settings.engine_args
        self._depth, self._seed = ask.depth, ask.seed
        self._logs, self._observer = logs, observer
        self._deadline, self._started_s = deadline, deadline.clock()
        self._launches, self._launch_s = 0, ask.launch_s
        self._doing, self.is_cut_short = (
            "the lossless gate was starting",
            False,
        )  # cut short: before the last question

    async def run(self) -> Gate:
        lossy = {arm.name: lossy_by_design(arm, self._engine_args) for arm in self._arms}
        runnable = [arm for arm in self._arms if not lossy[arm.name]]
        if any(value > 0 for value in self._temperatures):
            self._observer.say(
                f"sampled: where the same seed gives other text, up to about {planned_tokens(self._depth.detect)} "
                f"tokens are scored to detect a deviation of {self._depth.detect:g} (--detect)"
            )
        gates: dict[str, ArmGate] = {
            arm.name: lossy_gate(arm, why) for arm in self._arms if (why := lossy[arm.name])
        }
        control: Control | None = None
        if runnable:
            try:
                async with ends_at(self._deadline, lambda: self._doing):
                    control = await self._ask_and_judge(runnable, gates)
            except BudgetSpent as spent:
                self.is_cut_short = True
                gates |= {arm.name: unsettled_gate(arm, "budget-spent", spent) for arm in runnable}
        return Gate(
            depth=self._depth.name,
            detect=self._depth.detect,
            planned_tokens=planned_tokens(self._depth.detect),
            control=control,
            arms=tuple(gates[arm.name] for arm in self._arms),
            wall_s=self._deadline.clock() - self._started_s,
        )

    async def _ask_and_judge(self, runnable: Sequence[Arm], gates: dict[str, ArmGate]) -> Control:
        """Every arm's gate into `gates`; without the references, each arm and the control nothing is settled."""
        self._require_time_for(len(runnable) + 2)
        script = await self._write_script()
        told: dict[str, Told | EngineError] = {}
        for arm in runnable:
            told[arm.name] = await self._ask_arm(arm, script)
        spoken = {name: each for name, each in told.items() if isinstance(each, Told)}
        failures = [each for each in told.values() if isinstance(each, EngineError)]
        if not spoken:
            raise failures[0]
        control, scores = await self._control(script, spoken)
        for arm in runnable:
            heard = told[arm.name]
            gates[arm.name] = (
                judge_told(arm, script, heard, control, scores, detect=self._depth.detect, seed=self._seed)
                if isinstance(heard, Told)
                else unsettled_gate(arm, "arm-failed", heard)
            )
        return control

    # Servers

    def _require_time_for(self, launches: int) -> None:
        if not self._deadline.has(launches * self._launch_s):
            raise BudgetSpent(self._deadline, f"the lossless gate still needed {launches} launches")

    @asynccontextmanager
    async def _server(self, arm: Arm, what: str) -> AsyncIterator[Server]:
        self._require_time_for(1)
        self._launches += 1
        self._doing = f"the lossless gate was running ({what}: {arm.name})"
        self._observer.say(f"{what}: {arm.name}")
        begun_s = self._deadline.clock()
        server = await self._engine.launch(arm, log=self._logs / f"{self._launches}-{arm.name}.log")
        self._launch_s = max(self._launch_s, self._deadline.clock() - begun_s)
        try:
            yield server
        finally:
            await to_the_end(server.stop())

    async def _write_script(self) -> Script:
        script, depth = Script(), self._depth
        async with self._server(baseline_arm(), "references from the baseline") as server:
            endpoint = server.endpoint
            if 0.0 in self._temperatures:
                script.greedy = greedy_questions(self._requests, depth, seed=self._seed)
                answers = await _references(endpoint, script.greedy)
                script.told.answers[ALONE] = answers
                script.turns = second_turns(script.greedy, answers, depth.turns)
                script.edges = (
                    edges(script.greedy, answers, leaves_out=depth.leaves_out) if depth.with_edges else ()
                )
                more = [replace(q, listed=script.listed) for q in script.turns]
                script.told.answers[TURNS] = await ask_all(endpoint, more, at_once=1)
                asked = [replace(e.question, listed=script.listed) for e in script.edges]
                script.told.answers[EDGES] = await ask_all(endpoint, asked, at_once=1)
            await self._sample_baseline(script, server)
        return script

    async def _sample_baseline(self, script: Script, server: Server) -> None:
        scorer = await scorer_for(server.endpoint)
        hot = [value for value in self._temperatures if value > 0]
        if scorer is not None:
            script.can_score, script.scorer_settings = True, scorer.settings
            script.ids_listed = scorer.listed
            # Hotter text cannot be scored there; the sampler that is tested is the same one.
            hot = list(dict.fromkeys(min(value, scorer.temperature_max) for value in hot))
        script.sampled = self._with_scoring(
            sampled_questions(self._requests, hot, self._depth, seed=self._seed), script
        )
        script.told.answers[SAMPLED] = await ask_all(server.endpoint, script.sampled, at_once=1)

    def _with_scoring(self, questions: Sequence[Question], script: Script) -> tuple[Question, ...]:
        return tuple(
            replace(
                question,
                settings=script.scorer_settings,
                listed=script.ids_listed,
                wants_ids=script.can_score,
            )
            for question in questions
        )

    async def _ask_arm(self, arm: Arm, script: Script) -> Told | EngineError:
        told, depth = Told(), self._depth
        try:
            async with self._server(arm, "asking") as server:
                endpoint = server.endpoint
                streamed = [replace(question, stream=True) for question in script.greedy]
                told.answers[ALONE] = await ask_all(endpoint, streamed, at_once=1)
                told.answers[BATCHED] = await ask_all(endpoint, streamed, at_once=depth.batch)
                told.answers[WHOLE] = await ask_all(endpoint, script.greedy[: depth.whole], at_once=1)
                turns = [replace(question, stream=True) for question in script.turns]
                told.answers[TURNS] = await ask_all(endpoint, turns, at_once=1)
                told.answers[EDGES] = await ask_all(endpoint, [e.question for e in script.edges], at_once=1)
                told.answers[SAMPLED] = await ask_all(endpoint, script.sampled, at_once=1)
                if script.can_score and not self._is_identical(script, told):
                    await self._sample_more(script, told, server)
                death = server.death()
                if death is not None:
                    return EngineError(
                        f"arm {arm.name} died during the lossless gate: {death.partition(chr(10))[0]}"
                    )
        except EngineError as error:
            return error
        return told

    async def _sample_more(self, script: Script, told: Told, server: Server) -> None:
        """Until there are enough tokens to find what is to be found, or time is up."""
        have = sum(answer.tokens or 0 for answer in told.of(SAMPLED))
        goal = math.ceil(planned_tokens(self._depth.detect) * PLANNED_VARIANCE / 0.25)
        hot = list(dict.fromkeys(question.temperature for question in script.sampled))
        more: list[Question] = list(script.more_sampled)
        answers: list[Answer] = await ask_all(server.endpoint, more, at_once=self._depth.batch)
        have += sum(answer.tokens or 0 for answer in answers)
        # The other half is for the control and for scoring what was sampled.
        enough = (
            self._deadline.keeping(self._deadline.left_s / 2) if self._deadline.is_set else self._deadline
        )
        while have < goal and not enough.is_over:
            wave = replace(
                self._depth, sampled_prompts=len(script.sampled) + len(more) + 4 * self._depth.batch
            )
            fresh = sampled_questions(self._requests, hot, wave, seed=self._seed)
            asked = self._with_scoring(fresh[len(script.sampled) + len(more) :], script)
            got = await ask_all(server.endpoint, asked, at_once=self._depth.batch)
            more += asked
            answers += got
            gained = sum(answer.tokens or 0 for answer in got)
            have += gained
            if not gained:
                break
        script.more_sampled = tuple(more)
        told.answers[MORE_SAMPLED] = answers

    # The baseline again, and the judgement

    async def _control(
        self, script: Script, told: dict[str, Told]
    ) -> tuple[Control, dict[str, list[TokenScore]]]:
        async with self._server(baseline_arm(), "control: the baseline again") as server:
            control = await self._asked_again(script, server)
            unlike = {name: each for name, each in told.items() if not self._is_identical(script, each)}
            is_scored = script.sampled and script.can_score and unlike
            scorer = await scorer_for(server.endpoint) if is_scored else None
            scores = await self._scores(script, unlike, scorer) if scorer is not None else {}
        return control, scores

    async def _asked_again(self, script: Script, server: Server) -> Control:
        """How far the baseline is from itself: within a batch, and alone."""
        references = script.told.of(ALONE)
        batched = [replace(question, listed=script.listed) for question in script.greedy]
        again = await ask_all(server.endpoint, batched, at_once=self._depth.batch)
        streamed = [replace(question, stream=True) for question in script.greedy]
        # Where margins are unknown the rate must tell, and needs as much of the control as of the arm.
        count = max(self._depth.whole, 1) if script.listed else len(streamed)
        alone = await ask_all(server.endpoint, streamed[:count], at_once=1)
        pairs = {
            BATCHED: [compare(*pair) for pair in zip(references, again, strict=True)],
            ALONE: [compare(*pair) for pair in zip(references, alone, strict=False)],
        }
        noise = [gap for pair in zip(references, again, strict=True) for gap in gap_noise(*pair)]
        return control_of(pairs, noise)

    async def _scores(
        self, script: Script, unlike: dict[str, Told], scorer: Scorer
    ) -> dict[str, list[TokenScore]]:
        """Of the baseline and each of these arms; none where the server does not go along to the end."""
        scores, batch = {}, self._depth.batch
        try:
            own = script.told.of(SAMPLED)
            scores["baseline"] = await score_all(scorer, script.sampled, own, at_once=batch)
            for name, each in unlike.items():
                self._observer.say(f"scoring the sampled answers of {name}")
                asked = (*script.sampled, *script.more_sampled)
                said = [*each.of(SAMPLED), *each.of(MORE_SAMPLED)]
                scores[name] = await score_all(scorer, asked, said, at_once=batch)
        except EngineError as error:
            self._observer.say(f"sampled answers are not scored: {error}")
            return {}
        return scores

    def _is_identical(self, script: Script, told: Told) -> bool:
        return is_identical(sampled_pairs(script, told), detect=self._depth.detect)


async def _references(endpoint: Endpoint, questions: Sequence[Question]) -> list[Answer]:
    """With as much beside the text as the server goes along with: some refuse fields that they do not know, some
    log-probabilities. Margins are then unknown, texts still compare."""
    answers: list[Answer] = []
    for listed, wants_ids in ((LISTED, True), (LISTED, False), (0, False)):
        asked = [replace(question, listed=listed, wants_ids=wants_ids) for question in questions]
        answers = await ask_all(endpoint, asked, at_once=1)
        if any(answer.is_ok for answer in answers):
            return answers
    raise EngineError(f"the baseline answers no request: {answers[0].error}")
