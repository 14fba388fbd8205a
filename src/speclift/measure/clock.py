"""Seconds since the Unix epoch that never step back: wall time at import, monotonic from there."""

from __future__ import annotations

import time

from speclift.core.units import Seconds

_EPOCH = time.time() - time.perf_counter()


def now_s() -> Seconds:
    return _EPOCH + time.perf_counter()
