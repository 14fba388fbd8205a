"""Request logs read one entry at a time, so that a log of any size needs the memory of its longest line."""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from speclift.core.errors import UsageError
from speclift.core.units import Bytes
from speclift.studies.prompt_files import GZIP_MAGIC
from speclift.workload.formats import read_entries

# A request of a million tokens with its ids spelt out is about 20 MB.
LINE_BYTES_MAX = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """`data` is what the line holds, or None where `fault` says why it cannot be read."""

    where: str
    data: object = None
    fault: str = ""


def read_log(path: Path, *, line_bytes_max: Bytes = LINE_BYTES_MAX) -> Iterator[LogEntry]:
    """JSON lines, a broken one as an entry with its fault; or one JSON array, which is read whole."""
    try:
        with path.open("rb") as file:
            is_gzip = file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            stream: IO[bytes] = gzip.GzipFile(fileobj=file) if is_gzip else file  # type: ignore[assignment]
            yield from _entries(stream, str(path), line_bytes_max)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {path}: {reason}") from error
    except MemoryError as error:
        raise UsageError(
            f"{path} does not fit into memory", hint="JSON lines are read one at a time: jq -c '.[]' FILE"
        ) from error


def _entries(stream: IO[bytes], source: str, line_bytes_max: Bytes) -> Iterator[LogEntry]:
    for number, line in enumerate(iter(partial(stream.readline, line_bytes_max), b""), start=1):
        text = line.removeprefix(BOM_UTF8) if number == 1 else line
        where = f"{source} line {number}"
        if number == 1 and text.lstrip().startswith(b"["):
            rest = iter(partial(stream.readline, line_bytes_max), b"")
            for entry in read_entries(_chained(text, rest), source=source):
                yield LogEntry(where=f"{source} {entry.position}", data=entry.data)
            return
        if len(line) == line_bytes_max and not line.endswith(b"\n"):
            _skip_line(stream, line_bytes_max)
            yield LogEntry(where=where, fault=f"longer than {line_bytes_max:,} bytes")
        elif text.strip():
            yield _parsed(text, where)


def _parsed(line: bytes, where: str) -> LogEntry:
    try:
        return LogEntry(where=where, data=json.loads(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return LogEntry(where=where, fault=f"not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return LogEntry(where=where, fault=f"not JSON ({error.msg}, column {error.colno})")
    except RecursionError:
        return LogEntry(where=where, fault="JSON nested too deeply")
    except ValueError:
        return LogEntry(where=where, fault="a number has too many digits")


def _skip_line(stream: IO[bytes], line_bytes_max: Bytes) -> None:
    for part in iter(partial(stream.readline, line_bytes_max), b""):
        if part.endswith(b"\n"):
            return


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
