"""Files for the user alone: a study holds what people asked and what was answered.

A stricter umask stays stricter. What exists already keeps the rights that somebody gave it.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600


def private_folder(path: Path) -> None:
    """With its parents, as far as they are missing."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(mode=FOLDER_MODE, exist_ok=True)
    path.mkdir(exist_ok=True)  # FileExistsError where it is something else


def private_file(path: Path) -> None:
    """There, and empty where it was not; what other programs add beside it (SQLite) takes its rights over."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, FILE_MODE))


def write_private(path: Path, text: str) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.unlink(missing_ok=True)
    private_file(unfinished)
    try:
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
