"""decide and tune: search where there is anything to search, measure, check the output, judge."""

from __future__ import annotations

import time
from typing import Any

from speclift.bench.ask import Ask
from speclift.bench.diagnosis import diagnose_tail
from speclift.bench.gate_study import before_gate, check_lossless
from speclift.bench.observer import Observer
from speclift.bench.opening import prepare_bench
from speclift.bench.search_study import search_best
from speclift.core.document import plain_object
from speclift.core.quantities import printable
from speclift.core.results import Verdict
from speclift.fleet.opening import search_place, workplace_for
from speclift.studies.outputs import relative
from speclift.verbs.measure import Measured, judged, until_stopped
from speclift.verbs.study_data import interim_checks


def decide(ask: Ask | None = None, observer: Observer | None = None, **settings: object) -> Verdict:
    """Measure as asked and return the verdict: `speclift.decide(methods=("ngram",), ks=(8,))`.

    `settings` are named like the flags (bench/ask.py); the study it leaves behind holds the records.
    """
    return decided(ask or Ask.of(**settings), observer or Observer()).whole().judgement.verdict


def decided(ask: Ask, observer: Observer, *, verb: str = "decide") -> Measured:
    """Of tune too, which searches even where only one arm was named."""
    bench = prepare_bench(ask, observer, always=verb == "tune")
    with search_place(bench, observer) as place:
        bench = search_best(bench, observer, place)
    with bench.study as study:
        arms = ", ".join(arm.name for arm in study.plan.arms)
        observer.say(f"study {relative(study.path)}: {printable(arms)}")
        begun_s = time.monotonic()
        with until_stopped(study, observer, verb=verb) as stop, workplace_for(bench, observer) as place:
            place.run_study(
                study,
                observer=observer,
                deadline=before_gate(bench),
                workers=ask.workers,
                look=interim_checks(study, observer),
            )
            check_lossless(bench, observer, study_s=time.monotonic() - begun_s, place=place)
            diagnose_tail(bench, observer, place)
        return judged(study, stop, observer)


def tune(ask: Ask | None = None, observer: Observer | None = None, **settings: object) -> dict[str, Any]:
    """Search and confirm: `speclift.tune(methods=("ngram",), budget_s=600)` returns the document of `tune --json`."""
    done = decided(ask or Ask.of(**settings), observer or Observer(), verb="tune")
    return plain_object(done.whole().document)
