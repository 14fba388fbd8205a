"""How much GPU memory a server holds and how much is free, by nvidia-smi: a program of its own, so that nothing of a
driver is loaded here.

By the server's processes where nvidia-smi names them; from inside a container it often does not. Then by what is used
beyond what was used before the launch, as long as no other server of ours came or went.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from speclift.core.units import Bytes

NVIDIA_SMI = "nvidia-smi"
QUERY_LIMIT_S = 5.0
MIB = 1 << 20
_NUMBERS = re.compile(r"\d+")
# Of /proc/PID/stat: the name in brackets may hold anything, the parent is the second field after it.
_PARENT = re.compile(r".*\) \S (\d+) ", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeLaunch:
    """The memory in use when a server was about to start, and how often servers had come or gone by then."""

    changes: int
    used: Bytes | None


class GpuMemory:
    """Of one study's servers. Its methods wait for nvidia-smi: call them beside the event loop."""

    def __init__(self) -> None:
        self._changes = 0

    def before_launch(self) -> BeforeLaunch:
        self._changes += 1
        return BeforeLaunch(changes=self._changes, used=_used_bytes())

    def after_stop(self) -> None:
        self._changes += 1

    def held(self, before: BeforeLaunch, processes: frozenset[int]) -> Bytes | None:
        """None where nobody can tell."""
        own = sum(held for pid, held in _by_process().items() if pid in processes)
        if own:
            return own
        used = _used_bytes()
        if before.changes != self._changes or used is None or before.used is None:
            return None
        return max(0, used - before.used) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRoom:
    free_bytes: Bytes
    total_bytes: Bytes


def gpu_room() -> GpuRoom | None:
    """Of the GPU that an engine on one GPU would take; None where nobody can tell."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    rows = _queried("gpu=memory.free,memory.total", f"--id={visible or 0}")
    if not rows or len(rows[0]) != 2:
        return None
    free, total = rows[0]
    return GpuRoom(free_bytes=free * MIB, total_bytes=total * MIB)


def compute_capability() -> tuple[int, int] | None:
    """Of that GPU, such as (9, 0); None where nobody can tell."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    rows = _queried("gpu=compute_cap", f"--id={visible or 0}")
    return (rows[0][0], rows[0][1]) if rows and len(rows[0]) == 2 else None


def has_gpus() -> bool:
    return shutil.which(NVIDIA_SMI) is not None


def family_of(pid: int) -> frozenset[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = _PARENT.match(status.read_text(errors="replace"))
        except OSError:  # it ended meanwhile
            continue
        if parent is not None:
            children.setdefault(int(parent[1]), []).append(int(status.parent.name))
    found, waiting = {pid}, [pid]
    while waiting:
        own = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(own)
        waiting += own
    return frozenset(found)


def _by_process() -> dict[int, Bytes]:
    """Over all GPUs; what has no figure (its memory is another container's) is left out."""
    held: dict[int, Bytes] = {}
    for row in _queried("compute-apps=pid,used_memory"):
        if len(row) == 2:
            held[row[0]] = held.get(row[0], 0) + row[1] * MIB
    return held


def _used_bytes() -> Bytes | None:
    """Over all GPUs, whoever uses it."""
    rows = [row for row in _queried("gpu=memory.used") if row]
    return sum(row[0] for row in rows) * MIB if rows else None


def _queried(what: str, *more: str) -> list[list[int]]:
    """The whole numbers of each line; none where nvidia-smi is missing, fails or hangs."""
    try:
        told = subprocess.run(
            [NVIDIA_SMI, f"--query-{what}", "--format=csv,noheader,nounits", *more],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=QUERY_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[int(number) for number in _NUMBERS.findall(line)] for line in told.stdout.splitlines()]
