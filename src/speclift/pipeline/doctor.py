"""What doctor reports: facts of this machine that decide how a study on it will go."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from speclift import __version__
from speclift.engine.llamacpp import default_threads
from speclift.measure.provenance import host_facts
from speclift.store import models

TIMER_PROBES = 200
TIMER_STEP_S = 0.002


def diagnose() -> dict[str, Any]:
    cache = models.models_directory()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    late_s = asyncio.run(_timer_lateness_s())
    return {
        "speclift": __version__,
        "engines": {
            "llamacpp": _package("xllamacpp", extra="llama"),
            "llama_server": shutil.which("llama-server") or "not on PATH",
        },
        "host": host_facts(),
        "threads_for_the_engine": default_threads(),
        "timer_late_ms": {
            "p50": round(float(np.percentile(late_s, 50)) * 1000, 3),
            "p99": round(float(np.percentile(late_s, 99)) * 1000, 3),
        },
        "models": {
            model.name: "cached" if model.is_cached else "not cached" for model in models.list_models()
        },
        "cache": str(cache),
        "cache_free_bytes": shutil.disk_usage(existing).free,
        "study_folder_free_bytes": shutil.disk_usage(Path.cwd()).free,
    }


def _package(name: str, *, extra: str) -> str:
    if importlib.util.find_spec(name) is None:
        return f"not installed: pip install 'speclift[{extra}]'"
    return f"{name} {importlib.metadata.version(name)}"


async def _timer_lateness_s() -> list[float]:
    """How late the event loop wakes on an idle client: the floor under every latency this machine can report."""
    late = []
    for _ in range(TIMER_PROBES):
        due = time.perf_counter() + TIMER_STEP_S
        await asyncio.sleep(TIMER_STEP_S)
        late.append(time.perf_counter() - due)
    return late
