"""Studies as they were recorded, put where a command finds them, and changed by hand before it looks."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "recorded"
# How long something took; which speclift planned (a study keeps the one that measured it).
UNALIKE = (".wall_s", ".speclift")
# Where it lies differs from machine to machine.
FAKE_SERVER = "fake_server"
# A sum in another order is the same number.
ROUNDING = 1e-9

# Puts text on standard input: the fixture `typed`.
Typed = Callable[[str], None]


def recorded_study(name: str, folder: Path, *changes: str) -> Path:
    """The study of that name in the folder; each change is SQL that is run on its database."""
    study = folder / name
    study.mkdir()
    script = gzip.decompress((RECORDED / "studies" / f"{name}.sql.gz").read_bytes())
    with closing(sqlite3.connect(study / "study.sqlite")) as database:
        database.executescript(script.decode())
        # Values that are kept have a checksum beside them.
        database.create_function("sha256", 1, lambda text: sha256(text.encode()).hexdigest())
        for change in changes:
            database.executescript(change)
        database.execute(
            "UPDATE meta SET value = sha256((SELECT value FROM meta AS kept WHERE kept.key = "
            "substr(meta.key, 1, length(meta.key) - 7))) WHERE key LIKE '%#sha256'"
        )
        database.commit()
    return study


def document_of(name: str) -> Any:
    """A document as it once was."""
    packed = RECORDED / "documents" / f"{name}.json.gz"
    plain = packed.with_suffix("")
    return json.loads(plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes()))


def differences(before: object, after: object, at: str = "") -> Iterator[str]:
    """Where a document says something else than it did; what it says beyond that is no difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if (place := f"{at}.{key}") not in UNALIKE:
                yield from differences(value, after.get(key, "nothing"), place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, value in enumerate(before):
            yield from differences(value, after[index], f"{at}[{index}]")
    elif (
        isinstance(before, float)
        and isinstance(after, int | float)
        and math.isclose(before, after, rel_tol=ROUNDING)
    ):
        return
    elif before != after and not all(FAKE_SERVER in str(value) for value in (before, after)):
        yield f"{at}: {before!r} -> {after!r}"
