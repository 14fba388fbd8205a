"""What of this machine an engine may take."""

from __future__ import annotations

import os
from pathlib import Path

from speclift.core.units import Bytes

# Arms stay up side by side only while all of them fit this share of the memory that is free now.
TOGETHER_MEMORY_SHARE = 0.4


def available_memory_bytes() -> Bytes:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def default_threads() -> int:
    """One core stays with the load generator: llama.cpp's spin barriers stall when a core is shared
    (2 threads on 2 busy cores gave 0.7-5 tokens/s where 1 thread gave 60-90)."""
    return max(1, min(len(os.sched_getaffinity(0)) - 1, 16))
