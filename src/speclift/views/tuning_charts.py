"""Latency against throughput as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from speclift.core.traffic import load_label
from speclift.search.tuning import SearchedCell, Tuning
from speclift.views.charts import SERIES, WIDTH, Scale, escape, line, svg, text

HEIGHT = 320.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, WIDTH - 20, 16.0, 268.0


def pareto(tuning: Tuning) -> str:
    """One line per way of drafting and load, k by k; hollow dots are predicted. Up and left is better."""
    cells = tuning.cells
    if not cells:
        return ""
    x = _axis([1000 / cell.rate_tok_s for cell in cells], start=LEFT, end=RIGHT)
    y = _axis([cell.rate_tok_s * cell.in_flight for cell in cells], start=BOTTOM, end=TOP)
    parts = _frame(x, y)
    drafters = list(dict.fromkeys(cell.drafter for cell in cells if cell.drafter is not None))
    for index, drafter in enumerate(drafters):
        style = SERIES[index % len(SERIES)]
        parts += _drafter(
            [cell for cell in cells if cell.drafter == drafter], x, y, style, winner=tuning.winner
        )
        # The corner where nobody wants to be is free.
        up = BOTTOM - 10 - 16 * (len(drafters) - 1 - index)
        parts.append(text(RIGHT, up, drafter, anchor="end", style=f"name {style}"))
    for cell in (cell for cell in cells if cell.drafter is None):
        across, up = _place(cell, x, y)
        parts.append(f'<circle class="base" cx="{across:.1f}" cy="{up:.1f}" r="5">{_title(cell)}</circle>')
        parts.append(text(across + 8, up + 4, f"{cell.arm} {load_label(cell.load)}"))
    return svg(HEIGHT, parts, "Latency against throughput")


def _frame(x: Scale, y: Scale) -> list[str]:
    parts = [line(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"), line(LEFT, TOP, LEFT, BOTTOM, "axis")]
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        across, up = x.value_at(share), y.value_at(share)
        parts.append(text(x(across), BOTTOM + 18, f"{_short(across)} ms", anchor=anchor))
        parts.append(text(LEFT - 6, y(up) + 4, _short(up), anchor="end"))
    parts.append(text(RIGHT, BOTTOM + 36, "time per token of one stream", anchor="end"))
    parts.append(text(LEFT + 6, TOP + 8, "tokens/s of all streams"))
    return parts


def _drafter(cells: Sequence[SearchedCell], x: Scale, y: Scale, style: str, *, winner: str) -> list[str]:
    """A line for each load."""
    by_load: dict[str, list[SearchedCell]] = {}
    for cell in cells:
        by_load.setdefault(load_label(cell.load), []).append(cell)
    return [
        part
        for at_load in by_load.values()
        for part in _series(sorted(at_load, key=lambda cell: cell.k), x, y, style, winner)
    ]


def _series(cells: Sequence[SearchedCell], x: Scale, y: Scale, style: str, winner: str) -> list[str]:
    places = [_place(cell, x, y) for cell in cells]
    joined = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
    parts = [f'<polyline class="line thin {style}" points="{joined}"/>']
    for cell, (across, up) in zip(cells, places, strict=True):
        kind = f"dot {style}" if cell.is_measured else f"hollow line {style}"
        size = 6.0 if cell.arm == winner else 3.5
        parts.append(
            f'<circle class="{kind}" cx="{across:.1f}" cy="{up:.1f}" r="{size}">{_title(cell)}</circle>'
        )
    return parts


def _place(cell: SearchedCell, x: Scale, y: Scale) -> tuple[float, float]:
    return x(1000 / cell.rate_tok_s), y(cell.rate_tok_s * cell.in_flight)


def _title(cell: SearchedCell) -> str:
    how = "measured" if cell.is_measured else "predicted"
    words = f"{cell.arm} at {load_label(cell.load)}: {cell.speedup:.2f}x, {how}"
    return f"<title>{escape(words)}</title>"


def _axis(values: list[float], *, start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    room = 1.06 if high > 1.02 * low else 1.25
    return Scale(low=low / room, high=high * room, start=start, end=end, is_log=True)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
