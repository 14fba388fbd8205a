"""What of this machine an engine may take."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from speclift.core.units import Bytes

# Arms stay up side by side only while all of them fit this share of the memory that is free now.
TOGETHER_MEMORY_SHARE = 0.4
DRIVER_LIMIT_S = 10.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeGpuMemory:
    free_bytes: Bytes
    total_bytes: Bytes


def available_memory_bytes() -> Bytes:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def gpu_memory() -> FreeGpuMemory | None:
    """Of the GPU that an engine would take; None without an NVIDIA driver, and where it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    words = [program, "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            [*words, f"--id={visible or 0}"],
            capture_output=True,
            text=True,
            timeout=DRIVER_LIMIT_S,
            check=True,
        ).stdout
        free, total = (int(field) * _MIB for field in told.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None
    return FreeGpuMemory(free_bytes=free, total_bytes=total)


def default_threads() -> int:
    """One core stays with the load generator: llama.cpp's spin barriers stall when a core is shared
    (2 threads on 2 busy cores gave 0.7-5 tokens/s where 1 thread gave 60-90)."""
    return max(1, min(len(os.sched_getaffinity(0)) - 1, 16))
