"""The record of a soak, on disk as it arrives: one line of JSON per answer, so that a kill at any moment loses at
most what was still under way.

The lines alone say what was asked of which server and what is left, so that a soak goes on where it was and the same
lines give the same result.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO, TypeAlias

from msgspec import structs

from speclift.core.arm import BASELINE, Arm
from speclift.core.document import plain_object, read
from speclift.core.errors import StudyError, UsageError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import need_object
from speclift.core.records import AnswerChoice, ToolCall
from speclift.core.results import Finding, Level, warn
from speclift.core.units import Seconds, Tokens
from speclift.lossless.gate import Distribution, FaultRate, Result, Soak, SoakArm, SoakFault, worst
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.rates import (
    ANSWERS_MIN,
    DRAFTED_MIN,
    PROMISED,
    PROVEN,
    AcceptanceWindow,
    acceptance_alarms,
    judge_faults,
    soaked_result,
    step_alarms,
)
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, refused_kinds
from speclift.lossless.soak.values import FaultSeen, SoakAnswer, SoakRequest, Stage, slot_of
from speclift.studies.outputs import relative
from speclift.studies.private import FILE_MODE, private_folder
from speclift.studies.texts import NOT_KEPT, error_stand_in, stand_in

# Inside the study's folder.
SOAK, LINES = "soak", "answers.jsonl"
# One more whenever requests or the faults that are looked for change: what was asked and judged otherwise is no part of
# the same soak. 2: tools are strict, what the limit cut is judged as a beginning.
FORMAT = 2
# Of the time that was asked for: the last request ends before it.
WHOLE_SHARE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakTerms:
    """The terms that a soak was begun with and goes on with."""

    soak_s: Seconds
    levels: tuple[int, ...]
    launches: int
    seed: int
    # The baseline first.
    arms: tuple[str, ...]
    # Of the servers, the traffic and everything else that another run must share: a hash.
    fingerprint: str
    keeps_text: bool = True
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakStep:
    """A part of one launch: so many streams before, during or after the load."""

    stage: Stage
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An answer with the step that it was asked in, the faults that it could have shown and those that it shows, judged
    as it came: its text may not be kept."""

    step: SoakStep
    kind: str
    answer: SoakAnswer
    exposed: tuple[SoakFault, ...] = ()
    seen: tuple[FaultSeen, ...] = ()
    # Of a later turn, which follows from what was answered; None where the traffic can tell it anew.
    request: SoakRequest | None = None
    # Of the user's own prompts, which one; "" where it is ours.
    prompt_id: str = ""
    # Of the whole soak when it was kept.
    elapsed_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """`failure` where it did not start, died or hung, with the tail of its log."""

    arm: str
    launch: int
    took_s: Seconds
    failure: str = ""
    elapsed_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakStepEnded:
    arm: str
    launch: int
    step: SoakStep
    # As the server counted them in this step; None where it does not, or every answer says so itself.
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    elapsed_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The offer of the baseline: what it takes of the kinds of requests; the others with its words."""

    refused: tuple[tuple[str, str], ...] = ()
    # What it has beside its model: adapters by name, and tokens that can be forbidden.
    adapters: tuple[str, ...] = ()
    banned: tuple[tuple[int, str], ...] = ()
    # Of full length, for most answers, as its speed allows.
    scale: float = 1.0
    # What a request then takes on the average, as seen from a few of them; 0 where nothing was answered.
    slot_s: Seconds = 0.0
    elapsed_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """A fault as a script in the soak's folder, by its name there; whether it was seen again, and with how many
    streams."""

    arm: str
    fault: SoakFault
    script: str
    is_confirmed: bool
    streams: int
    elapsed_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The test of what an arm sampled under load, held against the target's probabilities."""

    arm: str
    distribution: Distribution
    elapsed_s: Seconds = 0.0


SoakRow: TypeAlias = Kept | Launched | SoakStepEnded | Offered | Reproduced | Tested


