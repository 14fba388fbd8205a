"""What a study was judged to say: read from its folder, and judged where that is not written there yet.

What judges is imported where it is needed: a watch and a gateway read the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from speclift import __version__
from speclift.core.errors import StudyError, unknown_name
from speclift.core.flags import assembled, flat_values
from speclift.core.goals import Goals
from speclift.core.judged import StudyBreakEvens, StudyPrices
from speclift.studies.verdict_file import read_verdict

if TYPE_CHECKING:
    from speclift.verdict.document import JudgedStudy, VerdictDocument


Prices = TypeVar("Prices", bound=StudyPrices)


def prices_of(path: Path) -> StudyPrices:
    """By the study's own goals. StudyError where the study cannot be read, or holds nothing to judge."""
    return _kept(path, StudyPrices, goals=None) or _judged(path, goals=None)


def judged_study(path: Path, *, goals: Goals | None = None) -> JudgedStudy:
    """The same with the whole document; by the study's own goals where none are given."""
    from speclift.studies.outputs import relative
    from speclift.verdict.document import JudgedStudy

    kept = _kept(path, JudgedStudy, goals=goals)
    # Commands in it name the study as it lies from here.
    if kept is not None and kept.document.study == relative(path):
        return kept
    return _judged(path, goals=goals)


def compared(paths: Sequence[Path], changed: Mapping[str, object]) -> VerdictDocument:
    """The document of `compare`, by the first study's goals but for those `changed`, as flags say them."""
    goals = None
    if changed or len(paths) > 1:
        from speclift.studies.study import Study

        with Study.open(paths[0]) as first:
            goals = assembled(Goals, {**flat_values(first.goals), **changed})
    if len(paths) == 1:
        return verdict_of(paths[0], goals=goals)
    from speclift.verbs.compare import compare
    from speclift.verdict.document import verdict_document

    return verdict_document(compare(paths, goals=goals))


def verdict_of(path: Path, *, goals: Goals | None = None) -> VerdictDocument:
    """The document of `compare STUDY --json`."""
    return judged_study(path, goals=goals).document


def break_evens_of(prices: StudyPrices, arm: str | None = None) -> StudyBreakEvens:
    """Of the arm named, else of the winner, else of the arm that came nearest. StudyError where nothing was compared,
    UsageError where there is no such arm."""
    by_name = {evens.arm.name: evens for evens in prices.arms}
    if arm is not None and arm not in by_name:
        raise unknown_name(what="arm of this study", seen=arm, allowed=list(by_name))
    name = arm or prices.best
    if name is None:
        raise StudyError(
            "the study compared no arm with the baseline", hint="speclift compare says what is missing"
        )
    return by_name[name]


def _kept(path: Path, kind: type[Prices], *, goals: Goals | None) -> Prices | None:
    kept = read_verdict(path, kind)
    if kept is None or kept.speclift != __version__:
        return None
    has_those_goals = kept.has_own_goals if goals is None else kept.goals == goals
    return kept if has_those_goals else None


def _judged(path: Path, *, goals: Goals | None) -> JudgedStudy:
    from speclift.studies.study import Study
    from speclift.verbs.judge import judge_and_keep

    with Study.open(path) as study:
        _, kept = judge_and_keep(study, goals=goals)
    return kept


def write_report(document: VerdictDocument, path: Path) -> None:
    """One self-contained page; written whole or not at all."""
    from speclift.studies.outputs import write_result
    from speclift.views.page import page

    write_result(path, page(document))
