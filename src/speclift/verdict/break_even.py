"""At which accepted length does an arm break even, load by load and between the loads that were measured? Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from speclift.core.arm import BASELINE, Arm
from speclift.core.judged import CrossoverRunning, Knots, LoadBreakEven, interpolated
from speclift.core.records import Phase, Record
from speclift.core.results import Crossover, Evidence, cell_of
from speclift.core.traffic import Concurrency, Load
from speclift.verdict.rules import ALL, BreakEven, break_evens


def load_break_evens(evidence: Evidence, running: Mapping[Load, float]) -> tuple[LoadBreakEven, ...]:
    """`running` has the requests under way at each load; loads that are not in it are left out."""
    found = [
        LoadBreakEven(
            load=point.load,
            running=running[point.load],
            accepted_length=point.cost,
            measured=None if cell is None else cell.accepted_length,
            baseline_ttft_s=None if plain is None else plain.ttft_s,
            baseline_tpot_s=None if plain is None else plain.tpot_s,
        )
        for point in _points(evidence)
        if point.load in running
        for cell in (cell_of(evidence.cells, evidence.arm.name, point.load),)
        for plain in (cell_of(evidence.baseline_cells, BASELINE, point.load),)
    ]
    return tuple(sorted(found, key=lambda point: point.running))


def _points(evidence: Evidence) -> Iterable[BreakEven]:
    """By segments; of an engine that counts drafts for the server alone, each load as a whole."""
    whole = [cell for cell in (*evidence.cells, *evidence.baseline_cells) if cell.segment == ALL]
    found = (*break_evens(whole), *break_evens(evidence.segment_cells))
    return {point.load: point for point in found}.values()


def crossover_running(
    crossovers: Sequence[Crossover], running: Mapping[Load, float], *, metric: str
) -> CrossoverRunning | None:
    """In the study's own metric; of two axes the closed loop's, whose loads are requests under way already."""
    for axis in ("concurrency", "qps"):
        for found in crossovers:
            if found.axis == axis and found.metric == metric and found.value is not None:
                rates = _by_rate(running) if axis == "qps" else ()
                return CrossoverRunning(
                    metric=metric,
                    value=_under_way(found.value, rates),
                    low=None if found.low is None else _under_way(found.low, rates),
                    high=None if found.high is None else _under_way(found.high, rates),
                )
    return None


def _by_rate(running: Mapping[Load, float]) -> Knots:
    """On log scales, as the crossover itself is interpolated."""
    rates = {
        math.log(load.per_s): math.log(count)
        for load, count in running.items()
        if not isinstance(load, Concurrency) and count > 0
    }
    return tuple(sorted(rates.items()))


def _under_way(value: float, rates: Knots) -> float:
    """Of a closed loop there are no rates: its load is what is under way."""
    return math.exp(interpolated(rates, math.log(value))) if rates else value


def requests_under_way(records: Iterable[Record], arm: Arm) -> dict[Load, float]:
    """Of a closed loop its streams; of an open one, by Little's law, the rate times how long its requests took."""
    took: dict[Load, list[float]] = defaultdict(list)
    for record in records:
        place = record.place
        if place.arm == arm.name and place.phase is Phase.MEASURED and record.is_ok and record.e2e_s:
            took[place.load].append(record.e2e_s)
    return {
        load: float(load.streams) if isinstance(load, Concurrency) else load.per_s * fmean(seconds)
        for load, seconds in took.items()
    }