@dataclass(slots=True)
class SoakRecord:
    """All that was seen so far."""

    kept: list[Kept] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    ended: dict[tuple[str, int, SoakStep], SoakStepEnded] = field(default_factory=dict)
    # None until the baseline was asked.
    offered: Offered | None = None
    reproduced: list[Reproduced] = field(default_factory=list)
    tested: list[Tested] = field(default_factory=list)
    elapsed_s: Seconds = 0.0
    # What each server showed, but for what it refused in words, and how many answers showed anything.
    shown: dict[str, set[SoakFault]] = field(default_factory=dict)
    odd: int = 0

    def slots(self, arm: str, launch: int, step: SoakStep) -> set[int]:
        """Slots of the traffic, as far as this server was asked them in this step."""
        return {
            slot_of(row.answer.index)
            for row in self.kept
            if row.step == step and (_arm_of(row), row.answer.exposure.launch) == (arm, launch)
        }

    def arm_s(self, arm: str) -> Seconds:
        """How long this arm has been under load."""
        return max((row.answer.exposure.ended_s for row in self.kept if _arm_of(row) == arm), default=0.0)

    def tells_drafts(self, arm: str) -> bool:
        return any(row.answer.drafted is not None for row in self.kept if _arm_of(row) == arm)

    def failure(self, arm: str, launch: int) -> str:
        failures = (
            launched.failure for launched in self.launched if (launched.arm, launched.launch) == (arm, launch)
        )
        return next((failure for failure in failures if failure), "")

    def is_complete(self, terms: SoakTerms) -> bool:
        """True where the time was used up, or nothing was left to ask."""
        steps = len(terms.levels) + 2
        everything = len(terms.arms) * terms.launches * steps
        return self.elapsed_s >= WHOLE_SHARE * terms.soak_s or len(self.ended) >= everything

    def take(self, row: SoakRow) -> None:
        match row:
            case Kept():
                self.kept.append(row)
                if not row.answer.is_refusal:
                    self.shown.setdefault(_arm_of(row), set()).update(seen.fault for seen in row.seen)
                self.odd += bool(row.seen)
            case Launched():
                self.launched.append(row)
            case SoakStepEnded():
                self.ended[row.arm, row.launch, row.step] = row
            case Offered():
                self.offered = row
            case Reproduced():
                self.reproduced.append(row)
            case Tested():
                self.tested.append(row)
        self.elapsed_s = max(self.elapsed_s, row.elapsed_s)


class SoakStudy:
    """The lines, open for more of them."""

    def __init__(self, folder: Path, terms: SoakTerms, record: SoakRecord, lines: TextIO) -> None:
        self.folder, self.terms, self.record = folder, terms, record
        self._lines = lines

    @classmethod
    def create(cls, study: Path, terms: SoakTerms) -> SoakStudy:
        path = lines_path(study)
        if path.exists():
            raise UsageError(f"{study} already holds a soak", hint="add --resume, or use another --study")
        try:
            private_folder(path.parent)
            soak = cls(path.parent, terms, SoakRecord(), _opened(path))
            soak._write("terms", terms)
        except OSError as error:
            raise StudyError(f"cannot write {path}: {error.strerror or error}") from error
        return soak

    @classmethod
    def reopen(cls, study: Path) -> SoakStudy:
        """The study with its lines; what a kill left of a last one is cut off."""
        path = lines_path(study)
        try:
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            terms, record = read_lines(whole.splitlines())
            lines = _opened(path)
            if len(whole) < len(data):
                os.truncate(path, len(whole))
        except OSError as error:
            raise StudyError(
                f"there is no soak to resume in {study}: {error.strerror or error}",
                hint="give the study with --study DIR",
            ) from error
        return cls(path.parent, terms, record, lines)

    def keep(self, row: SoakRow) -> None:
        """Told to the system before anything else happens: a kill of this process does not lose it."""
        if isinstance(row, Kept) and not self.terms.keeps_text:
            row = without_text(row)
        if isinstance(row, Launched) and not self.terms.keeps_text:
            row = replace(row, failure=row.failure.partition("\n")[0])
        self._write(_NAMES[type(row)], row)
        self.record.take(row)

    def close(self) -> None:
        self._lines.close()

    def _write(self, name: str, row: SoakTerms | SoakRow) -> None:
        self._lines.write(json.dumps({name: plain_object(row)}) + "\n")
        self._lines.flush()


_NAMES: dict[type[SoakRow], str] = {
    Kept: "kept",
    Launched: "launched",
    SoakStepEnded: "ended",
    Offered: "offered",
    Reproduced: "reproduced",
    Tested: "tested",
}
_KINDS: dict[str, type[SoakRow]] = {name: kind for kind, name in _NAMES.items()}


def lines_path(study: Path) -> Path:
    return study / SOAK / LINES


def holds_soak(study: Path) -> bool:
    return lines_path(study).is_file()


