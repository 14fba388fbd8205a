"""measure: the records, without a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from speclift.bench.ask import Ask
from speclift.bench.bench import Bench
from speclift.bench.observer import Observer
from speclift.bench.opening import prepare_named
from speclift.core.document import Json, plain_object
from speclift.core.errors import OperatingError, StudyError
from speclift.fleet.opening import workplace_for
from speclift.studies.outputs import relative
from speclift.verbs.judge import judge
from speclift.verdict.document import measure_document
from speclift.verdict.judgement import Judgement


def measure(ask: Ask | None = None, observer: Observer | None = None, **settings: object) -> dict[str, Json]:
    """Measure as asked, without a verdict: returns the document of `measure --json`."""
    judgement = measured(ask or Ask.of(**settings), observer or Observer()).whole()
    return plain_object(measure_document(judgement))


def measured(ask: Ask, observer: Observer) -> Measured:
    bench = prepare_named(replace(ask, fixed=True), observer)

    def run() -> None:
        observer.say(f"study {relative(bench.study.path)}")
        with workplace_for(bench, observer) as place:
            place.run_study(bench.study, observer=observer, deadline=bench.deadline, workers=ask.workers)

    return judged(bench, run, observer, verb="measure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What there is to say, and what ended the work early, if anything did."""

    judgement: Judgement
    ended_by: KeyboardInterrupt | OperatingError | None = None

    def whole(self) -> Judgement:
        if self.ended_by is not None:
            raise self.ended_by
        return self.judgement


def judged(bench: Bench, work: Callable[[], None], observer: Observer, *, verb: str) -> Measured:
    """What was measured is judged also where the work ended early; where that is nothing, what ended it is raised."""
    ended_by: KeyboardInterrupt | OperatingError | None = None
    with bench.study as study:
        try:
            work()
        except KeyboardInterrupt as error:
            ended_by = error
            observer.say(f"stopped; continue with: speclift {verb} --resume --study {relative(study.path)}")
        except StudyError:
            raise
        except OperatingError as error:
            ended_by = error
        try:
            return Measured(judgement=judge([study]), ended_by=ended_by)
        except StudyError:
            if ended_by is None:
                raise
            if isinstance(ended_by, KeyboardInterrupt):
                observer.say("nothing was measured yet")
            raise ended_by from None
