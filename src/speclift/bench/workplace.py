"""Where a study's servers run: on this machine, or on the nodes of a fleet (fleet/). Verbs are given one of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeAlias, TypeVar

from speclift.bench.course import InterimCheck
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.run import run_study
from speclift.core.deadline import Deadline
from speclift.studies.study import Study

T = TypeVar("T")
# A function of a module, so that a node can be sent its name, that takes `logs`, `observer` and `deadline` too.
Work: TypeAlias = Callable[..., Coroutine[object, object, T]]


class Workplace:
    """This machine; a fleet overrides both. Ctrl-C ends what runs, with its servers, wherever they are."""

    def run_study(
        self,
        study: Study,
        *,
        observer: Observer,
        deadline: Deadline,
        workers: int = 1,
        look: InterimCheck | None = None,
    ) -> None:
        """Measures the rest of the study. `look` says what is still wanted after so many laps."""
        run_study(study, observer=observer, deadline=deadline, workers=workers, look=look)

    def run(self, work: Work[T], *arguments: object, logs: Path, observer: Observer, deadline: Deadline) -> T:
        """The result of `work`, which takes one server at a time."""
        return run_until_signal(work(*arguments, logs=logs, observer=observer, deadline=deadline))


HERE = Workplace()
