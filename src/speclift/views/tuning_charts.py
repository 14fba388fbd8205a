"""Latency against throughput: every configuration of a search as a dot."""

from __future__ import annotations

from collections.abc import Mapping

from speclift.search.tuning import SearchedCell, Tuning
from speclift.views.charts import SERIES, Scale, fitting_ticks
from speclift.views.charts_plot import (
    AREA_HEIGHT_PX,
    AREA_WIDTH_PX,
    LABEL_HEIGHT_PX,
    Dot,
    Label,
    Plot,
    Series,
    joined,
    placed_labels,
    wide_scale,
)


def pareto(tuning: Tuning) -> Plot | None:
    """One line per way of drafting and load, k by k; hollow dots are predicted. Up and left is better."""
    cells = tuning.cells
    if not cells:
        return None
    x = wide_scale([_latency_ms(cell) for cell in cells])
    y = wide_scale([_throughput(cell) for cell in cells])
    dots = {cell: _dot(cell, x, y, tuning.winner) for cell in cells}
    return Plot(
        title="Latency against throughput",
        x_title="time per token of one stream",
        y_title="tokens/s of all streams",
        x_ticks=fitting_ticks(_wanted(x, " ms"), x, AREA_WIDTH_PX),
        y_ticks=fitting_ticks(_wanted(y, ""), y, AREA_HEIGHT_PX, LABEL_HEIGHT_PX),
        series=_series(dots),
        heads=("configuration", "load", "time per token", "tokens/s", "speedup", "how it is known"),
        figures=tuple(_figures(cell) for cell in cells),
        labels=_load_labels(dots),
    )


def _series(dots: Mapping[SearchedCell, Dot]) -> tuple[Series, ...]:
    by_drafter: dict[str, dict[SearchedCell, Dot]] = {}
    for cell, dot in dots.items():
        if cell.drafter is not None:
            by_drafter.setdefault(cell.drafter, {})[cell] = dot
    plain = tuple(dot for cell, dot in dots.items() if cell.drafter is None)
    return (
        Series(name="baseline", style="base", dots=plain),
        *(
            _drafter(name, own, style=SERIES[index % len(SERIES)])
            for index, (name, own) in enumerate(by_drafter.items())
        ),
    )


def _load_labels(dots: Mapping[SearchedCell, Dot]) -> tuple[Label, ...]:
    """One for each load: a server of its own (a quantisation, say) has a baseline too."""
    by_load = {cell.load.label: dot for cell, dot in dots.items() if cell.drafter is None}
    wanted = [Label(x=dot.x, y=dot.y, text=load) for load, dot in by_load.items()]
    return placed_labels(wanted, list(dots.values()))


def _drafter(name: str, dots: Mapping[SearchedCell, Dot], *, style: str) -> Series:
    """A line for each load."""
    by_load: dict[str, list[Dot]] = {}
    for cell in sorted(dots, key=lambda cell: cell.k):
        by_load.setdefault(cell.load.label, []).append(dots[cell])
    return Series(
        name=name,
        style=style,
        lines=tuple(joined((dot.x, dot.y) for dot in at_load) for at_load in by_load.values()),
        dots=tuple(dots.values()),
    )


def _dot(cell: SearchedCell, x: Scale, y: Scale, winner: str) -> Dot:
    kind = "full" if cell.is_measured else "hollow"
    return Dot(
        x=x(_latency_ms(cell)),
        y=100 - y(_throughput(cell)),
        tip=f"{cell.arm} at {cell.load.label}: {cell.speedup:.2f}x, {_how(cell)}",
        kind=f"{kind} large" if cell.arm == winner else kind,
    )


def _figures(cell: SearchedCell) -> tuple[str, ...]:
    return (
        cell.arm,
        cell.load.label,
        f"{_short(_latency_ms(cell))} ms",
        _short(_throughput(cell)),
        f"{cell.speedup:.2f}x",
        _how(cell),
    )


def _how(cell: SearchedCell) -> str:
    return "measured" if cell.is_measured else "predicted"


def _latency_ms(cell: SearchedCell) -> float:
    return 1000 / cell.rate_tok_s


def _throughput(cell: SearchedCell) -> float:
    return cell.rate_tok_s * cell.in_flight


def _wanted(scale: Scale, unit: str) -> list[tuple[float, str]]:
    values = [scale.value_at(percent) for percent in (4, 96, 50)]
    return [(value, f"{_short(value)}{unit}") for value in values]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
