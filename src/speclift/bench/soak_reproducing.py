"""A fault that a soak found, asked for again on a fresh launch with less and less around it, until the time is up; what
is left of it becomes a script to attach to a bug report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from speclift.bench.observer import Observer
from speclift.bench.soak_fire import Fire
from speclift.bench.soak_result import offered, request_of
from speclift.bench.soak_run import Witness, answer_limit_s
from speclift.bench.soak_study import Kept, Reproduced, SoakRecord, SoakStudy
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import Arm
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError, StudyError
from speclift.core.units import Seconds
from speclift.engines.protocol import Engine, Server
from speclift.lossless.soak.outcome import SoakArm
from speclift.lossless.soak.rates import FaultRate
from speclift.lossless.soak.reproduction import Reproduction, Trial, reproduction_of
from speclift.lossless.soak.reproduction_script import reproduction_script
from speclift.lossless.soak.traffic import SoakTraffic
from speclift.lossless.soak.values import SoakAnswer, SoakRequest, Stage
from speclift.studies.private import write_private

# Where a server takes longer than this to start, nothing is tried again in the time that is left.
TRYING_MIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """A fault of an arm, with the first request that showed it."""

    arm: Arm
    rate: FaultRate
    kept: Kept


class Reproducing:
    def __init__(
        self,
        engine: Engine,
        traffic: SoakTraffic,
        study: SoakStudy,
        *,
        observer: Observer,
        deadline: Deadline,
        elapsed_s: Callable[[], Seconds],
    ) -> None:
        self._engine, self._study, self._record = engine, study, study.record
        self._traffic = offered(traffic, study.record)
        self._observer, self._deadline, self._elapsed_s = observer, deadline, elapsed_s

    async def run(self, arms: Sequence[Arm], soaked: Sequence[SoakArm]) -> None:
        """A script for every fault that has none, those that could not be tried again included."""
        by_name = {arm.name: arm for arm in arms}
        for each in soaked:
            cases = [
                case
                for rate in each.found
                if rate.fault not in each.scripts
                and (case := self._case(by_name[each.arm], rate)) is not None
            ]
            if cases:
                await self._reproduce(by_name[each.arm], cases)

    def _case(self, arm: Arm, rate: FaultRate) -> FaultCase | None:
        kept = next((kept for kept in self._record.kept if _shows(kept, arm.name, rate)), None)
        return None if kept is None else FaultCase(arm=arm, rate=rate, kept=kept)

    async def _reproduce(self, arm: Arm, cases: Sequence[FaultCase]) -> None:
        server: Server | None = None
        with suppress(BudgetSpent):
            async with ends_at(self._deadline.keeping(TRYING_MIN_S), lambda: "a fault was tried again"):
                self._observer.say(f"reproducing what {arm.name} showed")
                try:
                    log = self._study.folder / "logs" / f"again-{arm.name}.log"
                    server = await self._engine.launch(arm, log=log)
                except EngineError as error:
                    self._observer.say(f"{arm.name} did not start again: {error}")
        try:
            for place, case in enumerate(cases):
                share_s = max(0.0, self._deadline.left_s) / (len(cases) - place)
                begun = self._begun(case)
                found = begun if server is None else await self._tried(case, begun, server, share_s)
                self._write(case, found, server)
        finally:
            if server is not None:
                await to_the_end(server.stop())

    def _begun(self, case: FaultCase) -> Reproduction:
        exposure = case.kept.answer.exposure
        return reproduction_of(
            case.rate.fault,
            request_of(case.kept, self._traffic),
            companions=[request_of(kept, self._traffic) for kept in _beside(self._record, case.kept)],
            streams=exposure.streams_max,
            rate=case.rate.arm.rate,
        )

    async def _tried(
        self, case: FaultCase, found: Reproduction, server: Server, share_s: Seconds
    ) -> Reproduction:
        """As much smaller as there was time for."""
        ends_s = time.monotonic() + share_s
        limit_s = answer_limit_s(self._record, case.arm.name)
        fire = Fire(server, arm=case.arm.name, launch=0, clock=time.monotonic, limit_s=limit_s)
        while time.monotonic() < ends_s and not fire.failure and (trial := found.ask()) is not None:
            attempts, faulty = await self._try(trial, found, fire, ends_s)
            if not faulty and attempts < trial.attempts_max:
                break  # the time is up, and so few attempts say nothing
            found = found.told(trial, attempts=attempts, faulty=faulty)
        return found

    async def _try(self, trial: Trial, found: Reproduction, fire: Fire, ends_s: Seconds) -> tuple[int, int]:
        """How many attempts were answered, and how many of them show the fault: the first one is enough."""
        witness, counting = Witness(), set[int]()
        attempts = faulty = 0

        def openings() -> Iterator[SoakRequest]:
            for request, counts in trial.requests():
                if counts:
                    counting.add(request.index)
                yield witness.sending(request)

        def heed(request: SoakRequest, answer: SoakAnswer) -> None:
            nonlocal attempts, faulty
            if request.index in counting:
                _, seen = witness.judge(request, answer)
                attempts += 1
                faulty += any(each.fault is found.fault for each in seen)

        await fire.ask(
            openings(),
            streams=trial.setup.streams,
            stage=Stage.DURING,
            left_s=lambda: 0.0 if faulty else ends_s - time.monotonic(),
            heed=heed,
        )
        return attempts, faulty

    def _write(self, case: FaultCase, found: Reproduction, server: Server | None) -> None:
        path = self._study.folder / f"{case.rate.fault}-{_file_name(case.arm.name)}.py"
        about = f"{self._engine.name} {self._engine.version()}, {case.arm.name}"
        own_url = {"url": server.endpoint.base_url} if server is not None and not server.process_ids() else {}
        script = reproduction_script(
            found.fault,
            found.smallest,
            rate=found.rate,
            model=self._engine.model if server is None else server.endpoint.model,
            about=about if found.is_confirmed else f"{about} (seen in the soak, not seen again)",
            **own_url,
        )
        try:
            write_private(path, script)
        except OSError as error:
            raise StudyError(f"cannot write {path}: {error.strerror or error}") from error
        self._study.keep(
            Reproduced(
                arm=case.arm.name,
                fault=found.fault,
                script=path.name,
                is_confirmed=found.is_confirmed,
                streams=found.smallest.streams,
                elapsed_s=self._elapsed_s(),
            )
        )
        self._observer.say(
            f"{case.arm.name}, {found.fault}: "
            + (
                f"seen again with {found.smallest.streams} at once, {len(found.smallest.companions)} other requests"
                if found.is_confirmed
                else "not seen again in the time there was"
            )
        )


def _shows(kept: Kept, arm: str, rate: FaultRate) -> bool:
    return kept.answer.exposure.arm == arm and any(seen.fault is rate.fault for seen in kept.seen)


def _beside(record: SoakRecord, culprit: Kept) -> list[Kept]:
    """What was under way at the same server with it."""
    own = culprit.answer.exposure
    return [
        kept
        for kept in record.kept
        if kept is not culprit
        and (kept.answer.exposure.arm, kept.answer.exposure.launch) == (own.arm, own.launch)
        and kept.answer.exposure.sent_s < own.ended_s
        and kept.answer.exposure.ended_s > own.sent_s
    ]


def _file_name(arm: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in arm)
