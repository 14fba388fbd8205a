"""From what a soak kept to what it came to: the same lines give the same result, whenever they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from speclift.bench.soak_study import SOAK, Kept, SoakRecord, SoakTerms
from speclift.core.arm import BASELINE, Arm
from speclift.core.results import Finding, Level, warn
from speclift.lossless.soak.acceptance import DRAFTED_MIN, CountedDrafts, acceptance_alarms, step_alarms
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.outcome import Soak, SoakArm, counted
from speclift.lossless.soak.rates import PROMISED, PROVEN, judge_faults
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, refused_kinds
from speclift.lossless.soak.values import SoakRequest, slot_of
from speclift.studies.outputs import relative

LOG_CHARACTERS = 600


def soak_of(terms: SoakTerms, record: SoakRecord, arms: Sequence[Arm], *, study: Path) -> Soak:
    """`arms` are those that speculate."""
    control = list(observations(record, BASELINE))
    return Soak(
        seconds=record.elapsed_s,
        planned_s=terms.soak_s,
        levels=terms.levels,
        requests=len(record.kept),
        launches=sum(bool(each.took_s) for each in record.launched),
        arms=tuple(_arm(arm, record, control, study) for arm in arms),
        kinds=counted(kept.kind for kept in record.kept),
        stages=counted(kept.step.stage.value for kept in record.kept),
        refused_kinds=dict(record.offered.refused) if record.offered is not None else {},
        scale=record.offered.scale if record.offered is not None else 1.0,
        acceptance={arm.name: _acceptance(record, arm.name) for arm in arms},
        study=relative(study),
        is_partial=not record.is_complete(terms),
    )


def _arm(arm: Arm, record: SoakRecord, control: Sequence[SoakObservation], study: Path) -> SoakArm:
    reproduced = [each for each in record.reproduced if each.arm == arm.name]
    refused = refused_by(record, arm.name)
    own = [each for each in observations(record, arm.name) if each.kind not in refused]
    return SoakArm(
        arm=arm.name,
        method=arm.method,
        rates=judge_faults(own, control),
        requests=len(_kept(record, arm.name)),
        launches=sum(each.arm == arm.name and bool(each.took_s) for each in record.launched),
        findings=(
            *failure_findings(record, arm.name),
            *(_refused_setting(arm.name, kind, words) for kind, words in refused.items()),
            *acceptance_findings(record, arm.name),
        ),
        scripts={each.fault: relative(study / SOAK / each.script) for each in reproduced},
        reproduced=frozenset(each.fault for each in reproduced if each.is_confirmed),
        distribution=next((each.distribution for each in record.tested if each.arm == arm.name), None),
    )


def refused_by(record: SoakRecord, arm: str) -> dict[str, str]:
    """Kinds of requests that an arm refuses throughout although the baseline takes them, with its words: it says so,
    and corrupts nothing."""
    asked = ((kept.kind, kept.answer) for kept in _kept(record, arm))
    return {kind.value: words for kind, words in refused_kinds(asked).items()}


def _refused_setting(arm: str, kind: str, words: str) -> Finding:
    return warn(
        "refused-setting",
        f"{arm}: requests of the kind {kind} are refused, which the baseline takes: {words}",
        then="check whether your traffic uses it before you turn speculation on",
        arm=arm,
    )


def observations(record: SoakRecord, arm: str) -> Iterator[SoakObservation]:
    for kept in _kept(record, arm):
        shown = {seen.fault: seen.evidence or "seen" for seen in kept.seen}
        for fault in kept.exposed:
            yield SoakObservation(
                fault=fault,
                index=kept.answer.index,
                kind=kept.kind,
                exposure=kept.answer.exposure,
                evidence=shown.get(fault, ""),
                prompt_id=kept.prompt_id,
            )


def is_suspect(record: SoakRecord) -> bool:
    """Whether an arm showed what no server may do, and the control did not; what it says it does not do is told at the
    end."""
    telling = (PROMISED | PROVEN) - record.shown.get(BASELINE, set())
    return any(telling & shown for arm, shown in record.shown.items() if arm != BASELINE)


def failure_findings(record: SoakRecord, arm: str) -> Iterator[Finding]:
    """A server that dies under a fire which the baseline lives through is a fault of its own."""
    control = [each for each in record.launched if each.arm == BASELINE and each.failure]
    for each in record.launched:
        if each.arm == arm and each.failure:
            cause, _, tail = each.failure.partition("\n")
            yield Finding(
                check="arm-failed",
                level=Level.WARN if control else Level.FAIL,
                message=f"{arm}, launch {each.launch}: {cause}"
                + (f"\n{tail[-LOG_CHARACTERS:]}" if tail else "")
                + ("; the baseline failed as well" if control else ""),
                next_step="read its log in the study's folder soak/logs",
                arm=arm,
            )


def acceptance_findings(record: SoakRecord, arm: str) -> Iterator[Finding]:
    said = [(kept.kind, kept.answer) for kept in _kept(record, arm)]
    for alarm in acceptance_alarms(said) or step_alarms(list(_counted(record, arm))):
        yield warn(
            "odd-acceptance",
            f"{arm}: {alarm.message}",
            then="are drafts still verified? run the soak again; a second time is no chance",
            arm=arm,
        )


def _counted(record: SoakRecord, arm: str) -> Iterator[CountedDrafts]:
    for row in record.ended.values():
        if row.arm == arm and row.drafted is not None and row.accepted is not None:
            yield CountedDrafts(
                launch=row.launch,
                stage=row.step.stage,
                since_s=row.elapsed_s,
                drafted=row.drafted,
                accepted=row.accepted,
            )


def request_of(kept: Kept, traffic: SoakTraffic) -> SoakRequest:
    """As it was sent; a later turn whose text was not kept, as far as it is known."""
    if kept.request is not None:
        return kept.request
    opening = traffic.opening(slot_of(kept.answer.index))
    turn = kept.answer.index - opening.index
    return replace(opening, index=kept.answer.index, turn=turn) if turn else opening


def offered(traffic: SoakTraffic, record: SoakRecord) -> SoakTraffic:
    """With what the baseline has beside its model, without what it refused, as long as its speed allows."""
    seen = record.offered
    if seen is None:
        return traffic
    more = replace(traffic.offering(adapters=seen.adapters, banned=seen.banned), scale=seen.scale)
    return more.without(SoakKind(kind) for kind, _ in seen.refused)


def _acceptance(record: SoakRecord, arm: str) -> float | None:
    answers = ((kept.answer.drafted or 0, kept.answer.accepted or 0) for kept in _kept(record, arm))
    counts = [*answers, *((step.drafted, step.accepted) for step in _counted(record, arm))]
    drafted, accepted = sum(drafted for drafted, _ in counts), sum(accepted for _, accepted in counts)
    return accepted / drafted if drafted >= DRAFTED_MIN else None


def _kept(record: SoakRecord, arm: str) -> list[Kept]:
    return [kept for kept in record.kept if kept.answer.exposure.arm == arm]
