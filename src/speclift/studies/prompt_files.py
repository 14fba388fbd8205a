"""Prompt files and the bundled set, read from disk."""

from __future__ import annotations

import gzip
import zlib
from functools import partial
from importlib import resources
from pathlib import Path

from speclift.core.errors import UsageError
from speclift.core.traffic import Workload
from speclift.workload.formats import DOCUMENT_BYTES_MAX
from speclift.workload.prompts import parse_workload

GZIP_MAGIC = b"\x1f\x8b"
BUNDLED = "bundled"


def read_workload(path: Path) -> Workload:
    try:
        with path.open("rb") as file:
            is_gzip = file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)  # peek: a pipe cannot seek back
            stream = gzip.GzipFile(fileobj=file) if is_gzip else file
            # A line is bounded, so that one endless line is refused and not swallowed.
            lines = iter(partial(stream.readline, DOCUMENT_BYTES_MAX + 1), b"")
            return parse_workload(lines, source=str(path))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read --prompts {path}: {reason}") from error
    except MemoryError as error:
        raise UsageError(
            f"--prompts {path} does not fit into memory",
            hint="JSON lines need less than an array: head -n 5000 requests.jsonl > part.jsonl",
        ) from error


def bundled_workload() -> Workload:
    folder = resources.files("speclift.workload") / "bundled"
    files = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".jsonl")), key=lambda f: f.name
    )
    lines = [line for entry in files for line in entry.read_bytes().splitlines(keepends=True)]
    return parse_workload(lines, source=BUNDLED)
