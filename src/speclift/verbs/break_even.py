"""What a finished study says of when an arm pays, for those that hold a running server against it: watch, export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from speclift.core.arm import Arm
from speclift.core.errors import StudyError, unknown_name
from speclift.core.records import Phase, Record
from speclift.core.results import Evidence
from speclift.core.traffic import Concurrency, Load
from speclift.statistics.crossover import crossovers
from speclift.studies.study import Study
from speclift.verbs.held import read_held
from speclift.verbs.judge import judge
from speclift.verdict.break_even import StudyBreakEvens, crossover_running, load_break_evens
from speclift.verdict.judgement import Judgement


def break_evens_of(study_path: Path, *, arm: str | None = None) -> StudyBreakEvens:
    """Of the arm named, else of the winner, else of the arm that came nearest. StudyError where the study cannot be
    read or compared nothing, UsageError where it has no such arm."""
    with Study.open(study_path) as study:
        return measured_break_evens(study, judge([study]), arm=arm)


def measured_break_evens(study: Study, judgement: Judgement, *, arm: str | None = None) -> StudyBreakEvens:
    """The same of a study that is open and judged already."""
    held = read_held([study])
    evidence = _evidence_of(judgement, arm)
    running = requests_under_way(held.records, evidence.arm)
    return StudyBreakEvens(
        arm=evidence.arm,
        engine=study.provenance.engine,
        engine_version=study.provenance.engine_version,
        loads=load_break_evens(evidence, running),
        crossover=crossover_running(
            crossovers(held.records, evidence.arm.name, seed=study.plan.seed, prompt_of=held.prompt_of),
            running,
            metric=judgement.goals.metric,
        ),
    )


def _evidence_of(judgement: Judgement, arm: str | None) -> Evidence:
    by_name = {evidence.arm.name: evidence for evidence in judgement.on_all}
    if arm is not None:
        if arm not in by_name:
            raise unknown_name(what="arm of this study", seen=arm, allowed=list(by_name))
        return by_name[arm]
    best = judgement.verdict.evidence
    if best is None:
        raise StudyError(
            f"{judgement.study} compared no arm with the baseline",
            hint="speclift compare says what is missing",
        )
    return by_name[best.arm.name]


def requests_under_way(records: Iterable[Record], arm: Arm) -> dict[Load, float]:
    """Of a closed loop its streams; of an open one, by Little's law, the rate times how long its requests took."""
    took: dict[Load, list[float]] = defaultdict(list)
    for record in records:
        place = record.place
        if place.arm == arm.name and place.phase is Phase.MEASURED and record.is_ok and record.e2e_s:
            took[place.load].append(record.e2e_s)
    return {
        load: float(load.streams) if isinstance(load, Concurrency) else load.per_s * fmean(seconds)
        for load, seconds in took.items()
    }
