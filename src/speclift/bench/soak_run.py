"""A soak on real servers: the baseline as the control and each arm under the same fire, launch after launch.

Servers run one after the other, as they must where two do not fit on one GPU: baseline, arms, baseline, arms. In each
launch one stream before the fire, then as many as asked for, then one again; every arm is asked what the baseline was
asked, so that their exposures compare. Time is shared evenly; what one leaves over, the next ones have.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from speclift.bench.observer import Observer
from speclift.bench.soak_fire import Fire
from speclift.bench.soak_offer import extras_of
from speclift.bench.soak_result import offered
from speclift.bench.soak_study import Kept, Launched, Offered, SoakRecord, SoakStep, SoakStepEnded, SoakStudy
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import BASELINE, Arm
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError
from speclift.core.units import Seconds
from speclift.engines.protocol import Engine, Server
from speclift.lossless.soak.faults import HeldAgainst, exposed_to, faults_of
from speclift.lossless.soak.traffic import REFUSALS, SoakKind, SoakTraffic, refused_kinds
from speclift.lossless.soak.values import FaultSeen, SoakAnswer, SoakFault, SoakRequest, Stage, slot_of

# Of a launch's time: one stream before the fire and one after it; the rest is shared by the numbers of streams.
ALONE_SHARE = 0.1
# Fresh launches give fresh chances, but what is launching is not under fire.
LAUNCHING_SHARE_MAX = 0.5
# Once faults were seen that the control does not show, so much of the time is left to find out what causes them.
REPRODUCING_SHARE = 0.25
# Without any, where answers above temperature 0 can be tested: for that.
SAMPLING_SHARE = 0.2
# One answer under fire: no end within it is a hang. Of an arm, so many times what the baseline's slowest took.
ANSWER_LIMIT_MIN_S, ANSWER_LIMIT_MAX_S = 10.0, 120.0
SLOWEST_TIMES = 8.0
TELL_EVERY_S = 1.0
BRIEF_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakAsk:
    # The baseline first.
    arms: Sequence[Arm]
    traffic: SoakTraffic
    # Until a launch was seen.
    launch_guess_s: Seconds
    # Whether what an arm samples under load is tested in the end, where there is time.
    samples: bool = False


def _brief(request: SoakRequest) -> SoakRequest:
    """To see whether it is refused, a few tokens are enough."""
    body = {**json.loads(request.body), "max_tokens": BRIEF_TOKENS}
    return replace(request, body=json.dumps(body), leaves_after_s=None)


def answer_limit_s(record: SoakRecord, arm: str) -> Seconds:
    took = [
        kept.answer.exposure.ended_s - kept.answer.exposure.sent_s
        for kept in record.kept
        if kept.answer.exposure.arm == BASELINE and not kept.answer.is_hung
    ]
    if arm == BASELINE or not took:
        return ANSWER_LIMIT_MAX_S
    return min(max(ANSWER_LIMIT_MIN_S, SLOWEST_TIMES * max(took)), ANSWER_LIMIT_MAX_S)


def steps_of(levels: Sequence[int]) -> tuple[SoakStep, ...]:
    """Of every launch."""
    during = (SoakStep(stage=Stage.DURING, streams=streams) for streams in levels)
    return (SoakStep(stage=Stage.BEFORE, streams=1), *during, SoakStep(stage=Stage.AFTER, streams=1))


class Witness:
    """What one launch of a server said so far, against which the next answer is held."""

    def __init__(self) -> None:
        self._nonces: set[str] = set()
        self._alone: dict[int, SoakAnswer] = {}

    def sending(self, request: SoakRequest) -> SoakRequest:
        """Its nonce may turn up elsewhere before it is answered itself."""
        if request.nonce:
            self._nonces.add(request.nonce)
        return request

    def judge(
        self, request: SoakRequest, answer: SoakAnswer
    ) -> tuple[tuple[SoakFault, ...], tuple[FaultSeen, ...]]:
        if answer.exposure.stage is Stage.BEFORE:
            self._alone.setdefault(request.index, answer)
        held = HeldAgainst(nonces=self._nonces, alone=self._alone.get(request.index))
        return exposed_to(request, answer, held), faults_of(request, answer, held)


class SoakRun:
    def __init__(
        self,
        engine: Engine,
        ask: SoakAsk,
        study: SoakStudy,
        *,
        logs: Path,
        observer: Observer,
        deadline: Deadline,
        is_suspect: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_suspect`: whether what was seen so far is worth the time to reproduce it."""
        self._engine, self._ask, self._study = engine, ask, study
        self._logs, self._observer = logs, observer
        self._terms, self._record = study.terms, study.record
        self._steps = steps_of(study.terms.levels)
        self._before_s, self._begun_s = study.record.elapsed_s, time.monotonic()
        left_s = max(0.0, study.terms.soak_s - self._before_s)
        self._deadline = Deadline(
            clock=deadline.clock,
            at_s=min(deadline.at_s, deadline.clock() + left_s),
            budget_s=min(deadline.budget_s, study.terms.soak_s),
        )
        self._is_suspect = is_suspect
        self._doing = "the soak was starting"
        self._told_s = 0.0

    @property
    def elapsed_s(self) -> Seconds:
        """Over every run of this soak."""
        return self._before_s + time.monotonic() - self._begun_s

    async def run(self) -> None:
        """Until the time is up; what was seen is in the study."""
        try:
            async with ends_at(self._deadline, lambda: self._doing):
                for launch in range(1, self._terms.launches + 1):
                    await self._round(launch)
                    if self._is_over:
                        return
        except BudgetSpent as spent:
            if not self._record.kept:
                self._observer.say(str(spent))

    def rest(self, limit_s: Seconds) -> Deadline:
        """What is left of the time, at most so much."""
        now_s = self._deadline.clock()
        return replace(self._deadline, at_s=min(self._deadline.at_s, now_s + limit_s))

    @property
    def _left_s(self) -> Seconds:
        return self._deadline.left_s - self._kept_back_s

    @property
    def _is_over(self) -> bool:
        return self._left_s <= 0

    @property
    def _kept_back_s(self) -> Seconds:
        """For reproducing, once there is something to reproduce; else for the test of what is sampled."""
        if self._is_suspect():
            return REPRODUCING_SHARE * self._terms.soak_s
        return SAMPLING_SHARE * self._terms.soak_s if self.has_time_to_sample else 0.0

    @property
    def has_time_to_sample(self) -> bool:
        """Every server and the baseline once more have to be launched for it."""
        launching_s = (len(self._ask.arms) + 1) * self._launch_s
        return self._ask.samples and LAUNCHING_SHARE_MAX * SAMPLING_SHARE * self._terms.soak_s >= launching_s

    @property
    def _launch_s(self) -> Seconds:
        took = [each.took_s for each in self._record.launched if each.took_s]
        return max(took, default=self._ask.launch_guess_s)

    # Launches

    async def _round(self, launch: int) -> None:
        """One launch of every server. The last rounds fall away where launching would take up the time."""
        arms = [arm for arm in self._ask.arms if not self._is_done(arm.name, launch)]
        left_s = self._left_s
        planned = self._terms.launches - launch + 1
        affordable = int(LAUNCHING_SHARE_MAX * left_s / max(1e-6, len(self._ask.arms) * self._launch_s))
        if launch > 1 and not affordable:
            return
        round_ends_s = self.elapsed_s + left_s / max(1, min(planned, affordable))
        for place, arm in enumerate(arms):
            if self._is_over:
                return
            if arm.name != BASELINE and not self._has_control(launch):
                self._observer.say(f"launch {launch}: {arm.name} is left out, for the baseline was not asked")
                continue
            ends_s = self.elapsed_s + (round_ends_s - self.elapsed_s) / (len(arms) - place)
            await self._serve(arm, launch, ends_s=ends_s)

    def _has_control(self, launch: int) -> bool:
        return any(self._record.slots(BASELINE, launch, step) for step in self._steps)

    def _is_done(self, arm: str, launch: int) -> bool:
        ended = all((arm, launch, step) in self._record.ended for step in self._steps)
        return ended or bool(self._record.failure(arm, launch))

    async def _serve(self, arm: Arm, launch: int, *, ends_s: Seconds) -> None:
        self._doing = f"the soak launched {arm.name}"
        self._observer.launching(arm.name, launch - 1)
        begun_s = time.monotonic()
        try:
            server = await self._engine.launch(arm, log=self._logs / f"{launch}-{arm.name}.log")
        except EngineError as error:
            tail = f"\n{error.log_tail}" if error.log_tail else ""
            self._fail(arm.name, launch, f"did not start: {error}{tail}")
            if arm.name == BASELINE and not self._record.kept:
                raise
            return
        self._study.keep(
            Launched(arm=arm.name, launch=launch, took_s=time.monotonic() - begun_s, elapsed_s=self.elapsed_s)
        )
        try:
            if self._record.offered is None:
                await self._see_offered(server)
            await self._burn(server, arm.name, launch, ends_s=ends_s)
        finally:
            await to_the_end(server.stop())

    def _fail(self, arm: str, launch: int, failure: str) -> None:
        self._study.keep(
            Launched(arm=arm, launch=launch, took_s=0.0, failure=failure, elapsed_s=self.elapsed_s)
        )
        self._observer.say(f"{arm} {failure.partition(chr(10))[0]}")

    @property
    def _traffic(self) -> SoakTraffic:
        return offered(self._ask.traffic, self._record)

    async def _see_offered(self, server: Server) -> None:
        """Which kinds of requests the baseline refuses: what it does not offer is nobody's fault."""
        asked: list[tuple[SoakRequest, SoakAnswer]] = []
        extras = await extras_of(server.endpoint)
        traffic = self._ask.traffic.offering(adapters=extras.adapters, banned=extras.banned)

        def heed(request: SoakRequest, answer: SoakAnswer) -> None:
            asked.append((request, answer))

        fire = Fire(server, arm=BASELINE, launch=0, clock=time.monotonic, limit_s=ANSWER_LIMIT_MAX_S)
        streams = max(self._terms.levels)
        for _ in range(REFUSALS):
            left = traffic.kinds - {SoakKind(r.kind) for r, a in asked if a.is_whole or a.left}
            requests = [_brief(_first_of(traffic, kind)) for kind in sorted(left)]
            await fire.ask(
                requests, streams=streams, stage=Stage.BEFORE, left_s=lambda: self._left_s, heed=heed
            )
        refused = refused_kinds((request.kind, answer) for request, answer in asked)
        if refused.keys() >= traffic.kinds:
            raise EngineError(f"the baseline answers no request: {next(iter(refused.values()))}")
        self._study.keep(
            Offered(
                refused=tuple((kind.value, words) for kind, words in refused.items()),
                adapters=extras.adapters,
                banned=extras.banned,
                elapsed_s=self.elapsed_s,
            )
        )

    # Steps

    async def _burn(self, server: Server, arm: str, launch: int, *, ends_s: Seconds) -> None:
        arm_s, begun_s = self._record.arm_s(arm), time.monotonic()
        fire = Fire(
            server,
            arm=arm,
            launch=launch,
            clock=lambda: arm_s + time.monotonic() - begun_s,
            limit_s=answer_limit_s(self._record, arm),
        )
        witness = Witness()
        left = [step for step in self._steps if (arm, launch, step) not in self._record.ended]
        for place, step in enumerate(left):
            weights = [self._weight(each) for each in left[place:]]
            step_ends_s = self.elapsed_s + (ends_s - self.elapsed_s) * weights[0] / sum(weights)
            await fire.ask(
                (witness.sending(self._traffic.opening(slot)) for slot in self._slots(arm, launch, step)),
                streams=step.streams,
                stage=step.stage,
                left_s=partial(self._until_s, step_ends_s),
                heed=partial(self._heed, step, witness),
            )
            if fire.failure:
                self._fail(arm, launch, fire.failure)
                return
            self._study.keep(SoakStepEnded(arm=arm, launch=launch, step=step, elapsed_s=self.elapsed_s))
            if self._is_over:
                return

    def _weight(self, step: SoakStep) -> float:
        """Many streams at once answer more in a second, and each of them later."""
        if step.stage is not Stage.DURING:
            return ALONE_SHARE
        waves = [1 + math.log2(streams) for streams in self._terms.levels]
        return (1 - 2 * ALONE_SHARE) * (1 + math.log2(step.streams)) / sum(waves)

    def _until_s(self, ends_s: Seconds) -> Seconds:
        return min(ends_s - self.elapsed_s, self._left_s)

    def _heed(
        self, step: SoakStep, witness: Witness, request: SoakRequest, answer: SoakAnswer
    ) -> SoakRequest | None:
        exposed, seen = witness.judge(request, answer)
        self._study.keep(
            Kept(
                step=step,
                kind=request.kind,
                answer=answer,
                exposed=exposed,
                seen=seen,
                request=request if request.turn else None,
                prompt_id=request.prompt_id,
                elapsed_s=self.elapsed_s,
            )
        )
        self._tell(answer.exposure.arm, answer.exposure.launch, step)
        return self._traffic.following(request, answer)

    def _slots(self, arm: str, launch: int, step: SoakStep) -> Iterator[int]:
        """What is still to be asked: of the baseline as much as there is time for, of the others the same."""
        asked = set(self._record.slots(arm, launch, step))
        given = (
            self._for_baseline(launch, step)
            if arm == BASELINE
            else iter(sorted(self._record.slots(BASELINE, launch, step)))
        )
        return (slot for slot in given if slot not in asked)

    def _for_baseline(self, launch: int, step: SoakStep) -> Iterator[int]:
        before = sorted(self._record.slots(BASELINE, launch, self._steps[0]))
        if step.stage is Stage.AFTER:
            return iter(before)
        others = [
            slot_of(kept.answer.index)
            for kept in self._record.kept
            if not (kept.step == step and kept.answer.exposure.launch == launch)
        ]
        fresh = itertools.count(max(others, default=-1) + 1)
        # What was asked alone is asked again in company: the same request tells what the load did to it.
        again = before if step.stage is Stage.DURING and step.streams > 1 else []
        return itertools.chain(again, fresh)

    def _tell(self, arm: str, launch: int, step: SoakStep) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        self._observer.soaking(
            arm,
            launch=launch,
            stage=step.stage.value,
            streams=step.streams,
            requests=len(self._record.kept),
            faults=self._record.odd,
            done=min(1.0, self.elapsed_s / self._terms.soak_s),
            left_s=max(0.0, self._deadline.left_s),
        )


def _first_of(traffic: SoakTraffic, kind: SoakKind) -> SoakRequest:
    return replace(traffic, kinds=frozenset({kind})).opening(0)
