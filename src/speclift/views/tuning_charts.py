"""Latency against throughput as inline SVG, from the `tuning` part of the JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speclift.views.charts import SERIES, WIDTH, Scale, escape, line, svg, text
from speclift.views.tuning_table import load_words

HEIGHT = 320.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, WIDTH - 20, 16.0, 268.0


def pareto(tuning: Mapping[str, Any] | None) -> str:
    """One line per way of drafting and load, k by k; hollow dots are predicted. Up and left is better."""
    if tuning is None or not tuning["cells"]:
        return ""
    cells = tuning["cells"]
    x = _axis([1000 / cell["rate_tok_s"] for cell in cells], start=LEFT, end=RIGHT)
    y = _axis([cell["rate_tok_s"] * cell["in_flight"] for cell in cells], start=BOTTOM, end=TOP)
    parts = [line(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"), line(LEFT, TOP, LEFT, BOTTOM, "axis")]
    for share in (0.0, 0.5, 1.0):
        across, up = x.value_at(share), y.value_at(share)
        parts.append(
            text(
                x(across),
                BOTTOM + 18,
                f"{_short(across)} ms",
                anchor=("start", "middle", "end")[int(2 * share)],
            )
        )
        parts.append(text(LEFT - 6, y(up) + 4, _short(up), anchor="end"))
    parts.append(text(RIGHT, BOTTOM + 36, "time per token of one stream", anchor="end"))
    parts.append(text(LEFT + 6, TOP + 8, "tokens/s of all streams"))
    drafters = list(dict.fromkeys(cell["drafter"] for cell in cells if cell["drafter"] is not None))
    for index, drafter in enumerate(drafters):
        style = SERIES[index % len(SERIES)]
        for load in dict.fromkeys(load_words(cell["load"]) for cell in cells):
            own = [c for c in cells if c["drafter"] == drafter and load_words(c["load"]) == load]
            parts += _series(sorted(own, key=lambda cell: int(cell["k"])), x, y, style, tuning["winner"])
        # The corner where nobody wants to be is free.
        up = BOTTOM - 10 - 16 * (len(drafters) - 1 - index)
        parts.append(text(RIGHT, up, str(drafter), anchor="end", style=f"name {style}"))
    for cell in (cell for cell in cells if cell["drafter"] is None):
        across, up = _place(cell, x, y)
        parts.append(f'<circle class="base" cx="{across:.1f}" cy="{up:.1f}" r="5">{_title(cell)}</circle>')
        parts.append(text(across + 8, up + 4, f"{cell['arm']} {load_words(cell['load'])}"))
    return svg(HEIGHT, parts, "Latency against throughput")


def _series(cells: list[Mapping[str, Any]], x: Scale, y: Scale, style: str, winner: str) -> list[str]:
    places = [_place(cell, x, y) for cell in cells]
    joined = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
    parts = [f'<polyline class="line thin {style}" points="{joined}"/>']
    for cell, (across, up) in zip(cells, places, strict=True):
        kind = f"dot {style}" if cell["is_measured"] else f"hollow line {style}"
        size = 6.0 if cell["arm"] == winner else 3.5
        parts.append(
            f'<circle class="{kind}" cx="{across:.1f}" cy="{up:.1f}" r="{size}">{_title(cell)}</circle>'
        )
    return parts


def _place(cell: Mapping[str, Any], x: Scale, y: Scale) -> tuple[float, float]:
    return x(1000 / cell["rate_tok_s"]), y(cell["rate_tok_s"] * cell["in_flight"])


def _title(cell: Mapping[str, Any]) -> str:
    how = "measured" if cell["is_measured"] else "predicted"
    said = f"{cell['arm']} at {load_words(cell['load'])}: {cell['speedup']:.2f}x, {how}"
    return f"<title>{escape(said)}</title>"


def _axis(values: list[float], *, start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    room = 1.06 if high > 1.02 * low else 1.25
    return Scale(low=low / room, high=high * room, start=start, end=end, is_log=True)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
