"""Request logs read one entry at a time, so that a log of any size needs the memory of its longest line."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob
from pathlib import Path
from types import ModuleType
from typing import IO, cast

from speclift.core.address import concealed_within, without_secrets
from speclift.core.errors import UsageError
from speclift.core.quantities import printable
from speclift.core.units import Bytes
from speclift.studies.prompt_files import GZIP_MAGIC
from speclift.workload.formats import read_entries

# A request of a million tokens with its ids spelt out is about 20 MB.
LINE_BYTES_MAX = 1 << 26
BUFFER_BYTES = 1 << 18
GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """`data` is what the line holds, or None where `fault` says why it cannot be read."""

    where: str
    data: object = None
    fault: str = ""


def read_log(path: Path | str, *, line_bytes_max: Bytes = LINE_BYTES_MAX) -> Iterator[LogEntry]:
    """JSON lines, a broken one as an entry with its fault; or one JSON array, which is read whole. `path` may be an
    address of an object store."""
    try:
        with _opened(path) as raw, io.BufferedReader(raw, BUFFER_BYTES) as file:  # type: ignore[type-var]
            is_gzip = file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            stream: IO[bytes] = gzip.GzipFile(fileobj=file) if is_gzip else file  # type: ignore[assignment]
            yield from _entries(stream, str(path), line_bytes_max)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {shown_address(path)}: {without_secrets(reason)}") from error
    except MemoryError as error:
        raise UsageError(
            f"{path} does not fit into memory", hint="JSON lines are read one at a time: jq -c '.[]' FILE"
        ) from error


def log_shards(logs: Sequence[Path | str]) -> tuple[str, ...]:
    """The files that names and patterns stand for, in the order given, those of a pattern by name. UsageError where one
    stands for none."""
    shards: list[str] = []
    for log in logs:
        name = str(log)
        if not set(name) & GLOB_CHARACTERS or (not is_address(name) and Path(name).exists()):
            shards.append(name)
            continue
        # Unlike pathlib's, as a shell has it: no hidden files.
        found = _matching_addresses(name) if is_address(name) else sorted(glob(name, recursive=True))  # noqa: PTH207
        files = [each for each in found if is_address(each) or not Path(each).is_dir()]
        if not files:
            raise UsageError(f"no file matches {shown_address(name)}")
        shards += files
    return tuple(dict.fromkeys(shards))


def is_address(name: Path | str) -> bool:
    return "://" in str(name)


def shown_address(name: Path | str) -> str:
    return concealed_within(str(name))


def _opened(path: Path | str) -> IO[bytes]:
    if not is_address(path):
        return Path(path).open("rb", buffering=0)
    with _named_errors(path):
        return cast(IO[bytes], _fsspec().open(str(path), "rb").open())


def _matching_addresses(pattern: str) -> list[str]:
    with _named_errors(pattern):
        files, root = _fsspec().core.url_to_fs(pattern)
        return sorted(str(files.unstrip_protocol(path)) for path in files.glob(root))


@contextmanager
def _named_errors(path: Path | str) -> Iterator[None]:
    """A store that fsspec does not know, or whose package is missing, as wrong usage."""
    try:
        yield
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"cannot open {shown_address(path)}: {without_secrets(printable(str(error)))}",
            hint="fsspec opens it; each store has a package: pip install s3fs, gcsfs or adlfs",
        ) from error


def _fsspec() -> ModuleType:
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(
            "an object store is read through fsspec, which is not installed",
            hint="pip install 'speclift[ray]'",
        ) from error
    return cast(ModuleType, fsspec)


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
