"""Prometheus' text format 0.0.4: families of samples, whatever text their labels hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from speclift.core.gateway_totals import TimeHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_CHARACTERS_MAX = 300

Sample = tuple[Mapping[str, str], float | None]


def family(short: str, kind: str, meaning: str, samples: Iterable[Sample]) -> str:
    """Those samples that are known; nothing at all where none is."""
    name = f"speclift_{short}"
    return _with_head(name, kind, meaning, (_line(name, labels, value) for labels, value in samples))


def histogram_family(
    short: str, meaning: str, histograms: Iterable[tuple[Mapping[str, str], TimeHistogram]]
) -> str:
    """Those that counted anything."""
    name = f"speclift_{short}"
    lines = (line for labels, each in histograms if each.count for line in _histogram(name, labels, each))
    return _with_head(name, "histogram", meaning, lines)


def _histogram(name: str, labels: Mapping[str, str], histogram: TimeHistogram) -> Iterator[str]:
    so_far = 0
    for edge, count in zip((*histogram.edges, math.inf), histogram.counts, strict=True):
        so_far += count
        yield _line(f"{name}_bucket", {**labels, "le": _number(edge)}, so_far)
    yield _line(f"{name}_sum", labels, histogram.sum_s)
    yield _line(f"{name}_count", labels, so_far)


def _with_head(name: str, kind: str, meaning: str, lines: Iterable[str]) -> str:
    text = "".join(lines)
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{text}" if text else ""


def _line(name: str, labels: Mapping[str, str], value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{name}{_labels(labels)} {_number(value)}\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    """As the format wants it. A carriage return ends no line there, but does in the eyes of some readers."""
    shown = text[:LABEL_CHARACTERS_MAX].encode("utf-8", "replace").decode()
    return (
        shown.replace("\\", r"\\")
        .replace('"', r"\"")
        .replace("\n", r"\n")
        .replace("\r", " ")
        .replace("\0", " ")
    )


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
