"""tune: the best configuration, searched and confirmed."""

from __future__ import annotations

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.verbs.decide import decided
from speclift.views.document import verdict_document
from speclift.views.documents import VerdictDocument


def tune(ask: Ask | None = None, observer: Observer | None = None, **settings: object) -> VerdictDocument:
    """Search and confirm: `speclift.tune(methods=("ngram",), budget_s=600)` returns the document of `tune --json`."""
    done = decided(ask or Ask.of(**settings), observer or Observer(), verb="tune")
    return verdict_document(done.whole())
