"""Files for the user alone: a study holds what people asked and what was answered. And files that the user names,
read to an end.

A stricter umask stays stricter. What exists already keeps the rights that somebody gave it.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time
from pathlib import Path

from speclift.core.errors import UsageError
from speclift.core.quantities import size
from speclift.core.units import Bytes, Seconds

FOLDER_MODE, FILE_MODE = 0o700, 0o600
STDIN = "-"
# Of a pipe that another program writes to.
WAIT_S: Seconds = 60.0


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


def read_named(path: Path, *, what: str, limit_bytes: Bytes, wait_s: Seconds = WAIT_S) -> bytes:
    """A file that the user named, `-` for standard input. UsageError where it is too long, or a pipe or a device that
    does not come to its end in time."""
    name = "standard input" if str(path) == STDIN else f"{what} {path}".strip()
    try:
        data = _bounded(path, limit_bytes + 1, wait_s)
    except TimeoutError:
        raise UsageError(f"{name} had not ended after {wait_s:g} s", hint="give a file") from None
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error
    if len(data) > limit_bytes:
        raise UsageError(f"{name} has more than {size(limit_bytes)}: nothing of the kind is that long")
    return data


def _bounded(path: Path, most: int, wait_s: Seconds) -> bytes:
    if str(path) == STDIN:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "it is closed")
        return sys.stdin.buffer.read(most)
    # Without waiting for somebody to open the other end of a pipe.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb", buffering=0) as opened:
        if stat.S_ISREG(os.fstat(file).st_mode):
            return opened.read(most)
        data, until_s = bytearray(), time.monotonic() + wait_s
        while len(data) < most:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([file], [], [], left_s)[0]:
                raise TimeoutError
            more = opened.read(most - len(data))
            if more is not None:
                data += more
            if more == b"":
                break
        return bytes(data)
