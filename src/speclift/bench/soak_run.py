"""A soak on real servers: the baseline as the control and each arm under the same load, launch after launch.

Servers run one after the other, as they must where two do not fit on one GPU: baseline, arms, baseline, arms. In each
launch one stream before the load, then as many as asked for, then one again; every arm is asked what the baseline was
asked, so that their exposures compare. Time is shared evenly; what one leaves over, the next ones have.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from speclift.bench.observer import Observer
from speclift.bench.soak_load import SoakLoad
from speclift.bench.soak_study import (
    Kept,
    Launched,
    Offered,
    SoakRecord,
    SoakStep,
    SoakStepEnded,
    SoakStudy,
    is_suspect,
    offered,
)
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.address import joined
from speclift.core.arm import BASELINE, Arm, Endpoint
from speclift.core.deadline import Deadline
from speclift.core.engine_totals import ACCEPTED, DRAFTED, counted_between, engine_total
from speclift.core.errors import EngineError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import as_list, as_object, as_objects, as_text, as_whole, need_whole
from speclift.core.records import Counters
from speclift.core.units import Seconds, Tokens
from speclift.engines.protocol import Engine, Server
from speclift.http.client import fetched, post_to
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.faults import HeldAgainst, looked_at
from speclift.lossless.soak.prompts import SoakDialect
from speclift.lossless.soak.traffic import (
    REFUSALS,
    SCALES,
    SPARE_SLOTS,
    Pace,
    SoakKind,
    SoakTraffic,
    pace_of,
    refused_kinds,
    scale_for,
    slot_s,
)
from speclift.lossless.soak.values import FaultSeen, SoakAnswer, SoakRequest, Stage, slot_of

# Of a launch's time: one stream before the load and one after it; the rest is shared by the numbers of streams.
LOGS = "logs"
ALONE_SHARE = 0.07
# Of an arm's time in a round, the baseline's: what excludes a fault is the arm's requests, and a control speaks for
# more than its own. Beyond the baseline's requests an arm is asked so many more, as a share of them.
BASELINE_WEIGHT = 0.65
BEYOND_SHARE = 0.5
# Of the time of an arm's launches, what it answers at full speed: the rest is one stream alone, requests that come
# again, and the last answers of a step, which fewer streams wait for.
FULL_SPEED_SHARE = 0.5
# Fresh launches give fresh chances, but what is launching is not under load, and a server has to answer so many times
# its streams before most of its answers began and ended under load. Time that is left over in the end is shared less
# strictly: it would go unused.
LAUNCHING_SHARE_MAX, LAST_LAUNCHING_SHARE_MAX = 0.5, 0.75
LAUNCH_WAVES = 4
# Once faults were seen that the control does not show, so much of the time is left to find out what causes them.
REPRODUCING_SHARE = 0.25
# Without any, where answers above temperature 0 can be tested and there is time for whole ones: for that.
SAMPLING_SHARE = 0.2
# Nothing new is sent while the last answers of a step end: so many times what an answer takes on the average, for some
# take longer; of the step, at most this share.
LAST_TIMES, LAST_SHARE_MAX = 1.5, 0.4
# One answer under load: no end within it is a hang. Of an arm, so many times what the baseline's slowest took.
ANSWER_LIMIT_MIN_S, ANSWER_LIMIT_MAX_S = 10.0, 120.0
SLOWEST_TIMES = 8.0
TELL_EVERY_S = 1.0
# To see whether requests are refused, and how fast others are answered.
BRIEF_TOKENS, BRIEF_CONTEXT_TOKENS = 8, 256


def brief(request: SoakRequest) -> SoakRequest:
    """The request with a few tokens for an answer, until its end."""
    body = {**json.loads(request.body), "max_tokens": BRIEF_TOKENS}
    if "min_tokens" in body:
        body["min_tokens"] = min(body["min_tokens"], BRIEF_TOKENS)
    return replace(request, body=json.dumps(body), leaves_after_s=None, leaves_after_chunks=None)


def answer_limit_s(record: SoakRecord, arm: str) -> Seconds:
    took = [
        row.answer.exposure.ended_s - row.answer.exposure.sent_s
        for row in record.kept
        if row.answer.exposure.arm == BASELINE and not row.answer.is_hung
    ]
    if arm == BASELINE or not took:
        return ANSWER_LIMIT_MAX_S
    return min(max(ANSWER_LIMIT_MIN_S, SLOWEST_TIMES * max(took)), ANSWER_LIMIT_MAX_S)


def steps_of(levels: Sequence[int]) -> tuple[SoakStep, ...]:
    """The steps of every launch."""
    during = (SoakStep(stage=Stage.DURING, streams=streams) for streams in levels)
    return (SoakStep(stage=Stage.BEFORE, streams=1), *during, SoakStep(stage=Stage.AFTER, streams=1))


def answering_s(round_s: Seconds, arm: str, *, later: int, launch_s: Seconds) -> Seconds:
    """The seconds of a round's rest that are this server's, which is up: so many arms have still to be launched after
    it, and to be asked as long as the first of them."""
    weight = BASELINE_WEIGHT if arm == BASELINE else 1.0
    return max(0.0, round_s - later * launch_s) * weight / (weight + later)


def slots_for(
    record: SoakRecord, levels: Sequence[int], arm: str, launch: int, step: SoakStep
) -> Iterator[int]:
    """Slots still to be asked of a server in this step: of the baseline as much as there is time for, of an arm the
    same first, and some more."""
    done = record.slots(arm, launch, step)
    return (slot for slot in _given(record, levels, arm, launch, step) if slot not in done)


def _given(record: SoakRecord, levels: Sequence[int], arm: str, launch: int, step: SoakStep) -> Iterator[int]:
    before = sorted(record.slots(arm, launch, steps_of(levels)[0]))
    if step.stage is Stage.AFTER:
        return iter(before)
    # What was asked alone is asked again in company: the same request tells what the load did to it.
    again = before if step.stage is Stage.DURING and step.streams == max(levels) > 1 else []
    common = [] if arm == BASELINE else sorted(record.slots(BASELINE, launch, step) - {*again})
    beyond = None if arm == BASELINE else math.floor(BEYOND_SHARE * len(common))
    elsewhere = (
        slot_of(row.answer.index)
        for row in record.kept
        if not (row.step == step and row.answer.exposure.launch == launch)
    )
    fresh = itertools.count(max(itertools.chain(elsewhere, common), default=-1) + 1)
    return itertools.chain(again, common, itertools.islice(fresh, beyond))


class Witness:
    """Answers of one launch of a server so far, against which the next answer is held."""

    def __init__(self) -> None:
        self._nonces: set[str] = set()
        self._alone: dict[int, SoakAnswer] = {}

    def sending(self, request: SoakRequest) -> SoakRequest:
        """Its nonce may turn up elsewhere before it is answered itself."""
        if request.nonce:
            self._nonces.add(request.nonce)
        return request

    def judge(self, request: SoakRequest, answer: SoakAnswer) -> dict[SoakFault, str]:
        """The faults that the answer could show, each with what shows it or ""."""
        if answer.exposure.stage is Stage.BEFORE:
            self._alone.setdefault(request.index, answer)
        return looked_at(
            request, answer, HeldAgainst(nonces=self._nonces, alone=self._alone.get(request.index))
        )


class SoakRun:
    def __init__(
        self,
        engine: Engine,
        study: SoakStudy,
        *,
        arms: Sequence[Arm],
        traffic: SoakTraffic,
        launch_guess_s: Seconds,
        samples: bool = False,
        launches_anew: bool = True,
        observer: Observer,
        deadline: Deadline,
    ) -> None:
        """The baseline is the first of the arms. `launch_guess_s`: until a launch was seen. `samples`: whether what an
        arm samples under load is tested in the end, where there is time. `launches_anew`: not where servers are
        somebody else's, which are no fresh launch when they are asked again."""
        self.engine, self.study, self.observer = engine, study, observer
        self._arms, self._all_traffic = arms, traffic
        self._launch_guess_s, self._samples, self._launches_anew = launch_guess_s, samples, launches_anew
        self._terms, self._record = study.terms, study.record
        self._steps = steps_of(study.terms.levels)
        self._before_s, self._begun_s = study.record.elapsed_s, time.monotonic()
        left_s = max(0.0, study.terms.soak_s - self._before_s)
        self._deadline = Deadline(
            clock=deadline.clock,
            at_s=min(deadline.at_s, deadline.clock() + left_s),
            budget_s=min(deadline.budget_s, study.terms.soak_s),
        )
        self._doing = "the soak was starting"
        self._told_s = 0.0
        self._round_ends_s = 0.0

    def log(self, name: str) -> Path:
        return self.study.folder / LOGS / f"{name}.log"

    @property
    def traffic(self) -> SoakTraffic:
        """The traffic as far as the baseline takes it."""
        return offered(self._all_traffic, self._record)

    @property
    def elapsed_s(self) -> Seconds:
        """The seconds over every run of this soak."""
        return self._before_s + time.monotonic() - self._begun_s

    async def run(self) -> None:
        """Runs until the time is up; what was seen is in the study."""
        try:
            async with ends_at(self._deadline, lambda: self._doing):
                launch = 1
                while not self._is_over and (launch <= self._terms.launches or self._has_time_for_more):
                    await self._round(launch)
                    launch += 1
        except BudgetSpent as spent:
            if not self._record.kept:
                self.observer.say(str(spent))

    def rest(self, limit_s: Seconds) -> Deadline:
        """The time that is left, at most so much."""
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
        """The seconds for reproducing, once there is something to reproduce; else for the test of what is sampled."""
        if is_suspect(self._record):
            return REPRODUCING_SHARE * self._terms.soak_s
        return SAMPLING_SHARE * self._terms.soak_s if self.has_time_to_sample else 0.0

    @property
    def has_time_to_sample(self) -> bool:
        """Every server and the baseline once more have to be launched for it, and thousands of tokens sampled."""
        is_slow = self._record.offered is not None and self._record.offered.scale <= SCALES[-1]
        launching_s = (len(self._arms) + 1) * self._launch_s
        has_time = LAUNCHING_SHARE_MAX * SAMPLING_SHARE * self._terms.soak_s >= launching_s
        return self._samples and has_time and not is_slow

    @property
    def _launch_s(self) -> Seconds:
        took = [launched.took_s for launched in self._record.launched if launched.took_s]
        return max(took, default=self._launch_guess_s)

    # Launches

    @property
    def _has_time_for_more(self) -> bool:
        """Than the launches asked for: arms that were done early leave time, and fresh launches give fresh chances."""
        has_failed = any(launched.failure for launched in self._record.launched)
        return self._launches_anew and self._has_time_for_a_round and not has_failed

    @property
    def _has_time_for_a_round(self) -> bool:
        return self._rounds_in_time(LAST_LAUNCHING_SHARE_MAX) > 0

    def _rounds_in_time(self, launching_share: float) -> int:
        """The number that fits what is left: launches of every server that take up no more than their share and are
        worth it."""
        waves_s = LAUNCH_WAVES * max(self._terms.levels) * self._slot_s
        round_s = len(self._arms) * max(self._launch_s / launching_share, self._launch_s + waves_s)
        return int(self._left_s / max(1e-6, round_s))

    @property
    def _slot_s(self) -> Seconds:
        return 0.0 if self._record.offered is None else self._record.offered.slot_s

    def _rounds_left(self, launch: int) -> int:
        """The number with this one, which is there anyway."""
        return max(1, min(self._terms.launches - launch + 1, self._rounds_in_time(LAUNCHING_SHARE_MAX)))

    async def _round(self, launch: int) -> None:
        """One launch of every server. The last rounds fall away where launching would take up the time."""
        arms = [arm for arm in self._arms if not self._is_done(arm.name, launch)]
        if launch > 1 and not self._has_time_for_a_round:
            return
        self._round_ends_s = self.elapsed_s + self._left_s / self._rounds_left(launch)
        for place, arm in enumerate(arms):
            if self._is_over:
                return
            if arm.name != BASELINE and not self._has_control(launch):
                self.observer.say(f"launch {launch}: {arm.name} is left out, for the baseline was not asked")
                continue
            await self._serve(arm, launch, later=len(arms) - place - 1)

    def _has_control(self, launch: int) -> bool:
        return any(self._record.slots(BASELINE, launch, step) for step in self._steps)

    def _is_done(self, arm: str, launch: int) -> bool:
        ended = all((arm, launch, step) in self._record.ended for step in self._steps)
        return ended or bool(self._record.failure(arm, launch))

    async def _serve(self, arm: Arm, launch: int, *, later: int) -> None:
        """`later`: how many arms come after it in this round."""
        self._doing = f"the soak launched {arm.name}"
        self.observer.launching(arm.name, launch - 1)
        begun_s = time.monotonic()
        try:
            server = await self.engine.launch(arm, log=self.log(f"{launch}-{arm.name}"))
        except EngineError as error:
            tail = f"\n{error.log_tail}" if error.log_tail else ""
            self._fail(arm.name, launch, f"did not start: {error}{tail}")
            if arm.name == BASELINE and not self._record.kept:
                raise
            return
        self.study.keep(
            Launched(arm=arm.name, launch=launch, took_s=time.monotonic() - begun_s, elapsed_s=self.elapsed_s)
        )
        try:
            if self._record.offered is None:
                await self._see_offered(server)
                # How many launches are worth it shows only now, and what this took is nobody's.
                rounds = self._rounds_left(launch)
                self._round_ends_s = self.elapsed_s + self._left_s / rounds
                if rounds < self._terms.launches:
                    self.observer.say(
                        f"{rounds} of {self._terms.launches} launches of each server fit the time"
                    )
            round_s = self._round_ends_s - self.elapsed_s
            own_s = answering_s(round_s, arm.name, later=later, launch_s=self._launch_s)
            await self._run_launch(server, arm.name, launch, ends_s=self.elapsed_s + own_s)
        finally:
            await to_the_end(server.stop())

    def _fail(self, arm: str, launch: int, failure: str) -> None:
        self.study.keep(
            Launched(arm=arm, launch=launch, took_s=0.0, failure=failure, elapsed_s=self.elapsed_s)
        )
        self.observer.say(f"{arm} {failure.partition(chr(10))[0]}")

    async def _see_offered(self, server: Server) -> None:
        """Keeps which kinds of requests the baseline refuses, for what it does not offer is nobody's fault; and how
        long they may be, so that there is time for enough of them."""
        extras = await capabilities_of(server.endpoint, self._all_traffic.dialect)
        traffic = self._all_traffic.offering(adapters=extras.adapters, banned=extras.banned)
        openings = [_first_of(traffic, kind) for kind in sorted(traffic.kinds)]
        answered, pace = await self._ask_briefly(server, openings)
        unanswered = [request for request, answer in answered if not answer.is_whole]
        for _ in range(REFUSALS - 1):
            answered += (await self._ask_briefly(server, unanswered))[0]
        refused = refused_kinds((request.kind, answer) for request, answer in answered)
        if refused.keys() >= traffic.kinds:
            raise EngineError(f"the baseline answers no request: {next(iter(refused.values()))}")
        scale, pace = await self._see_scale(server, traffic.without(refused), pace)
        self.study.keep(
            Offered(
                refused=tuple((kind.value, words) for kind, words in refused.items()),
                adapters=extras.adapters,
                banned=extras.banned,
                scale=scale,
                slot_s=slot_s(replace(traffic.without(refused), scale=scale), pace),
                elapsed_s=self.elapsed_s,
            )
        )

    async def _see_scale(self, server: Server, traffic: SoakTraffic, pace: Pace) -> tuple[float, Pace]:
        """The scale with the pace that it follows from."""
        scale = scale_for(traffic, pace, seconds=self._full_speed_s)
        if scale < 1:
            # What comes first may have been slow for once: programs compiled, weights read.
            short = replace(traffic, context_tokens=BRIEF_CONTEXT_TOKENS)
            again = [short.opening(SPARE_SLOTS + slot) for slot in range(max(self._terms.levels))]
            _, second = await self._ask_briefly(server, again)
            pace = max(pace, second, key=lambda each: each.work_per_s)
            scale = scale_for(traffic, pace, seconds=self._full_speed_s)
        if scale < 1:
            self.observer.say(
                f"most answers are asked for at {scale:.0%} of full length: there is time for no more"
            )
        return scale, pace

    async def _ask_briefly(
        self, server: Server, requests: Sequence[SoakRequest]
    ) -> tuple[list[tuple[SoakRequest, SoakAnswer]], Pace]:
        """All of them at once, for a few tokens each; what is said counts for nothing."""
        answered: list[tuple[SoakRequest, SoakAnswer]] = []

        def take(request: SoakRequest, answer: SoakAnswer) -> None:
            answered.append((request, answer))

        load = SoakLoad(server, arm=BASELINE, launch=0, clock=time.monotonic, limit_s=ANSWER_LIMIT_MAX_S)
        begun_s = time.monotonic()
        await load.ask(
            map(brief, requests),
            streams=max(self._terms.levels),
            stage=Stage.BEFORE,
            left_s=lambda: self._left_s,
            take=take,
        )
        return answered, pace_of(answered, time.monotonic() - begun_s)

    @property
    def _full_speed_s(self) -> Seconds:
        """The seconds left to each arm: as if it answered at full speed all the time."""
        servers = len(self._arms) - 1 + BASELINE_WEIGHT
        # The first baseline is up.
        launching_s = self._launch_s * (len(self._arms) * self._rounds_left(1) - 1)
        return FULL_SPEED_SHARE * max(0.0, self._left_s - launching_s) / servers

    # Steps

    async def _run_launch(self, server: Server, arm: str, launch: int, *, ends_s: Seconds) -> None:
        arm_s, begun_s = self._record.arm_s(arm), time.monotonic()
        load = SoakLoad(
            server,
            arm=arm,
            launch=launch,
            clock=lambda: arm_s + time.monotonic() - begun_s,
            limit_s=answer_limit_s(self._record, arm),
        )
        witness = Witness()
        counted = await self._counters(server, arm)
        left = [step for step in self._steps if (arm, launch, step) not in self._record.ended]
        for place, step in enumerate(left):
            weights = [self._weight(later) for later in left[place:]]
            step_s = (ends_s - self.elapsed_s) * weights[0] / sum(weights)
            # What is under way ends within the step, so that the next one has its time.
            last_s = min(step_s * LAST_SHARE_MAX, LAST_TIMES * step.streams * self._slot_s)
            sent_until_s = self.elapsed_s + step_s - last_s
            await load.ask(
                (
                    witness.sending(self.traffic.opening(slot))
                    for slot in slots_for(self._record, self._terms.levels, arm, launch, step)
                ),
                streams=step.streams,
                stage=step.stage,
                left_s=partial(self._until_s, sent_until_s),
                take=partial(self._take, step, witness),
            )
            if load.failure:
                self._fail(arm, launch, load.failure)
                return
            earlier, counted = counted, await self._counters(server, arm)
            drafted, accepted = _drafts_between(earlier, counted)
            self.study.keep(
                SoakStepEnded(
                    arm=arm,
                    launch=launch,
                    step=step,
                    drafted=drafted,
                    accepted=accepted,
                    elapsed_s=self.elapsed_s,
                )
            )
            if self._is_over:
                return

    async def _counters(self, server: Server, arm: str) -> Counters | None:
        """The counters, only of an arm whose answers do not say themselves what was drafted for them."""
        if arm == BASELINE or self._record.tells_drafts(arm):
            return None
        try:
            return await server.counters()
        except EngineError:
            return None

    def _weight(self, step: SoakStep) -> float:
        """Many streams at once answer more in a second, and each of them later."""
        if step.stage is not Stage.DURING:
            return ALONE_SHARE
        waves = [1 + math.log2(streams) for streams in self._terms.levels]
        return (1 - 2 * ALONE_SHARE) * (1 + math.log2(step.streams)) / sum(waves)

    def _until_s(self, ends_s: Seconds) -> Seconds:
        return min(ends_s - self.elapsed_s, self._left_s)

    def _take(
        self, step: SoakStep, witness: Witness, request: SoakRequest, answer: SoakAnswer
    ) -> SoakRequest | None:
        looks = witness.judge(request, answer)
        self.study.keep(
            Kept(
                step=step,
                kind=request.kind,
                answer=answer,
                exposed=tuple(looks),
                seen=tuple(
                    FaultSeen(fault=fault, index=request.index, evidence=evidence)
                    for fault, evidence in looks.items()
                    if evidence
                ),
                request=request if request.turn else None,
                prompt_id=request.prompt_id,
                elapsed_s=self.elapsed_s,
            )
        )
        self._tell(answer.exposure.arm, answer.exposure.launch, step)
        return self.traffic.following(request, answer)

    def _tell(self, arm: str, launch: int, step: SoakStep) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        self.observer.soaking(
            arm,
            launch=launch,
            stage=step.stage.value,
            streams=step.streams,
            requests=len(self._record.kept),
            faults=self._record.odd,
            done=min(1.0, self.elapsed_s / self._terms.soak_s),
            left_s=max(0.0, self._deadline.left_s),
        )


