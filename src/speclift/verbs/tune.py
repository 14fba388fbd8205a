"""tune: the best configuration, searched and confirmed."""

from __future__ import annotations

from typing import Any

from speclift.bench.ask import Ask
from speclift.verbs.decide import decided
from speclift.views.document import verdict_document
from speclift.views.documents import VerdictDocument


def tune(ask: Ask | None = None, **settings: Any) -> VerdictDocument:
    """Search and confirm: `speclift.tune(methods=("ngram",), budget_s=600)` returns the document of `tune --json`."""
    return verdict_document(decided(ask or Ask(**settings), always=True))
