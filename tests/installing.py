"""A package that adds an engine, left on disk as pip would leave it, and seen by this process alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speclift.engines import kind


@contextmanager
def installed(folder: Path, source: str) -> Iterator[None]:
    """With an engine named tiny in it; what is known of engines is forgotten before and after."""
    (folder / "tiny_engine.py").write_text(source, encoding="utf-8")
    metadata = folder / "tiny_engine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[speclift.engines]\ntiny = tiny_engine:KIND\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        # The tests' own module of that name is another one.
        patch.delitem(sys.modules, "tiny_engine", raising=False)
        importlib.invalidate_caches()
        _forget()
        yield
        sys.modules.pop("tiny_engine", None)
    _forget()


def _forget() -> None:
    kind._points.cache_clear()
    kind.engine_kind.cache_clear()
