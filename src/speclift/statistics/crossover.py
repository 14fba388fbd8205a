"""At which load does speculation stop paying, and how surely? One crossover per metric and load axis.

Log speedup over log load: an isotonic fit that may only fall, a monotone cubic through it, and an interval of
every load at which a speedup of 1 cannot be excluded. It never looks beyond the loads that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from speclift.core.records import Phase, Record
from speclift.core.results import CONFIDENCE, Crossover, Estimate, LoadAxis
from speclift.core.traffic import Concurrency
from speclift.statistics.crossed import Floats
from speclift.statistics.load_curve import Curve, paired_curve, tail_curve, throughput_curve
from speclift.statistics.pairs import ALL_DISTINCT, PromptOf
from speclift.statistics.stats import bonferroni

# Steps between two loads; reading off a straight line between two steps errs by under 0.1 % of the load.
STEPS = 48
# No load outweighs another by more than the square of this: a load without any spread is no oracle.
WIDTH_RATIO_MIN = 1e-3
# Half-widths this many times what noise alone gives are noted: a shape as uncertain as the measurements.
SHAPE_NOTED = math.sqrt(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where a curve crosses a speedup of 1; the fields mean what they mean in Crossover."""

    value: float | None
    low: float | None
    high: float | None
    notes: tuple[str, ...]


def crossovers(
    records: Sequence[Record],
    arm_name: str,
    *,
    level: float = CONFIDENCE,
    seed: int,
    prompt_of: PromptOf = ALL_DISTINCT,
) -> tuple[Crossover, ...]:
    """Empty where no axis has two loads. `seed` draws prompts, for throughput and the P99."""
    result = []
    for axis, members in _axes(records):
        curves = {
            "tpot": paired_curve(members, arm_name, "tpot", prompt_of=prompt_of),
            "e2e": paired_curve(members, arm_name, "e2e", prompt_of=prompt_of),
            "throughput": throughput_curve(members, arm_name, seed=seed),
            "ttft": paired_curve(members, arm_name, "ttft", prompt_of=prompt_of),
            "ttft_p99": tail_curve(members, arm_name, seed=seed),
        }
        for metric, curve in curves.items():
            if curve is None:
                continue
            crossing = crossing_of(curve, level=level)
            notes = [*crossing.notes, *curve.notes]
            if metric == "throughput" and axis == "qps":
                notes.append("with --qps, throughput equals the request rate until an arm saturates")
            result.append(
                Crossover(
                    metric=metric,
                    axis=axis,
                    value=crossing.value,
                    low=crossing.low,
                    high=crossing.high,
                    arm=arm_name,
                    note="; ".join(notes),
                )
            )
    return tuple(result)


def crossing_of(curve: Curve, *, level: float = CONFIDENCE) -> Crossing:
    """A load is ruled out where it, or a larger one, surely pays, or it, or a smaller one, surely does not."""
    nodes = [curve.estimate(row, level) for row in np.eye(len(curve.loads))]
    rise = _surest_rise(curve, nodes, level)
    band = _band(curve, nodes, level, start=0 if rise is None else rise.peak)
    lower, upper = band.centre - band.half, band.centre + band.half
    # The fitted curve only falls, so what is sure at one load is sure on that whole side of the crossing.
    surely_pays = np.maximum.accumulate(lower[::-1])[::-1] > 0
    surely_not = np.minimum.accumulate(upper) < 0
    low = high = value = None
    if surely_pays[-1]:
        low = curve.loads[-1]
    elif surely_pays[0]:
        low = _root(band.log_load, lower, int(np.flatnonzero(surely_pays)[-1]))
    if surely_not[0]:
        high = curve.loads[0]
    elif surely_not[-1]:
        high = _root(band.log_load, upper, int(np.flatnonzero(surely_not)[0]) - 1)
    if band.centre[0] > 0 > band.centre[-1]:
        value = _root(band.log_load, band.centre, int(np.flatnonzero(band.centre > 0)[-1]))
    notes = [_outcome(curve, band, value=value, low=low, high=high), _shape(band, value)]
    if rise is not None:
        notes.insert(1, rise.note)
    return Crossing(value=value, low=low, high=high, notes=tuple(note for note in notes if note))


def isotonic(values: Sequence[float], weights: Sequence[float]) -> Floats:
    """The closest sequence that never rises, by weighted squares: adjacent violators are pooled."""
    pooled: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while pooled and pooled[-1][0] < block[0]:
            mean, mass, count = pooled.pop()
            total = mass + block[1]
            block = ((mean * mass + block[0] * block[1]) / total, total, count + block[2])
        pooled.append(block)
    means, _, counts = zip(*pooled, strict=True)
    return np.repeat(np.array(means, dtype=np.float64), counts)


def _axes(records: Iterable[Record]) -> list[tuple[LoadAxis, list[Record]]]:
    found: dict[LoadAxis, list[Record]] = {"concurrency": [], "qps": []}
    for record in records:
        if record.place.phase is not Phase.WARMUP:
            axis: LoadAxis = "concurrency" if isinstance(record.place.load, Concurrency) else "qps"
            found[axis].append(record)
    return [(axis, members) for axis, members in found.items() if members]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rise:
    peak: int
    note: str


