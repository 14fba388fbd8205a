"""On which part of the traffic would an arm ship? A bounded search over ceilings and segments.

Ceilings on load and temperature are tried in all combinations. Within each, segments join in the order of their
lower bounds, so eight segments give eight sets and not 255; compare.py widens the intervals for the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from speclift.core.arm import Arm
from speclift.core.results import ALL_TRAFFIC, TEMPERATURE_DASH, Comparison, Conditions, Evidence, Part
from speclift.core.traffic import Concurrency

EvidenceFor = Callable[[Arm, Conditions], Evidence]


def best_part(
    on_all: Sequence[Evidence], evidence_for: EvidenceFor, *, ships: Callable[[Evidence], bool], bar: float
) -> Evidence | None:
    """The largest part of the traffic on which an arm ships; ties go to the higher lower bound."""
    best: Evidence | None = None
    for whole in on_all:
        for ceiling in ceilings(whole):
            within = whole if ceiling == ALL_TRAFFIC else evidence_for(whole.arm, ceiling)
            if best is not None and _size(within) < _size(best):
                continue  # whatever segments are taken from it, it stays smaller
            for evidence in _parts_within(within, evidence_for, bar=bar):
                if ships(evidence):
                    best = evidence if best is None or _rank(evidence) > _rank(best) else best
                    break
    return best


def ceilings(whole: Evidence) -> Iterator[Conditions]:
    """No ceiling first, then every measured load and temperature but the highest, alone and together."""
    loads = {cell.load for cell in whole.cells}
    streams = sorted({load.streams for load in loads if isinstance(load, Concurrency)}, reverse=True)
    rates = sorted({load.per_s for load in loads if not isinstance(load, Concurrency)}, reverse=True)
    labels = [part.label for part in whole.parts if part.part is Part.TEMPERATURE]
    # A bucket of temperatures is named by its lowest and highest; a ceiling is its highest.
    temperatures = sorted({float(label.rpartition(TEMPERATURE_DASH)[2]) for label in labels}, reverse=True)
    for concurrency, qps, temperature in product(
        (None, *streams[1:]), (None, *rates[1:]), (None, *temperatures[1:])
    ):
        yield Conditions(max_concurrency=concurrency, max_qps=qps, max_temperature=temperature)


def _parts_within(within: Evidence, evidence_for: EvidenceFor, *, bar: float) -> Iterator[Evidence]:
    """All segments, then the surest ones, fewer and fewer: those whose mean reaches the bar at all. A segment whose
    answers are loops is in none of them."""
    if within.conditions != ALL_TRAFFIC:
        yield within
    looping = {found.segment for found in within.degenerate}
    segments = [part for part in within.parts if part.part is Part.SEGMENT]
    surest = sorted(
        (part for part in segments if part.label not in looping),
        key=lambda part: part.speedup.low,
        reverse=True,
    )
    for count in range(min(len(surest), len(segments) - 1), 0, -1):
        if _mean_speedup(surest[:count]) >= bar:
            names = tuple(part.label for part in surest[:count])
            yield evidence_for(within.arm, replace(within.conditions, segments=names))


def _mean_speedup(parts: Sequence[Comparison]) -> float:
    prompts = sum(part.prompts_there for part in parts)
    return math.exp(sum(part.prompts_there * math.log(part.speedup.value) for part in parts) / prompts)


def _size(evidence: Evidence) -> float:
    # Shares of one part in two arms may differ by a failed request.
    return round(evidence.traffic_share, 3)


def _rank(evidence: Evidence) -> tuple[float, float]:
    low = evidence.overall.simultaneous.low if evidence.overall is not None else 0.0
    return _size(evidence), low
