"""What is handed on from preparing to judging: a study that is open, and until when."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.bench.ask import Ask
from speclift.core.deadline import Deadline
from speclift.studies.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    ask: Ask
    # What is measured next: the search's own study first, where there is one.
    study: Study
    # The end of the time for everything that is still to come.
    deadline: Deadline
    searches: bool = False
