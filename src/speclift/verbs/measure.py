"""measure: the records, without a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.opening import prepare_named
from speclift.core.document import plain_object
from speclift.core.errors import OperatingError, StudyError
from speclift.fleet.opening import workplace_for
from speclift.studies.outputs import relative
from speclift.studies.study import Study
from speclift.verbs.judge import judge_and_keep
from speclift.verdict.document import VerdictDocument, measure_document
from speclift.verdict.judgement import Judgement


def measure(ask: Ask | None = None, observer: Observer | None = None, **settings: object) -> dict[str, Any]:
    """Measure as asked, without a verdict: returns the document of `measure --json`."""
    judgement = measured(ask or Ask.of(**settings), observer or Observer()).whole().judgement
    return plain_object(measure_document(judgement))


def measured(ask: Ask, observer: Observer) -> Measured:
    bench = prepare_named(replace(ask, fixed=True), observer)
    with bench.study as study:
        observer.say(f"study {relative(study.path)}")
        with (
            until_stopped(study, observer, verb="measure") as stop,
            workplace_for(bench, observer) as place,
        ):
            place.run_study(study, observer=observer, deadline=bench.deadline, workers=ask.workers)
        return judged(study, stop, observer)


@dataclass(slots=True)
class Stop:
    """What ended the work early, if anything did."""

    error: KeyboardInterrupt | OperatingError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What there is to say, and what ended the work early, if anything did."""

    judgement: Judgement
    document: VerdictDocument
    ended_by: KeyboardInterrupt | OperatingError | None = None

    def whole(self) -> Measured:
        if self.ended_by is not None:
            raise self.ended_by
        return self


@contextmanager
def until_stopped(study: Study, observer: Observer, *, verb: str) -> Iterator[Stop]:
    """Holds back what ends the work early: what was measured until then is judged all the same."""
    stop = Stop()
    try:
        yield stop
    except KeyboardInterrupt as error:
        stop.error = error
        observer.say(f"stopped; continue with: speclift {verb} --resume --study {relative(study.path)}")
    except StudyError:
        raise
    except OperatingError as error:
        stop.error = error


def judged(study: Study, stop: Stop, observer: Observer) -> Measured:
    """The verdict on what was measured; where that is nothing, what ended the work is raised."""
    try:
        judgement, kept = judge_and_keep(study)
    except StudyError:
        if stop.error is None:
            raise
        if isinstance(stop.error, KeyboardInterrupt):
            observer.say("nothing was measured yet")
        raise stop.error from None
    return Measured(judgement=judgement, document=kept.document, ended_by=stop.error)