def read_lines(lines: Sequence[bytes]) -> tuple[SoakTerms, SoakRecord]:
    """StudyError where a line was not written by us, or damaged."""
    record = SoakRecord()
    terms: SoakTerms | None = None
    for number, line in enumerate(lines, 1):
        try:
            ((name, value),) = need_object(parse_json(line)).items()
            if name == "terms":
                terms = read(SoakTerms, value)
            elif name in _KINDS:
                record.take(read(_KINDS[name], value))
            else:
                raise ValueError(f"no kind of line: {name[:40]!r}")
        except ValueError as error:
            raise StudyError(f"line {number} of the soak is damaged: {error}") from error
    if terms is None:
        raise StudyError("the soak has no first line", hint="begin it anew in another --study")
    return terms, record


def without_text(kept: Kept) -> Kept:
    """A hash in place of every text: equal answers stay equal."""
    answer = kept.answer
    return replace(
        kept,
        answer=replace(
            answer,
            choices=tuple(_choice_without_text(choice) for choice in answer.choices),
            error=error_stand_in(answer.error),
        ),
        seen=tuple(replace(seen, evidence=NOT_KEPT) for seen in kept.seen),
        request=None,
    )


def _choice_without_text(choice: AnswerChoice) -> AnswerChoice:
    return replace(
        choice,
        text=stand_in(choice.text),
        thoughts=stand_in(choice.thoughts),
        calls=tuple(
            ToolCall(name=stand_in(call.name), arguments=stand_in(call.arguments)) for call in choice.calls
        ),
    )


def _opened(path: Path) -> TextIO:
    def private(name: str, flags: int) -> int:
        return os.open(name, flags, FILE_MODE)

    return open(path, "a", encoding="utf-8", opener=private)


def _arm_of(kept: Kept) -> str:
    return kept.answer.exposure.arm


LOG_CHARACTERS = 600


def soak_of(
    terms: SoakTerms,
    record: SoakRecord,
    arms: Sequence[Arm],
    *,
    study: Path,
    is_short: bool = False,
    interrupted: bool = False,
) -> Soak:
    """`arms` are those that speculate. A short soak finds faults and clears nobody: what it leaves open is skipped."""
    control = list(observations(record, BASELINE))
    judged = [_judged(arm, record, control, study) for arm in arms]
    result = worst(soaked.result for soaked, _ in judged)
    return Soak(
        result=Result.SKIPPED if is_short and result is Result.INCONCLUSIVE else result,
        seconds=round(record.elapsed_s, 3),
        planned_s=terms.soak_s,
        partial=not record.is_complete(terms),
        requests=len(record.kept),
        launches=sum(bool(launched.took_s) for launched in record.launched),
        concurrency=terms.levels,
        faults=tuple(rate for _, rates in judged for rate in rates if rate.exposed),
        arms=tuple(soaked for soaked, _ in judged),
        kinds=_counted(row.kind for row in record.kept),
        stages=_counted(row.step.stage.value for row in record.kept),
        refused_kinds=dict(record.offered.refused) if record.offered is not None else {},
        scale=record.offered.scale if record.offered is not None else 1.0,
        study=relative(study),
        interrupted=interrupted,
    )


