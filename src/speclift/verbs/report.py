"""report: a judgement's document as one page."""

from __future__ import annotations

from pathlib import Path

from speclift.core.errors import StudyError
from speclift.studies.private import private_folder, write_private
from speclift.views.documents import VerdictDocument
from speclift.views.page import page


def write_report(document: VerdictDocument, path: Path) -> None:
    """One self-contained page; written whole or not at all."""
    try:
        private_folder(path.parent)
        write_private(path, page(document))
    except OSError as error:
        raise StudyError(f"cannot write the report {path}: {error.strerror or error}") from error
