"""The soak as a part of the gate: of verify for as long as asked, of decide for a share of its time.

From arms and an engine to servers under load, what was seen kept in the study's folder, and what it came to.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from speclift.bench.asking import ask_all
from speclift.bench.gate_run import score_all, scorer_for
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.soak_load import SoakLoad
from speclift.bench.soak_run import (
    ANSWER_LIMIT_MAX_S,
    REPRODUCING_SHARE,
    SoakRun,
    Witness,
    answer_limit_s,
)
from speclift.bench.soak_study import (
    Kept,
    Reproduced,
    SoakRecord,
    SoakStudy,
    SoakTerms,
    Tested,
    is_suspect,
    request_of,
    soak_of,
)
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import BASELINE, Arm, baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError, StudyError, UsageError
from speclift.core.quantities import duration
from speclift.core.traffic import Request
from speclift.core.units import Seconds, Tokens
from speclift.engines.build import build_engine
from speclift.engines.kind import engine_kind
from speclift.engines.protocol import Engine, Scorer, Server
from speclift.lossless.answers import Answer
from speclift.lossless.calibration import TokenScore
from speclift.lossless.gate import Distribution, FaultRate, Soak, SoakResult
from speclift.lossless.questions import FULL, Question, sampled_questions
from speclift.lossless.sampled import judge_scores
from speclift.lossless.soak.reproduction import Reproduction, Trial, reproduction_of, reproduction_script
from speclift.lossless.soak.traffic import SPARE_SLOTS, SoakKind, SoakTraffic, soak_traffic
from speclift.lossless.soak.values import SoakAnswer, SoakRequest, Stage
from speclift.studies.private import write_private

# Fewer seconds do not even launch the servers.
SOAK_MIN_S = 5.0
TOKENS_MAX = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSettings:
    """The settings that a soak is run with."""

    engine_spec: EngineSpec
    # Those that speculate.
    arms: Sequence[Arm]
    soak_s: Seconds
    levels: tuple[int, ...]
    launches: int
    seed: int
    # The user's own prompts, which are sent among the others.
    prompts: Sequence[Request] = ()
    # Prompts whose sampled answers are held against the target's probabilities; none: no such test.
    sampled: Sequence[Request] = ()
    detect: float = FULL.detect
    tokens_max: Tokens | None = None
    # As asked for; else those of the traffic itself.
    temperatures: tuple[float, ...] = ()
    keeps_text: bool = True
    study: Path
    resumes: bool = False
    # One that can find faults and is too short to clear anybody.
    is_short: bool = False
    leaves_out: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.soak_s < SOAK_MIN_S:
            raise UsageError(
                f"--soak must be at least {duration(SOAK_MIN_S)}, saw {duration(self.soak_s)}",
                hint="--soak 10m",
            )

    @property
    def spec_under_load(self) -> EngineSpec:
        kind, streams = engine_kind(self.engine_spec.kind), max(self.levels)
        spec = self.engine_spec
        return replace(
            spec,
            settings=kind.under_load(spec.settings, streams=streams),
            by_arm=tuple(
                (name, kind.under_load(arm_settings, streams=streams)) for name, arm_settings in spec.by_arm
            ),
        )


def begin_soak(settings: SoakSettings) -> SoakSettings:
    """Its folder, before anything is asked: from then on it can be resumed."""
    if settings.resumes:
        return settings
    engine = build_engine(settings.spec_under_load)
    arms = (baseline_arm(), *settings.arms)
    _opened(settings, engine, arms, _traffic(settings, engine)).close()
    return replace(settings, resumes=True)


def check_soak(settings: SoakSettings, observer: Observer, *, deadline: Deadline) -> Soak:
    """The result of what was seen by the end of the time, or until a signal came: then it is partial, and --resume
    goes on."""
    engine = build_engine(settings.spec_under_load)
    arms = (baseline_arm(), *settings.arms)
    traffic = _traffic(settings, engine)
    study = _opened(settings, engine, arms, traffic)
    kind = engine_kind(settings.engine_spec.kind)
    run = SoakRun(
        engine,
        study,
        arms=arms,
        traffic=traffic,
        launch_guess_s=kind.launch_guess_s,
        samples=bool(settings.sampled) and any(traffic.temperatures),
        launches_anew=kind.launches,
        observer=observer,
        deadline=deadline,
    )
    observer.say(
        f"soak: {duration(settings.soak_s)} with {', '.join(map(str, settings.levels))} requests at once on the "
        f"baseline and {len(settings.arms)} {'arm' if len(settings.arms) == 1 else 'arms'}"
    )

    def come_to(*, interrupted: bool = False) -> Soak:
        return soak_of(
            study.terms,
            study.record,
            settings.arms,
            study=settings.study,
            is_short=settings.is_short,
            interrupted=interrupted,
        )

    async def work() -> None:
        await run.run()
        if run.has_time_to_sample and not is_suspect(study.record):
            sampling = Sampling(run, settings.sampled, detect=settings.detect)
            await sampling.run(settings.arms)
        await Reproducing(run).run(settings.arms, come_to().faults)

    is_interrupted = False
    try:
        run_until_signal(work())
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        study.close()
    return come_to(interrupted=is_interrupted)


def _traffic(settings: SoakSettings, engine: Engine) -> SoakTraffic:
    kind = engine_kind(settings.engine_spec.kind)
    traffic = soak_traffic(
        seed=settings.seed,
        dialect=kind.soak_dialect(engine.version()),
        prompts=settings.prompts,
        tokens_max=min(settings.tokens_max or TOKENS_MAX, settings.engine_spec.settings.context_tokens // 4),
        context_tokens=settings.engine_spec.settings.context_tokens,
        honours_seeds=kind.honours_seeds,
    )
    chosen = traffic.without(SoakKind(kind) for kind in settings.leaves_out)
    if not chosen.kinds:
        raise UsageError(
            "--leave-out leaves nothing to send",
            hint=f"keep at least one of {', '.join(sorted(traffic.kinds))}",
        )
    return replace(chosen, temperatures=settings.temperatures) if settings.temperatures else chosen


def _opened(settings: SoakSettings, engine: Engine, arms: Sequence[Arm], traffic: SoakTraffic) -> SoakStudy:
    terms = SoakTerms(
        soak_s=settings.soak_s,
        levels=settings.levels,
        launches=settings.launches if engine_kind(settings.engine_spec.kind).launches else 1,
        seed=settings.seed,
        arms=tuple(arm.name for arm in arms),
        fingerprint=_fingerprint(engine, arms, traffic),
        keeps_text=settings.keeps_text,
    )
    if not settings.resumes:
        return SoakStudy.create(settings.study, terms)
    study = SoakStudy.reopen(settings.study)
    if study.terms.format != terms.format:
        study.close()
        raise UsageError(
            f"the soak in {settings.study} was begun by another version of speclift, which asked other things",
            hint="begin it anew in another --study",
        )
    if replace(study.terms, soak_s=terms.soak_s) != terms:
        study.close()
        raise UsageError(
            f"the soak in {settings.study} was begun with other settings",
            hint="repeat its command with --resume; only --soak and --budget may change",
        )
    study.terms = terms
    return study


def _fingerprint(engine: Engine, arms: Sequence[Arm], traffic: SoakTraffic) -> str:
    """A hash of servers, arms and traffic: a soak may only be resumed where it is equal."""
    kinds = sorted(traffic.kinds)
    traffic_words = repr(replace(traffic, kinds=frozenset()))
    everything = [engine.version(), *(engine.command(arm, port=0) for arm in arms), kinds, traffic_words]
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


# Where a server takes longer than this to start, nothing is tried again in the time that is left.
TRYING_MIN_S = 1.0


class Reproducing:
    """Faults of a soak, asked for again on a fresh launch with less and less around them until the time is up; what is
    left of each becomes a script to attach to a bug report."""

    def __init__(self, run: SoakRun) -> None:
        self._run, self._record = run, run.study.record
        self._deadline = run.rest(REPRODUCING_SHARE * run.study.terms.soak_s)

    async def run(self, arms: Sequence[Arm], rates: Sequence[FaultRate]) -> None:
        """A script for every fault that has none, those that could not be tried again included."""
        for arm in arms:
            found = [rate for rate in rates if rate.arm == arm.name and rate.result is SoakResult.FOUND]
            cases = [
                (rate, kept)
                for rate in found
                if rate.script is None
                and (kept := next((kept for kept in self._record.kept if _shows(kept, rate)), None))
            ]
            if cases:
                await self._reproduce(arm, cases)

    async def _reproduce(self, arm: Arm, cases: Sequence[tuple[FaultRate, Kept]]) -> None:
        server: Server | None = None
        with suppress(BudgetSpent):
            async with ends_at(self._deadline.keeping(TRYING_MIN_S), lambda: "a fault was tried again"):
                self._run.observer.say(f"reproducing what {arm.name} showed")
                try:
                    log = self._run.log(f"again-{arm.name}")
                    server = await self._run.engine.launch(arm, log=log)
                except EngineError as error:
                    self._run.observer.say(f"{arm.name} did not start again: {error}")
        try:
            for place, (rate, kept) in enumerate(cases):
                share_s = max(0.0, self._deadline.left_s) / (len(cases) - place)
                begun = self._begun(rate, kept)
                found = begun if server is None else await self._tried(arm, begun, server, share_s)
                self._write(arm, found, server)
        finally:
            if server is not None:
                await to_the_end(server.stop())

    def _begun(self, rate: FaultRate, culprit: Kept) -> Reproduction:
        exposure = culprit.answer.exposure
        return reproduction_of(
            rate.name,
            request_of(culprit, self._run.traffic),
            companions=[request_of(row, self._run.traffic) for row in _beside(self._record, culprit)],
            streams=exposure.streams_max,
            rate=rate.rate,
        )

    async def _tried(self, arm: Arm, found: Reproduction, server: Server, share_s: Seconds) -> Reproduction:
        """The reproduction made as much smaller as there was time for."""
        ends_s = time.monotonic() + share_s
        limit_s = answer_limit_s(self._record, arm.name)
        load = SoakLoad(server, arm=arm.name, launch=0, clock=time.monotonic, limit_s=limit_s)
        while time.monotonic() < ends_s and not load.failure and (trial := found.ask()) is not None:
            attempts, faulty = await self._try(trial, found, load, ends_s)
            if not faulty and attempts < trial.attempts_max:
                break  # the time is up, and so few attempts say nothing
            found = found.told(trial, attempts=attempts, faulty=faulty)
        return found

    async def _try(
        self, trial: Trial, found: Reproduction, load: SoakLoad, ends_s: Seconds
    ) -> tuple[int, int]:
        """How many attempts were answered, and how many of them show the fault: the first one is enough."""
        witness, counting = Witness(), set[int]()
        attempts = faulty = 0

        def openings() -> Iterator[SoakRequest]:
            for request, counts in trial.requests():
                if counts:
                    counting.add(request.index)
                yield witness.sending(request)

        def take(request: SoakRequest, answer: SoakAnswer) -> None:
            nonlocal attempts, faulty
            if request.index in counting:
                attempts += 1
                faulty += bool(witness.judge(request, answer).get(found.fault))

        await load.ask(
            openings(),
            streams=trial.setup.streams,
            stage=Stage.DURING,
            left_s=lambda: 0.0 if faulty else ends_s - time.monotonic(),
            take=take,
        )
        return attempts, faulty

    def _write(self, arm: Arm, found: Reproduction, server: Server | None) -> None:
        path = self._run.study.folder / f"{found.fault}-{_file_name(arm.name)}.py"
        about = f"{self._run.engine.name} {self._run.engine.version()}, {arm.name}"
        own_url = {"url": server.endpoint.base_url} if server is not None and not server.process_ids() else {}
        script = reproduction_script(
            found.fault,
            found.smallest,
            rate=found.rate,
            model=self._run.engine.model if server is None else server.endpoint.model,
            about=about if found.is_confirmed else f"{about} (seen in the soak, not seen again)",
            **own_url,
        )
        try:
            write_private(path, script)
        except OSError as error:
            raise StudyError(f"cannot write {path}: {error.strerror or error}") from error
        self._run.study.keep(
            Reproduced(
                arm=arm.name,
                fault=found.fault,
                script=path.name,
                is_confirmed=found.is_confirmed,
                streams=found.smallest.streams,
                elapsed_s=self._run.elapsed_s,
            )
        )
        self._run.observer.say(
            f"{arm.name}, {found.fault}: "
            + (
                f"seen again with {found.smallest.streams} at once, {len(found.smallest.companions)} other requests"
                if found.is_confirmed
                else "not seen again in the time there was"
            )
        )


def _shows(kept: Kept, rate: FaultRate) -> bool:
    return kept.answer.exposure.arm == rate.arm and any(seen.fault is rate.name for seen in kept.seen)


def _beside(record: SoakRecord, culprit: Kept) -> list[Kept]:
    """Answers that were under way at the same server with it."""
    place = culprit.answer.exposure
    return [
        row
        for row in record.kept
        if row is not culprit
        and (row.answer.exposure.arm, row.answer.exposure.launch) == (place.arm, place.launch)
        and row.answer.exposure.sent_s < place.ended_s
        and row.answer.exposure.ended_s > place.sent_s
    ]


def _file_name(arm: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in arm)


# Of the time that is left: asking under load, all servers together; the rest is for telling how likely it was.
ASKING_SHARE = 0.5
# Kept back of the time, so that what was scored by then is judged.
TELLING_S = 0.5


@dataclass(slots=True)
class AnsweredUnderLoad:
    questions: list[Question] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


class Sampling:
    """Tests whether an arm samples as the target does also under load: the gate's sampled test on answers given
    meanwhile.

    The baseline answers under the same load as the control and, once nothing else is asked of it, tells how likely
    all of these answers are. Where it cannot, nothing is claimed.
    """

    def __init__(self, run: SoakRun, prompts: Sequence[Request], *, detect: float) -> None:
        self._run, self._prompts, self._detect = run, prompts, detect
        self._deadline = run.rest(run.study.terms.soak_s)

    async def run(self, arms: Sequence[Arm]) -> None:
        left = [arm for arm in arms if arm.name not in {row.arm for row in self._run.study.record.tested}]
        if not left or not self._prompts:
            return
        self._run.observer.say("sampling under load: " + ", ".join(arm.name for arm in left))
        try:
            with suppress(BudgetSpent):
                async with ends_at(self._deadline, lambda: "answers under load were scored"):
                    await self._test(left)
        except EngineError as error:
            self._run.observer.say(f"answers under load are not scored: {error}")

    async def _test(self, arms: Sequence[Arm]) -> None:
        begun_s, all_s = time.monotonic(), self._deadline.left_s
        servers = (baseline_arm(), *arms)
        answered: dict[str, AnsweredUnderLoad] = {}
        scorer: Scorer | None = None
        for place, arm in enumerate(servers):
            async with self._up(arm) as server:
                if arm.name == BASELINE:
                    scorer = await scorer_for(server.endpoint)
                    if scorer is None:
                        self._run.observer.say(
                            "the server does not tell probabilities: no test of them under load"
                        )
                        return
                assert scorer is not None
                spent_s = time.monotonic() - begun_s
                share_s = max(0.0, ASKING_SHARE * all_s - spent_s) / (len(servers) - place)
                answered[arm.name] = await self._ask(server, arm, scorer, share_s)
        async with self._up(baseline_arm()) as server:
            scorer = await scorer_for(server.endpoint)
            if scorer is not None:
                await self._score(scorer, answered)

    @asynccontextmanager
    async def _up(self, arm: Arm) -> AsyncIterator[Server]:
        server = await self._run.engine.launch(arm, log=self._run.log(f"sampling-{arm.name}"))
        try:
            yield server
        finally:
            await to_the_end(server.stop())

    async def _ask(self, server: Server, arm: Arm, scorer: Scorer, share_s: Seconds) -> AnsweredUnderLoad:
        """The same questions of every server in the same order, as many as there is time for, beside the load."""
        ends_s = time.monotonic() + share_s
        streams = max(self._run.study.terms.levels)
        load = SoakLoad(server, arm=arm.name, launch=0, clock=time.monotonic, limit_s=ANSWER_LIMIT_MAX_S)

        def left_s() -> Seconds:
            return ends_s - time.monotonic()

        def take(_request: SoakRequest, _answer: SoakAnswer) -> None:
            return None

        loading = asyncio.create_task(
            load.ask(
                map(self._run.traffic.opening, itertools.count(SPARE_SLOTS)),
                streams=max(1, streams // 2),
                stage=Stage.DURING,
                left_s=left_s,
                take=take,
            )
        )
        answered, wave = AnsweredUnderLoad(), max(1, streams // 2)
        try:
            while left_s() > 0 and not load.failure:
                count = len(answered.questions) + wave
                questions = self._questions(scorer, count)[len(answered.questions) :]
                answered.answers += await ask_all(server.endpoint, questions, at_once=wave)
                answered.questions += questions
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        return answered

    def _questions(self, scorer: Scorer, count: int) -> list[Question]:
        hot = dict.fromkeys(
            min(value, scorer.temperature_max) for value in self._run.traffic.temperatures if value > 0
        )
        depth = replace(FULL, sampled_prompts=count, sampled_tokens=self._run.traffic.tokens_max)
        questions = sampled_questions(self._prompts, tuple(hot), depth, seed=self._run.study.terms.seed + 1)
        return [
            replace(question, settings=scorer.settings, listed=scorer.listed, wants_ids=True)
            for question in questions
        ]

    async def _score(self, scorer: Scorer, said: dict[str, AnsweredUnderLoad]) -> None:
        """Wave after wave of all servers' answers, so that whatever time there is goes to all of them alike."""
        scores: dict[str, list[TokenScore]] = {name: [] for name in said}
        longest = max((len(answered.questions) for answered in said.values()), default=0)
        wave = max(1, max(self._run.study.terms.levels) // 2)
        with suppress(BudgetSpent):
            async with ends_at(self._deadline.keeping(TELLING_S), lambda: "answers under load were scored"):
                for start in range(0, longest, wave):
                    for name, answered in said.items():
                        questions, answers = (
                            answered.questions[start : start + wave],
                            answered.answers[start : start + wave],
                        )
                        scores[name] += await score_all(scorer, questions, answers, at_once=wave)
        for name in said:
            if name != BASELINE and scores[name]:
                judged = judge_scores(scores[name], scores[BASELINE], detect=self._detect)
                self._run.study.keep(
                    Tested(
                        arm=name,
                        distribution=Distribution(
                            result=judged.result,
                            message=judged.message,
                            tokens=judged.tokens,
                            tokens_needed=judged.tokens_needed,
                            detectable=judged.detectable,
                        ),
                        elapsed_s=self._run.elapsed_s,
                    )
                )
