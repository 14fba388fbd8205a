"""The lossless gate on real servers: a baseline, each arm, another baseline, asked the same in every way.

Servers run one after the other, as they must where two do not fit on one GPU: the first baseline writes the
references, the last is the control and scores what the arms sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from speclift.bench.asking import ask_all
from speclift.bench.observer import Observer
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import Arm, Endpoint, baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError
from speclift.core.results import is_complete
from speclift.core.traffic import Request, repeated_prompts
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.engines.kind import engine_kind, usable_kinds
from speclift.engines.protocol import Engine, Scorer, Server
from speclift.lossless.answers import Answer, compare
from speclift.lossless.calibration import TokenScore
from speclift.lossless.gate import Gate
from speclift.lossless.greedy import Control, control_of, gap_noise
from speclift.lossless.judge import (
    ALONE,
    BATCHED,
    EDGES,
    MORE_SAMPLED,
    SAMPLED,
    TURNS,
    WHOLE,
    JudgedArm,
    QuestionSet,
    ServerAnswers,
    gate_of,
    judge_answers,
    lossy_by_design,
    lossy_gate,
    sampled_pairs,
    unsettled_gate,
    with_equality,
)
from speclift.lossless.questions import (
    LISTED,
    QUICK,
    Depth,
    Question,
    edges,
    greedy_questions,
    sampled_questions,
    second_turns,
)
from speclift.lossless.recorded import Fresh
from speclift.lossless.sampled import is_identical, planned_tokens

PLANNED_VARIANCE = 0.15  # of one token's set membership; SmolLM2-135M at temperature 1 has 0.12 to 0.16


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAsk:
    """Everything that is compared, on which servers, and how much is asked."""

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
        judged = {arm.name: lossy_gate(arm, why) for arm in self._arms if (why := lossy[arm.name])}
        control: Control | None = None
        if runnable:
            try:
                async with ends_at(self._deadline, lambda: self._doing):
                    control = await self._ask_and_judge(runnable, judged)
            except BudgetSpent as spent:
                self.is_cut_short = True
                judged |= {arm.name: unsettled_gate(arm, "budget-spent", spent) for arm in runnable}
        gate = gate_of(
            [judged[arm.name] for arm in self._arms],
            depth=self._depth.name,
            detect=self._depth.detect,
            control=control,
        )
        return structs.replace(gate, wall_s=self._deadline.clock() - self._started_s)

    async def _ask_and_judge(self, runnable: Sequence[Arm], judged: dict[str, JudgedArm]) -> Control:
        """Every arm's gate into `judged`; without the references, each arm and the control nothing is settled."""
        self._require_time_for(len(runnable) + 2)
        questions = await self._ask_references()
        told: dict[str, ServerAnswers | EngineError] = {}
        for arm in runnable:
            told[arm.name] = await self._ask_arm(arm, questions)
        spoken = {name: each for name, each in told.items() if isinstance(each, ServerAnswers)}
        failures = [each for each in told.values() if isinstance(each, EngineError)]
        if not spoken:
            raise failures[0]
        control, scores = await self._control(questions, spoken)
        for arm in runnable:
            heard = told[arm.name]
            judged[arm.name] = (
                judge_answers(
                    arm, questions, heard, control, scores, detect=self._depth.detect, seed=self._seed
                )
                if isinstance(heard, ServerAnswers)
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

    async def _ask_references(self) -> QuestionSet:
        questions, depth = QuestionSet(), self._depth
        async with self._server(baseline_arm(), "references from the baseline") as server:
            endpoint = server.endpoint
            if 0.0 in self._temperatures:
                questions.greedy = greedy_questions(self._requests, depth, seed=self._seed)
                answers = await _references(endpoint, questions.greedy)
                questions.told.answers[ALONE] = answers
                questions.turns = second_turns(questions.greedy, answers, depth.turns)
                questions.edges = (
                    edges(questions.greedy, answers, leaves_out=depth.leaves_out) if depth.with_edges else ()
                )
                more = [replace(q, listed=questions.listed) for q in questions.turns]
                questions.told.answers[TURNS] = await ask_all(endpoint, more, at_once=1)
                asked = [replace(e.question, listed=questions.listed) for e in questions.edges]
                questions.told.answers[EDGES] = await ask_all(endpoint, asked, at_once=1)
            await self._sample_baseline(questions, server)
        return questions

    async def _sample_baseline(self, questions: QuestionSet, server: Server) -> None:
        scorer = await scorer_for(server.endpoint)
        hot = [value for value in self._temperatures if value > 0]
        if scorer is not None:
            questions.can_score, questions.scorer_settings = True, scorer.settings
            questions.ids_listed = scorer.listed
            # Hotter text cannot be scored there; the sampler that is tested is the same one.
            hot = list(dict.fromkeys(min(value, scorer.temperature_max) for value in hot))
        questions.sampled = self._with_scoring(
            sampled_questions(self._requests, hot, self._depth, seed=self._seed), questions
        )
        questions.told.answers[SAMPLED] = await ask_all(server.endpoint, questions.sampled, at_once=1)

    def _with_scoring(self, asked: Sequence[Question], questions: QuestionSet) -> tuple[Question, ...]:
        return tuple(
            replace(
                question,
                settings=questions.scorer_settings,
                listed=questions.ids_listed,
                wants_ids=questions.can_score,
            )
            for question in asked
        )

    async def _ask_arm(self, arm: Arm, questions: QuestionSet) -> ServerAnswers | EngineError:
        told, depth = ServerAnswers(), self._depth
        try:
            async with self._server(arm, "asking") as server:
                endpoint = server.endpoint
                streamed = [replace(question, stream=True) for question in questions.greedy]
                told.answers[ALONE] = await ask_all(endpoint, streamed, at_once=1)
                told.answers[BATCHED] = await ask_all(endpoint, streamed, at_once=depth.batch)
                told.answers[WHOLE] = await ask_all(endpoint, questions.greedy[: depth.whole], at_once=1)
                turns = [replace(question, stream=True) for question in questions.turns]
                told.answers[TURNS] = await ask_all(endpoint, turns, at_once=1)
                told.answers[EDGES] = await ask_all(
                    endpoint, [e.question for e in questions.edges], at_once=1
                )
                told.answers[SAMPLED] = await ask_all(endpoint, questions.sampled, at_once=1)
                if questions.can_score and not self._is_identical(questions, told):
                    await self._sample_more(questions, told, server)
                death = server.death()
                if death is not None:
                    return EngineError(
                        f"arm {arm.name} died during the lossless gate: {death.partition(chr(10))[0]}"
                    )
        except EngineError as error:
            return error
        return told

    async def _sample_more(self, questions: QuestionSet, told: ServerAnswers, server: Server) -> None:
        """Samples until there are enough tokens to find what is to be found, or time is up."""
        have = sum(answer.tokens or 0 for answer in told.of(SAMPLED))
        goal = math.ceil(planned_tokens(self._depth.detect) * PLANNED_VARIANCE / 0.25)
        hot = list(dict.fromkeys(question.temperature for question in questions.sampled))
        more: list[Question] = list(questions.more_sampled)
        answers: list[Answer] = await ask_all(server.endpoint, more, at_once=self._depth.batch)
        have += sum(answer.tokens or 0 for answer in answers)
        # The other half is for the control and for scoring what was sampled.
        enough = (
            self._deadline.keeping(self._deadline.left_s / 2) if self._deadline.is_set else self._deadline
        )
        while have < goal and not enough.is_over:
            wave = replace(
                self._depth, sampled_prompts=len(questions.sampled) + len(more) + 4 * self._depth.batch
            )
            fresh = sampled_questions(self._requests, hot, wave, seed=self._seed)
            wave_questions = self._with_scoring(fresh[len(questions.sampled) + len(more) :], questions)
            got = await ask_all(server.endpoint, wave_questions, at_once=self._depth.batch)
            more += wave_questions
            answers += got
            gained = sum(answer.tokens or 0 for answer in got)
            have += gained
            if not gained:
                break
        questions.more_sampled = tuple(more)
        told.answers[MORE_SAMPLED] = answers

    # The baseline again, and the judgement

    async def _control(
        self, questions: QuestionSet, told: dict[str, ServerAnswers]
    ) -> tuple[Control, dict[str, list[TokenScore]]]:
        async with self._server(baseline_arm(), "control: the baseline again") as server:
            control = await self._asked_again(questions, server)
            unlike = {
                name: answers for name, answers in told.items() if not self._is_identical(questions, answers)
            }
            is_scored = questions.sampled and questions.can_score and unlike
            scorer = await scorer_for(server.endpoint) if is_scored else None
            scores = await self._scores(questions, unlike, scorer) if scorer is not None else {}
        return control, scores

    async def _asked_again(self, questions: QuestionSet, server: Server) -> Control:
        """How far the baseline is from itself: within a batch, and alone."""
        references = questions.told.of(ALONE)
        batched = [replace(question, listed=questions.listed) for question in questions.greedy]
        again = await ask_all(server.endpoint, batched, at_once=self._depth.batch)
        streamed = [replace(question, stream=True) for question in questions.greedy]
        # Where margins are unknown the rate must tell, and needs as much of the control as of the arm.
        count = max(self._depth.whole, 1) if questions.listed else len(streamed)
        alone = await ask_all(server.endpoint, streamed[:count], at_once=1)
        pairs = {
            BATCHED: [compare(*pair) for pair in zip(references, again, strict=True)],
            ALONE: [compare(*pair) for pair in zip(references, alone, strict=False)],
        }
        noise = [gap for pair in zip(references, again, strict=True) for gap in gap_noise(*pair)]
        return control_of(pairs, noise)

    async def _scores(
        self, questions: QuestionSet, unlike: dict[str, ServerAnswers], scorer: Scorer
    ) -> dict[str, list[TokenScore]]:
        """Scores of the baseline and each of these arms; none where the server does not go along to the end."""
        scores, batch = {}, self._depth.batch
        try:
            baseline_answers = questions.told.of(SAMPLED)
            scores["baseline"] = await score_all(scorer, questions.sampled, baseline_answers, at_once=batch)
            for name, answers in unlike.items():
                self._observer.say(f"scoring the sampled answers of {name}")
                all_questions = (*questions.sampled, *questions.more_sampled)
                all_answers = [*answers.of(SAMPLED), *answers.of(MORE_SAMPLED)]
                scores[name] = await score_all(scorer, all_questions, all_answers, at_once=batch)
        except EngineError as error:
            self._observer.say(f"sampled answers are not scored: {error}")
            return {}
        return scores

    def _is_identical(self, questions: QuestionSet, told: ServerAnswers) -> bool:
        return is_identical(sampled_pairs(questions, told), detect=self._depth.detect)


async def _references(endpoint: Endpoint, questions: Sequence[Question]) -> list[Answer]:
    """Answers with as much beside the text as the server goes along with: some refuse fields that they do not know,
    some log-probabilities. Margins are then unknown, texts still compare."""
    answers: list[Answer] = []
    for listed, wants_ids in ((LISTED, True), (LISTED, False), (0, False)):
        listed_questions = [replace(question, listed=listed, wants_ids=wants_ids) for question in questions]
        answers = await ask_all(endpoint, listed_questions, at_once=1)
        if any(answer.is_ok for answer in answers):
            return answers
    raise EngineError(f"the baseline answers no request: {answers[0].error}")


async def run_gate(ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline) -> tuple[Gate, bool]:
    """The gate in full, and whether it was cut short before its last question."""
    run = GateRun(ask, logs=logs, observer=observer, deadline=deadline)
    gate = await run.run()
    if not run.is_cut_short:
        apart = logs / "invariant"
        gate = await settle_by_equality(gate, ask, logs=apart, observer=observer, deadline=deadline)
    return gate, run.is_cut_short


def arms_left_open(gate: Gate) -> frozenset[str]:
    """Names of the arms that arithmetic alone leaves open."""
    return frozenset(arm.arm for arm in gate.arms if arm.greedy.is_open_by_arithmetic)


async def settle_by_equality(
    gate: Gate, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline
) -> Gate:
    """The gate as it was where the engine has no such kernels."""
    open_arms = arms_left_open(gate)
    arms = [arm for arm in ask.arms if arm.name in open_arms]
    kind = engine_kind(ask.engine_spec.kind)
    invariant = kind.batch_invariant(ask.engine_spec) if arms else None
    if invariant is None:
        return gate
    launches = len(arms) + 2
    if not deadline.has(launches * ask.launch_s):
        return _noted(gate, f"{launches} launches did not fit the time that was left; try --verify full")
    observer.say(f"lossless gate: asking {', '.join(open_arms)} again with batch-invariant kernels")
    again = replace(
        ask,
        engine_spec=invariant,
        arms=arms,
        requests=_parted_first(gate, ask.requests),
        temperatures=(0.0,),
        depth=replace(ask.depth, batch=1),
    )
    run = GateRun(again, logs=logs, observer=observer, deadline=deadline)
    try:
        settled = await run.run()
    except EngineError as error:
        # Not every version takes them with every method; what ordinary servers said stands.
        return _noted(gate, f"no server started with them: {error}")
    return with_equality(gate, settled)


def _noted(gate: Gate, why: str) -> Gate:
    return structs.replace(gate, notes=(*gate.notes, f"batch-invariant kernels were not asked: {why}"))


def _parted_first(gate: Gate, requests: Sequence[Request]) -> tuple[Request, ...]:
    """A gate asks as many prompts as its depth says: those whose answers differed are the ones to settle."""
    parted = {case for arm in gate.arms for case in arm.greedy.parted}
    return tuple(sorted(requests, key=lambda request: request.id not in parted))


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
    """Scores of every answer whose token ids are known; EngineError where one cannot be scored or those of several
    are not known, for what is left out might be what is wrong."""
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
    scored = []
    for scores in await asyncio.gather(*(one(question, answer) for question, answer in given if answer.ids)):
        if isinstance(scores, EngineError):
            raise scores
        if scores:
            scored.append(scores)
    if not is_complete(asked=len(given), used=len(scored)):
        raise EngineError(f"the token ids of {len(given) - len(scored)} of {len(given)} answers are unknown")
    return [score for scores in scored for score in scores]


def always_enough(fresh: Fresh) -> bool:  # noqa: ARG001
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAgain:
    """The prompts that an arm parted on, and others, for where the answers to those are not enough."""

    questions: Sequence[Question]
    others: Sequence[Question] = ()
    is_enough: Callable[[Fresh], bool] = always_enough


async def ask_again(
    spec: EngineSpec, asked: AskedAgain, *, logs: Path, observer: Observer, deadline: Deadline
) -> Fresh:
    """Each prompt alone and again within a batch: the reference, and the noise of the baseline's arithmetic.

    Half of the time is for the first, so that both are there when it ends. Where that is not enough, the others: how
    often the baseline parts from itself shows on the prompts that nobody parted on as well.
    """
    differ = len(asked.questions)
    observer.say(f"lossless gate: {differ} answers differ; asking the baseline again for log-probabilities")
    references: list[Answer] = []
    again: list[Answer] = []

    def heard() -> Fresh:
        noise = [gap for pair in zip(references, again, strict=False) for gap in gap_noise(*pair)]
        return Fresh(
            references={answer.case: answer for answer in references if answer.is_ok}, noise=tuple(noise)
        )

    async with ends_at(deadline, lambda: "launching the baseline for the lossless gate"):
        server = await build_engine(spec).launch(baseline_arm(), log=logs / "baseline.log")
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
