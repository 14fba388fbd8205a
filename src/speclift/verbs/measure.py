"""measure: the records, without a verdict."""

from __future__ import annotations

from typing import Any

from speclift.bench.ask import Ask
from speclift.bench.opening import open_study
from speclift.bench.run import run_study
from speclift.bench.search_study import Quiet, unheard
from speclift.verbs.judge import judge
from speclift.views.document import measure_document
from speclift.views.documents import MeasureDocument


def measure(ask: Ask | None = None, **settings: Any) -> MeasureDocument:
    """Measure as asked, without a verdict: returns the document of `measure --json`."""
    ask = ask or Ask(**settings)
    study, deadline = open_study(ask, unheard)
    with study:
        run_study(study, progress=Quiet(), deadline=deadline, workers=ask.workers)
        judgement = judge([study])
        return measure_document(judgement.cells, judgement.findings, study=judgement.study)
