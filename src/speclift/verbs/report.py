"""report: a judgement's document as one page."""

from __future__ import annotations

from pathlib import Path

from speclift.studies.outputs import write_result
from speclift.verdict.document import VerdictDocument
from speclift.views.page import page


def write_report(document: VerdictDocument, path: Path) -> None:
    """One self-contained page; written whole or not at all."""
    write_result(path, page(document))
