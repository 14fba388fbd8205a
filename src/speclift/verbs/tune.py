"""tune: the best configuration, searched and confirmed."""

from __future__ import annotations

from typing import Any

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.verbs.decide import decided
from speclift.verbs.report import judgement_document


def tune(ask: Ask | None = None, observer: Observer | None = None, **settings: object) -> dict[str, Any]:
    """Search and confirm: `speclift.tune(methods=("ngram",), budget_s=600)` returns the document of `tune --json`."""
    done = decided(ask or Ask.of(**settings), observer or Observer(), verb="tune")
    return judgement_document(done.whole())
