"""How much memory is free on this machine now."""

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
