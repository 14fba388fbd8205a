"""Prometheus exposition text to totals. Pure."""

from __future__ import annotations

import math
import re

from speclift.core.records import Counters

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{[^}]*\})?\s+([^\s]+)")


def parse_counters(text: str) -> Counters:
    """Every finite sample by name, labels kept as written; comments and broken lines are skipped."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            values[match[1] + (match[2] or "")] = value
    return Counters(values=values)
