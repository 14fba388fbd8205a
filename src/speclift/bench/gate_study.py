"""The lossless gate as a part of decide: from the study's own answers, from the servers where those do not settle
it, or in full. What it found is kept in the study."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from speclift.bench.asking import ask_all
from speclift.bench.bench import Bench
from speclift.bench.gate_run import GateAsk, GateRun
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.run import launches_took
from speclift.bench.time_limit import BudgetSpent, ends_at, to_the_end
from speclift.core.arm import BASELINE, Arm, baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.errors import EngineError, OperatingError
from speclift.core.records import Phase, Record
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.engines.protocol import Engine
from speclift.lossless.answers import Answer
from speclift.lossless.document import LOSSLESS, gate_outcome, skipped_outcome
from speclift.lossless.gate import Gate, gate_without_text
from speclift.lossless.greedy import gap_noise
from speclift.lossless.questions import FULL, LISTED, QUICK, Question
from speclift.lossless.recorded import Fresh, gate_from_records, parted_requests
from speclift.lossless.result import Result
from speclift.studies.study import Study
from speclift.studies.texts import NOT_KEPT

# Without a budget: a quarter of the study's own time is a fifth of decide's. Answers that differ are worth a few
# seconds in any case.
QUICK_SHARE = 0.25
QUICK_LIMIT_MIN_S = 10.0
# Of a budget. The full form asks four servers what the study asked two.
GATE_SHARES = {"quick": 0.12, "full": 0.4, "off": 0.0}
# Of what is left when the measuring begins: where a search took most of the time, an answer about speed comes first.
GATE_SHARE_OF_REST = 0.5


def before_gate(bench: Bench) -> Deadline:
    """Until when the measuring may last, so that the gate has the time that it needs."""
    deadline = bench.deadline
    if not deadline.is_set:
        return deadline
    wanted_s = GATE_SHARES[bench.ask.verify] * deadline.budget_s
    return deadline.keeping(max(0.0, min(wanted_s, GATE_SHARE_OF_REST * deadline.left_s)))


def check_lossless(bench: Bench, observer: Observer, *, study_s: Seconds) -> None:
    """By the deadline there is a result, kept in the study; what could not be asked by then is not settled.

    `study_s`: what the measuring took, which limits a quick look where nothing else does.
    """
    study, mode, deadline = bench.study, bench.ask.verify, bench.deadline
    if mode == "off":
        study.keep(LOSSLESS, skipped_outcome("--verify off", mode=mode).document)
        return
    records = study.spoken()
    arms = _arms(study, records)
    if not arms or not any(record.place.arm == BASELINE for record in records):
        return
    if mode == "full":
        gate = _full(study, arms, records, observer, deadline)
    else:
        if not deadline.is_set:
            deadline = Deadline.after(quick_limit_s(study_s), clock=time.monotonic)
        gate = _quick(study, arms, records, observer, deadline)
    if not study.keeps_text:
        gate = gate_without_text(gate, instead=NOT_KEPT)
    study.keep(LOSSLESS, gate_outcome(gate, mode=mode).document)


def quick_limit_s(study_s: Seconds) -> Seconds:
    """Of a study that took so long."""
    return max(QUICK_SHARE * study_s, QUICK_LIMIT_MIN_S)


def _arms(study: Study, records: Sequence[Record]) -> list[Arm]:
    seen = {record.place.arm for record in records if record.place.phase is Phase.MEASURED}
    return [arm for arm in study.plan.arms if arm.name in seen and arm.speculates]


def _full(
    study: Study, arms: Sequence[Arm], records: Sequence[Record], observer: Observer, deadline: Deadline
) -> Gate:
    plan, spec = study.plan, study.engine
    batch = max(FULL.batch, spec.settings.slots)
    engine = build_engine(replace(spec, settings=replace(spec.settings, slots=batch)))
    hot = {
        value
        for request in plan.requests
        for value in (plan.temperatures if plan.temperatures != (None,) else (request.temperature,))
        if value
    }
    run = GateRun(
        engine,
        GateAsk(
            arms=arms,
            requests=plan.requests,
            temperatures=(0.0, *sorted(hot)),
            engine_args=spec.settings.engine_args,
            depth=replace(FULL, batch=batch),
            seed=plan.seed,
        ),
        logs=study.logs / "verify",
        observer=observer,
        deadline=deadline,
        launch_s=max(launches_took(study), default=0.0),
    )
    gate = run_until_signal(run.run())
    if not run.is_cut_short:
        return gate
    # The study's own answers are no proof that nothing changed, but they can show that something did.
    recorded = gate_from_records(
        records, arms, plan.requests, settings=spec.settings.engine_args, seed=plan.seed
    )
    return recorded if any(arm.result is Result.FAIL for arm in recorded.arms) else gate


def _quick(
    study: Study, arms: Sequence[Arm], records: Sequence[Record], observer: Observer, deadline: Deadline
) -> Gate:
    plan, settings = study.plan, study.engine.settings.engine_args
    started_s = time.monotonic()
    gate = gate_from_records(records, arms, plan.requests, settings=settings, seed=plan.seed)
    parted = parted_requests(gate)
    if parted:
        observer.say(
            f"lossless gate: {len(parted)} answers differ; asking the baseline again for log-probabilities"
        )
        asked = [request for request in plan.requests if request.id in parted]
        questions = [
            Question(case=request.id, request=request, temperature=0.0, seed=1, listed=LISTED)
            for request in asked
        ]
        try:
            if not deadline.has(max(launches_took(study), default=0.0)):
                raise BudgetSpent(deadline, "the lossless gate still needed a launch of the baseline")
            fresh = run_until_signal(_fresh(build_engine(study.engine), questions, study, deadline))
        except OperatingError as error:
            note = f"no log-probabilities for the differences: {error}"
            return replace(gate, notes=(*gate.notes, note), wall_s=time.monotonic() - started_s)
        gate = gate_from_records(records, arms, plan.requests, settings=settings, fresh=fresh, seed=plan.seed)
    return replace(gate, wall_s=time.monotonic() - started_s)


async def _fresh(engine: Engine, questions: Sequence[Question], study: Study, deadline: Deadline) -> Fresh:
    """Each prompt alone and again within a batch: the reference, and the noise of the baseline's arithmetic.

    Half of the time is for the first, so that both are there when it ends.
    """
    references: list[Answer] = []
    again: list[Answer] = []
    async with ends_at(deadline, lambda: "launching the baseline for the lossless gate"):
        server = await engine.launch(baseline_arm(), log=study.logs / "verify-baseline.log")
    try:
        with contextlib.suppress(BudgetSpent):
            async with ends_at(deadline, lambda: "asking the baseline again"):
                enough = deadline.keeping(deadline.left_s / 2) if deadline.is_set else deadline
                for question in questions:
                    references += await ask_all(server.endpoint, [question], at_once=1)
                    if enough.is_over:
                        break
                few = questions[: min(len(references), 2 * QUICK.batch)]
                again = await ask_all(server.endpoint, few, at_once=QUICK.batch)
    finally:
        await to_the_end(server.stop())
    if not any(answer.is_ok for answer in references):
        why = references[0].error if references else "it did not answer in time"
        raise EngineError(f"the baseline gives no log-probabilities: {why}")
    noise = [gap for pair in zip(references, again, strict=False) for gap in gap_noise(*pair)]
    return Fresh(
        references={answer.case: answer for answer in references if answer.is_ok}, noise=tuple(noise)
    )
