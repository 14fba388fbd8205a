"""compare: the verdict on studies that are there already."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from speclift.core.goals import Goals
from speclift.studies.study import Study
from speclift.verbs.judge import judge
from speclift.verdict.judgement import Judgement


def compare(paths: Sequence[Path], *, goals: Goals | None = None) -> Judgement:
    """The verdict on what finished studies hold; several are pooled when their environments agree."""
    with ExitStack() as stack:
        return judge([stack.enter_context(Study.open(path)) for path in paths], goals=goals)