def _surest_rise(curve: Curve, nodes: Sequence[Estimate], level: float) -> _Rise | None:
    """A speedup that surely grows between two loads: the isotonic fit would level it and hide it."""
    count = len(nodes)
    unit = np.eye(count)
    values = [node.value for node in nodes]
    simultaneous = bonferroni(level, count * (count - 1) // 2)
    rises = [
        (curve.estimate(unit[j] - unit[i], simultaneous).low, i, j)
        for j in range(count)
        for i in range(j)
        if values[j] > values[i]
    ]
    surest, i, j = max(rises, default=(0.0, 0, 0))
    if surest <= 0:
        return None
    peak = int(np.argmax(values))
    note = (
        f"not monotone: the speedup rises from {math.exp(values[i]):.2f}x at {curve.loads[i]:g} to "
        f"{math.exp(values[j]):.2f}x at {curve.loads[j]:g}, so only loads from {curve.loads[peak]:g} on are judged"
    )
    return _Rise(peak=peak, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    """The fitted curve on a fine grid of log load with its half-width, of which `noise` is the measured part."""

    loads: tuple[float, ...]
    log_load: Floats
    centre: Floats
    half: Floats
    noise: Floats


def _band(curve: Curve, nodes: Sequence[Estimate], level: float, *, start: int) -> _Band:
    """Half-width: that of the two neighbouring loads' weighted sum, and the doubt about the shape between them.

    How far the cubic is from a straight line counts as one standard error of that shape: without it loads
    in steps of 4 cover 89-94 % on the cost model of benchmarks/crossover.py, with it 94-96 %.
    """
    loads = curve.loads[start:]
    log_loads = np.log(loads)
    unit = np.eye(len(curve.loads))[start:]
    halves = np.array([node.high - node.value for node in nodes[start:]])
    is_weighted = 0 < float(halves.max()) < math.inf
    weights = (
        np.maximum(halves / halves.max(), WIDTH_RATIO_MIN) ** -2 if is_weighted else np.ones(len(halves))
    )
    fitted = isotonic([node.value for node in nodes[start:]], weights.tolist())
    if len(halves) == 1:
        return _Band(loads=loads, log_load=log_loads, centre=fitted, half=halves, noise=halves)
    grid, noise = [log_loads[:1]], [halves[:1]]
    share = np.linspace(0.0, 1.0, STEPS + 1)[1:]
    for left in range(len(halves) - 1):
        middle = curve.estimate((unit[left] + unit[left + 1]) / 2, level)
        squares = np.array([halves[left], middle.high - middle.value, halves[left + 1]]) ** 2
        grid.append(log_loads[left] + share * (log_loads[left + 1] - log_loads[left]))
        noise.append(_between(squares, share))
    from scipy.interpolate import PchipInterpolator  # a fifth of a second, for studies of several loads

    log_load, measured = np.concatenate(grid), np.concatenate(noise)
    with np.errstate(over="ignore"):  # two loads a rounding error apart: the slope between them becomes 0
        centre = PchipInterpolator(log_loads, fitted)(log_load)
    shape = centre - np.interp(log_load, log_loads, fitted)
    half = np.hypot(measured, NormalDist().inv_cdf((1.0 + level) / 2.0) * shape)
    return _Band(loads=loads, log_load=log_load, centre=centre, half=half, noise=measured)


def _between(squares: Floats, share: Floats) -> Floats:
    """Half-widths of (1 - share) * left + share * right, whose variance is quadratic in the share."""
    if not np.isfinite(squares).all():
        inside: Floats = np.full_like(share, math.inf)
        inside[-1] = math.sqrt(squares[2])
        return inside
    left, middle, right = squares
    form = (
        left * (1 - share) * (1 - 2 * share)
        + 4 * middle * share * (1 - share)
        + right * share * (2 * share - 1)
    )
    widths: Floats = np.sqrt(np.maximum(form, 0.0))
    return widths


def _root(log_load: Floats, curve: Floats, index: int) -> float:
    """The load at which `curve` falls through 0 between `index` and the next point of the grid."""
    left, right = float(curve[index]), float(curve[index + 1])
    share = left / (left - right) if math.isfinite(left) else 1.0
    return math.exp(float(log_load[index] + share * (log_load[index + 1] - log_load[index])))


def _outcome(curve: Curve, band: _Band, *, value: float | None, low: float | None, high: float | None) -> str:
    if np.isinf(band.half).all():
        return "no interval: more launches, or more prompts shared by all loads, are needed"
    if value is not None:
        sides = [name for name, bound in (("smallest", low), ("largest", high)) if bound is None]
        return f"the interval reaches beyond the {' and the '.join(sides)} load measured" if sides else ""
    if band.centre[-1] >= 0:
        if low == curve.loads[-1]:
            return "faster up to the largest load measured"
        return f"no slower at any load measured, proven faster {'at none' if low is None else f'up to {low:.3g}'}"
    if high == curve.loads[0]:
        return "faster at no load measured"
    return f"no faster at any load measured, proven slower {'at none' if high is None else f'from {high:.3g} on'}"


def _shape(band: _Band, value: float | None) -> str:
    """Says where another load would help: the interval is then wide for want of points, not of data."""
    if value is None:
        return ""
    here = int(np.searchsorted(band.log_load, math.log(value)))
    if len(band.loads) > 2 and band.half[here] < SHAPE_NOTED * band.noise[here]:
        return ""
    right = int(np.searchsorted(band.loads, value))
    return (
        f"the curve between {band.loads[right - 1]:g} and {band.loads[right]:g} is interpolated: "
        "measure a load in between"
    )
