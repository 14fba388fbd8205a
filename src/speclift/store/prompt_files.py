"""Prompt files and the bundled set, read from disk."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from speclift.core.errors import UsageError
from speclift.core.traffic import Workload
from speclift.workload.prompts import parse_workload

BUNDLED = "bundled"


def read_workload(path: Path) -> Workload:
    try:
        with path.open("rb") as lines:
            return parse_workload(lines, source=str(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot read --prompts {path}: {reason}") from error


def bundled_workload() -> Workload:
    folder = resources.files("speclift.workload") / "bundled"
    files = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".jsonl")), key=lambda f: f.name
    )
    lines = [line for entry in files for line in entry.read_bytes().splitlines(keepends=True)]
    return parse_workload(lines, source=BUNDLED)