def _drafts_between(earlier: Counters | None, later: Counters | None) -> tuple[Tokens | None, Tokens | None]:
    """Drafted and accepted; None where the server does not count them, or counts what cannot be."""
    if earlier is None or later is None:
        return None, None
    counted, _ = counted_between(earlier, later)
    drafted, accepted = engine_total(counted, DRAFTED), engine_total(counted, ACCEPTED)
    return (None, None) if drafted is None or accepted is None else (int(drafted), int(accepted))


def _first_of(traffic: SoakTraffic, kind: SoakKind) -> SoakRequest:
    """A request of the kind whose prompt is soon read."""
    return replace(traffic, kinds=frozenset({kind}), context_tokens=BRIEF_CONTEXT_TOKENS).opening(0)


# What a server offers beside its model, as far as it says so

ADAPTERS_MAX = 4
# Digits that are told apart from any number by its tokens, and a number that shows whether they are.
FORBIDDEN, YEAR = "379", "3797"


async def capabilities_of(endpoint: Endpoint, dialect: SoakDialect) -> Offered:
    """Nothing of what a server does not answer."""
    adapters = adapters_in(await _listed(endpoint, "/v1/models"), endpoint.model)
    if dialect is SoakDialect.LLAMACPP and not adapters:
        adapters = adapter_ids_in(await _listed(endpoint, "/lora-adapters"))
    return Offered(adapters=adapters, banned=await digit_tokens(endpoint))


