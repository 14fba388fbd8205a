"""compare: the verdict on studies that are there already, and what an upgrade of the engine changed between two."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from speclift.core.errors import StudyError
from speclift.core.goals import Goals
from speclift.core.results import Upgrade
from speclift.statistics.repeats import without_echoes
from speclift.statistics.upgrade import VersionStudy, upgrade_of
from speclift.studies.merge import is_upgrade
from speclift.studies.study import Study
from speclift.verbs.judge import judge
from speclift.verbs.study_data import StudyData, read_data
from speclift.verdict.judgement import Judgement


def compare(paths: Sequence[Path], *, goals: Goals | None = None) -> Judgement:
    """The verdict on what finished studies hold; several are pooled when their environments agree. Two that differ in
    the engine's version alone are an upgrade: the verdict on the second, with what changed since the first."""
    with ExitStack() as stack:
        studies = [stack.enter_context(Study.open(path)) for path in paths]
        if len(studies) == 2 and is_upgrade(*studies):
            before, after = studies
            judgement = judge([after], goals=goals)
            return replace(judgement, upgrade=_upgrade(before, after, judgement))
        return judge(studies, goals=goals)


def _upgrade(before: Study, after: Study, judgement: Judgement) -> Upgrade:
    """Of the arm that the verdict is about where both have it, else of the first that both have."""
    old, new = read_data([before]), read_data([after])
    shared = [arm.name for arm in new.competing if arm.name in {each.name for each in old.competing}]
    best = judgement.verdict.evidence
    shared.sort(key=lambda name: best is None or name != best.arm.name)
    for name in shared:
        found = upgrade_of(name, _version_study(before, old), _version_study(after, new))
        if found is not None:
            return found
    raise StudyError(
        f"{before.path} and {after.path} are of two versions ({before.provenance.engine_version}, "
        f"{after.provenance.engine_version}) and have no arm in common that answered the same prompts",
        hint="measure the same arm on both versions",
    )


def _version_study(study: Study, held: StudyData) -> VersionStudy:
    return VersionStudy(
        version=study.provenance.engine_version,
        records=list(without_echoes(held.records, held.arms)),
        prompt_of=held.prompt_of,
        by_temperature=held.by_temperature,
    )
