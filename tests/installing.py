"""Packages left on disk as pip would leave them: one that adds an engine, and bare metadata."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speclift.engines import kind, named


@contextmanager
def installed(folder: Path, source: str) -> Iterator[None]:
    """With an engine named tiny in it; what is known of engines is forgotten before and after."""
    leave_engine(folder, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        # The tests' own module of that name is another one.
        patch.delitem(sys.modules, "tiny_engine", raising=False)
        importlib.invalidate_caches()
        _forget()
        yield
        sys.modules.pop("tiny_engine", None)
    _forget()


def leave_engine(folder: Path, source: str) -> None:
    """For whoever has this folder on its path."""
    (folder / "tiny_engine.py").write_text(source, encoding="utf-8")
    metadata = leave_metadata(folder, "tiny_engine", version="1")
    (metadata / "entry_points.txt").write_text("[speclift.engines]\ntiny = tiny_engine:KIND\n")


def leave_metadata(folder: Path, package: str, *, version: str) -> Path:
    """What pip leaves of a package, without the package."""
    metadata = folder / f"{package}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return metadata


def _forget() -> None:
    named.points.cache_clear()
    named.known_dialects.cache_clear()
    kind.engine_kind.cache_clear()