async def _listed(endpoint: Endpoint, path: str) -> object:
    with suppress(EngineError, ValueError):
        return parse_json(await fetched(joined(endpoint.base_url, path), api_key=endpoint.api_key))
    return None


def adapter_ids_in(listed: object) -> tuple[str, ...]:
    """Adapters as llama.cpp numbers those that it was started with (b11549: GET /lora-adapters)."""
    ids = [as_whole(entry.get("id")) for entry in as_objects(listed)]
    return tuple(str(id) for id in ids if id is not None and id >= 0)[:ADAPTERS_MAX]


def adapters_in(models: object, served: str) -> tuple[str, ...]:
    """Models that name the served one as the one they are made from, as vLLM lists LoRA modules (0.32)."""
    listed = as_objects(as_object(models).get("data"))
    served_names = {served, *(as_text(entry.get("id")) for entry in listed if not entry.get("parent"))}
    names = [as_text(entry.get("id")) for entry in listed if as_text(entry.get("parent")) in served_names]
    return tuple(name for name in names if name)[:ADAPTERS_MAX]


async def digit_tokens(endpoint: Endpoint) -> tuple[tuple[int, str], ...]:
    """Some digits as tokens of this server, where each is one and numbers have no others: forbidden, such a digit can
    stand in no answer. None where the server does not tell its tokens."""
    try:
        year = await _tokens(endpoint, YEAR)
        digits = [await _tokens(endpoint, digit) for digit in FORBIDDEN]
    except (EngineError, ValueError):
        return ()
    if len(year) != len(YEAR) or any(len(each) != 1 for each in digits):
        return ()
    return tuple((ids[0], digit) for ids, digit in zip(digits, FORBIDDEN, strict=True))


async def _tokens(endpoint: Endpoint, text: str) -> list[int]:
    """llama.cpp reads `content` (b11549), vLLM `prompt` (0.32); neither minds what is the other's."""
    body = {"model": endpoint.model, "content": text, "prompt": text, "add_special_tokens": False}
    answer = await post_to(endpoint, "/tokenize", body)
    return [need_whole(entry) for entry in as_list(answer.get("tokens"))]
