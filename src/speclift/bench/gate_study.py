"""The lossless gate as a part of decide: from the study's own answers, from the servers where those do not settle
it, or in full. What it found is kept in the study."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from speclift.bench.gate_run import (
    AskedAgain,
    GateAsk,
    arms_left_open,
    ask_again,
    run_gate,
    settle_by_equality,
)
from speclift.bench.observer import Observer
from speclift.bench.prepare import Bench
from speclift.bench.run import launches_took
from speclift.bench.soak_gate import SOAK_MIN_S, SoakSettings, check_soak
from speclift.bench.soak_study import holds_soak
from speclift.bench.time_limit import BudgetSpent
from speclift.bench.workplace import HERE, Workplace
from speclift.core.arm import BASELINE, Arm
from speclift.core.deadline import Deadline
from speclift.core.document import plain_object
from speclift.core.errors import OperatingError
from speclift.core.records import Phase, Record
from speclift.core.traffic import Concurrency, Request
from speclift.core.units import Seconds
from speclift.lossless.gate import LOSSLESS, Gate, Result
from speclift.lossless.questions import FULL, LISTED, QUICK, Question
from speclift.lossless.recorded import Fresh, gate_from_records, needs_more_control, parted_requests
from speclift.studies.study import Study
from speclift.studies.texts import NOT_KEPT

# Without a budget: a quarter of the study's own time is a fifth of decide's. Answers that differ are worth a few
# seconds in any case.
QUICK_SHARE = 0.25
QUICK_LIMIT_MIN_S = 10.0
# Of a budget. The full form asks four servers what the study asked two.
GATE_SHARES = {"quick": 0.12, "full": 0.4, "off": 0.0}
# Of the gate's time in full form, and at most: the short soak after it.
SOAK_SHARE = 0.3
SOAK_S = 90.0
# Of what is left when the measuring begins: where a search took most of the time, an answer about speed comes first.
GATE_SHARE_OF_REST = 0.5


def before_gate(bench: Bench) -> Deadline:
    """The deadline of the measuring, so that the gate has the time that it needs."""
    deadline = bench.deadline
    if not deadline.is_set:
        return deadline
    wanted_s = GATE_SHARES[bench.ask.verify] * deadline.budget_s
    return deadline.keeping(max(0.0, min(wanted_s, GATE_SHARE_OF_REST * deadline.left_s)))


def check_lossless(bench: Bench, observer: Observer, *, study_s: Seconds, place: Workplace = HERE) -> None:
    """Keeps a result in the study by the deadline; what could not be asked by then is not settled.

    `study_s`: what the measuring took, which limits a quick look where nothing else does. `place`: where its servers
    run; a soak is for this machine.
    """
    study, mode, deadline = bench.study, bench.ask.verify, bench.deadline
    if mode == "off":
        study.keep(LOSSLESS, plain_object(Gate(why="--verify off", mode=mode)))
        return
    records = study.spoken()
    arms = _arms(study, records)
    if not arms or not any(record.place.arm == BASELINE for record in records):
        return
    if mode == "full":
        gate = _full(study, arms, records, observer, deadline.keeping(_soak_share_s(deadline)), place)
        gate = _soaked(gate, bench, arms, observer) if place is HERE else gate
    else:
        if not deadline.is_set:
            deadline = Deadline.after(quick_limit_s(study_s), clock=time.monotonic)
        gate = _quick(study, arms, records, observer, deadline, place)
    if not study.keeps_text:
        gate = gate.without_text(instead=NOT_KEPT)
    study.keep(LOSSLESS, plain_object(structs.replace(gate, mode=mode)))
    if gate.soak and gate.soak.interrupted:
        raise KeyboardInterrupt


def _soak_share_s(deadline: Deadline) -> Seconds:
    return SOAK_SHARE * deadline.left_s if deadline.is_set else 0.0


def _soaked(gate: Gate, bench: Bench, arms: Sequence[Arm], observer: Observer) -> Gate:
    """Adds a short soak. It can fail an arm, but not passing it is not needed for a pass."""
    study, deadline = bench.study, bench.deadline
    soak_s = min(SOAK_S, deadline.left_s)
    launches_s = (len(arms) + 1) * max(launches_took(study), default=0.0)
    if any(arm.result is Result.FAIL for arm in gate.arms):
        return gate
    if soak_s < max(SOAK_MIN_S, 2 * launches_s):
        return structs.replace(
            gate, notes=(*gate.notes, "no time was left for a soak: speclift verify --soak 10m")
        )
    levels = {load.streams for load in study.plan.loads if isinstance(load, Concurrency)}
    streams = max(FULL.batch, study.engine.settings.slots)
    settings = replace(study.engine.settings, slots=streams)
    try:
        soak = check_soak(
            SoakSettings(
                engine_spec=replace(study.engine, settings=settings),
                arms=arms,
                soak_s=soak_s,
                levels=tuple(sorted({*levels, streams})),
                launches=1,
                seed=study.plan.seed,
                keeps_text=study.keeps_text,
                study=study.path,
                resumes=holds_soak(study.path),
                is_short=True,
            ),
            observer,
            deadline=deadline,
        )
    except OperatingError as error:
        return structs.replace(gate, notes=(*gate.notes, f"no soak: {error}"))
    return structs.replace(gate, soak=soak)


def quick_limit_s(study_s: Seconds) -> Seconds:
    """The seconds for a study that took so long."""
    return max(QUICK_SHARE * study_s, QUICK_LIMIT_MIN_S)


def _arms(study: Study, records: Sequence[Record]) -> list[Arm]:
    seen = {record.place.arm for record in records if record.place.phase is Phase.MEASURED}
    return [arm for arm in study.plan.arms if arm.name in seen and arm.speculates]


def _full(
    study: Study,
    arms: Sequence[Arm],
    records: Sequence[Record],
    observer: Observer,
    deadline: Deadline,
    place: Workplace,
) -> Gate:
    plan = study.plan
    batch = max(FULL.batch, study.engine.settings.slots)
    spec = replace(study.engine, settings=replace(study.engine.settings, slots=batch))
    hot = {
        value
        for request in plan.requests
        for value in (plan.temperatures if plan.temperatures != (None,) else (request.temperature,))
        if value
    }
    gate_ask = GateAsk(
        engine_spec=spec,
        arms=arms,
        requests=plan.requests,
        temperatures=(0.0, *sorted(hot)),
        depth=replace(FULL, batch=batch),
        seed=plan.seed,
        launch_s=max(launches_took(study), default=0.0),
    )
    logs = study.logs / "verify"
    gate, is_cut_short = place.run(run_gate, gate_ask, logs=logs, observer=observer, deadline=deadline)
    if not is_cut_short:
        return gate
    # The study's own answers are no proof that nothing changed, but they can show that something did.
    recorded = gate_from_records(
        records, arms, plan.requests, settings=spec.settings.engine_args, seed=plan.seed
    )
    return recorded if any(arm.result is Result.FAIL for arm in recorded.arms) else gate


def _quick(
    study: Study,
    arms: Sequence[Arm],
    records: Sequence[Record],
    observer: Observer,
    deadline: Deadline,
    place: Workplace,
) -> Gate:
    plan, settings = study.plan, study.engine.settings.engine_args
    started_s = time.monotonic()
    recorded = RecordedAnswers(
        records=records, arms=arms, requests=plan.requests, settings=settings, seed=plan.seed
    )
    gate = recorded.gate()
    askable = [request for request in plan.requests if not request.has_tools]
    parted = {*parted_requests(gate)} & {request.id for request in askable}
    if parted:
        questions = [_margin_question(request) for request in askable if request.id in parted]
        others = [_margin_question(request) for request in askable if request.id not in parted]
        try:
            if not deadline.has(max(launches_took(study), default=0.0)):
                raise BudgetSpent(deadline, "the lossless gate still needed a launch of the baseline")
            again = AskedAgain(questions=questions, others=others, is_enough=recorded.is_enough)
            logs = study.logs / "verify"
            fresh = place.run(ask_again, study.engine, again, logs=logs, observer=observer, deadline=deadline)
        except OperatingError as error:
            note = f"no log-probabilities for the differences: {error}"
            return structs.replace(gate, notes=(*gate.notes, note), wall_s=time.monotonic() - started_s)
        gate = recorded.gate(fresh)
    gate = structs.replace(gate, wall_s=time.monotonic() - started_s)
    if not arms_left_open(gate):
        return gate
    gate_ask = GateAsk(
        engine_spec=study.engine,
        arms=arms,
        requests=plan.requests,
        temperatures=(0.0,),
        depth=replace(QUICK, batch=max(QUICK.batch, study.engine.settings.slots)),
        seed=plan.seed,
        launch_s=max(launches_took(study), default=0.0),
    )
    logs = study.logs / "verify"
    return place.run(settle_by_equality, gate, gate_ask, logs=logs, observer=observer, deadline=deadline)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswers:
    """A study's own answers and what they say of its arms: a value, so that a node can be asked with it whether to go
    on."""

    records: Sequence[Record]
    arms: Sequence[Arm]
    requests: Sequence[Request]
    settings: Sequence[str]
    seed: int

    def gate(self, fresh: Fresh | None = None) -> Gate:
        return gate_from_records(
            self.records, self.arms, self.requests, settings=self.settings, fresh=fresh, seed=self.seed
        )

    def is_enough(self, fresh: Fresh) -> bool:
        return not needs_more_control(self.gate(fresh))


def _margin_question(request: Request) -> Question:
    """The question as the study asked it. Calls of tools are no text whose tokens a server would list."""
    settings = tuple(request.answer_settings.items())
    return Question(
        case=request.id, request=request, temperature=0.0, seed=1, listed=LISTED, settings=settings
    )
