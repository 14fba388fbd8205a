"""A package that adds an engine, left on disk as pip would leave it."""

from __future__ import annotations

import os
from pathlib import Path


def install(folder: Path, source: str) -> dict[str, str]:
    """With an engine named tiny in it; the environment of a process that sees it."""
    (folder / "tiny_engine.py").write_text(source, encoding="utf-8")
    metadata = folder / "tiny_engine-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[speclift.engines]\ntiny = tiny_engine:KIND\n")
    return {**os.environ, "PYTHONPATH": str(folder)}
