"""Seconds since the Unix epoch that never step back: wall time at import, monotonic from there.

The monotonic clock is the machine's, so that moments taken by another process on it can be translated.
"""

from __future__ import annotations

import time

from speclift.core.units import Seconds

_EPOCH = time.time() - time.perf_counter()


def now_s() -> Seconds:
    return _EPOCH + time.perf_counter()


def from_monotonic(moment: Seconds) -> Seconds:
    """A reading of time.perf_counter, of whichever process, on this clock."""
    return _EPOCH + moment


def to_monotonic(moment_s: Seconds) -> Seconds:
    return moment_s - _EPOCH
