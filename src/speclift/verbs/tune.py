"""tune: the best configuration, searched and confirmed."""

from __future__ import annotations

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.core.document import Json, plain_object
from speclift.verbs.decide import decided


def tune(ask: Ask | None = None, observer: Observer | None = None, **settings: object) -> dict[str, Json]:
    """Search and confirm: `speclift.tune(methods=("ngram",), budget_s=600)` returns the document of `tune --json`."""
    done = decided(ask or Ask.of(**settings), observer or Observer(), verb="tune")
    return plain_object(done.whole().document)