def _judged(
    arm: Arm, record: SoakRecord, control: Sequence[SoakObservation], study: Path
) -> tuple[SoakArm, tuple[FaultRate, ...]]:
    refused = refused_by(record, arm.name)
    ours = [row for row in observations(record, arm.name) if row.kind not in refused]
    rates = judge_faults(ours, control, name=arm.name)
    findings = (
        *failure_findings(record, arm.name),
        *(_refused_setting(arm.name, kind, words) for kind, words in refused.items()),
        *acceptance_findings(record, arm.name),
    )
    distribution = next((row.distribution for row in record.tested if row.arm == arm.name), None)
    again = {row.fault: row for row in record.reproduced if row.arm == arm.name}
    soaked = SoakArm(
        arm=arm.name,
        method=arm.method,
        result=soaked_result(rates, findings, distribution),
        requests=len(_kept_of(record, arm.name)),
        launches=sum(row.arm == arm.name and bool(row.took_s) for row in record.launched),
        acceptance_rate=_acceptance(record, arm.name),
        distribution=distribution,
        findings=findings,
    )
    return soaked, tuple(
        structs.replace(
            rate,
            script=relative(study / SOAK / again[rate.name].script),
            reproduced=again[rate.name].is_confirmed,
        )
        if rate.name in again
        else rate
        for rate in rates
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def refused_by(record: SoakRecord, arm: str) -> dict[str, str]:
    """Kinds of requests that an arm refuses throughout although the baseline takes them, with its words: it says so,
    and corrupts nothing."""
    answers = ((row.kind, row.answer) for row in _kept_of(record, arm))
    return {kind.value: words for kind, words in refused_kinds(answers).items()}


def _refused_setting(arm: str, kind: str, words: str) -> Finding:
    return warn(
        "refused-setting",
        f"{arm}: requests of the kind {kind} are refused, which the baseline takes: {words}",
        then="check whether your traffic uses it before you turn speculation on",
        arm=arm,
    )


def observations(record: SoakRecord, arm: str) -> Iterator[SoakObservation]:
    for row in _kept_of(record, arm):
        shown = {seen.fault: seen.evidence or "seen" for seen in row.seen}
        for fault in row.exposed:
            yield SoakObservation(
                fault=fault,
                index=row.answer.index,
                kind=row.kind,
                exposure=row.answer.exposure,
                evidence=shown.get(fault, ""),
                prompt_id=row.prompt_id,
            )


def is_suspect(record: SoakRecord) -> bool:
    """True where an arm showed what no server may do, and the control did not; what it says it does not do is told at
    the end."""
    telling = (PROMISED | PROVEN) - record.shown.get(BASELINE, set())
    return any(telling & shown for arm, shown in record.shown.items() if arm != BASELINE)


def failure_findings(record: SoakRecord, arm: str) -> Iterator[Finding]:
    """A server that dies under a load which the baseline lives through is a fault of its own."""
    control = [launch for launch in record.launched if launch.arm == BASELINE and launch.failure]
    for launch in record.launched:
        if launch.arm == arm and launch.failure:
            cause, _, tail = launch.failure.partition("\n")
            yield Finding(
                check="arm-failed",
                level=Level.WARN if control else Level.FAIL,
                message=f"{arm}, launch {launch.launch}: {cause}"
                + (f"\n{tail[-LOG_CHARACTERS:]}" if tail else "")
                + ("; the baseline failed as well" if control else ""),
                next_step="read its log in the study's folder soak/logs",
                arm=arm,
            )


def acceptance_findings(record: SoakRecord, arm: str) -> Iterator[Finding]:
    answers = [(row.kind, row.answer) for row in _kept_of(record, arm)]
    for alarm in acceptance_alarms(answers) or step_alarms(list(_counted_steps(record, arm))):
        yield warn(
            "odd-acceptance",
            f"{arm}: {alarm.message}",
            then="are drafts still verified? run the soak again; a second time is no chance",
            arm=arm,
        )


def _counted_steps(record: SoakRecord, arm: str) -> Iterator[AcceptanceWindow]:
    for row in record.ended.values():
        if row.arm == arm and row.drafted is not None and row.accepted is not None:
            yield AcceptanceWindow(
                launch=row.launch,
                stage=row.step.stage,
                since_s=row.elapsed_s,
                answers=ANSWERS_MIN,
                kinds={"": (row.drafted, row.accepted)},
            )


def request_of(kept: Kept, traffic: SoakTraffic) -> SoakRequest:
    """The request as it was sent; a later turn whose text was not kept, as far as it is known."""
    if kept.request is not None:
        return kept.request
    opening = traffic.opening(slot_of(kept.answer.index))
    turn = kept.answer.index - opening.index
    return replace(opening, index=kept.answer.index, turn=turn) if turn else opening


def offered(traffic: SoakTraffic, record: SoakRecord) -> SoakTraffic:
    """The traffic with what the baseline has beside its model, without what it refused, as long as its speed allows."""
    seen = record.offered
    if seen is None:
        return traffic
    more = replace(traffic.offering(adapters=seen.adapters, banned=seen.banned), scale=seen.scale)
    return more.without(SoakKind(kind) for kind, _ in seen.refused)


def _acceptance(record: SoakRecord, arm: str) -> float | None:
    answers = ((row.answer.drafted or 0, row.answer.accepted or 0) for row in _kept_of(record, arm))
    counts = [*answers, *((step.drafted, step.accepted) for step in _counted_steps(record, arm))]
    drafted, accepted = sum(drafted for drafted, _ in counts), sum(accepted for _, accepted in counts)
    return accepted / drafted if drafted >= DRAFTED_MIN else None


def _kept_of(record: SoakRecord, arm: str) -> list[Kept]:
    return [row for row in record.kept if row.answer.exposure.arm == arm]
