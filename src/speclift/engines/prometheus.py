"""Prometheus exposition text to totals. Pure."""

from __future__ import annotations

import math
import re
from io import StringIO

from speclift.core.engine_totals import USED
from speclift.core.errors import EngineError
from speclift.core.records import Counters

# vLLM's page has some 2,000 samples for each engine core (0.32); a page of far more is no engine's.
SAMPLES_MAX = 100_000
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{[^}]*\})?\s+([^\s]+)")

# A label begins where no word goes on: looked for at every letter, a long word would take its square in time.
_LABEL = re.compile(r'(?<!\w)(\w+)="([^"]*)"')


def labels_of(name: str) -> dict[str, str]:
    """The labels that a sample's name carries."""
    return dict(_LABEL.findall(name))


def parse_counters(text: str) -> Counters:
    """Every finite sample by name, labels kept as written; comments and broken lines are skipped. EngineError for
    more than an engine has."""
    values: dict[str, float] = {}
    for line in StringIO(text):
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        # Of what is used, also what cannot be a total: whoever reads it refuses it by name.
        if math.isfinite(value) or match[1] in USED:
            values[match[1] + (match[2] or "")] = value
        if len(values) > SAMPLES_MAX:
            raise EngineError(
                f"the metrics page has more than {SAMPLES_MAX:,} samples, more than any engine has",
                hint="give the engine's own page with --baseline-metrics-url and --spec-metrics-url",
            )
    return Counters(values=values)
