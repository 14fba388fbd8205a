"""Points on a plane of characters, both axes logarithmic: a picture that needs nothing but a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARGIN = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPoint:
    """Of two points on one character the one of higher rank is shown; `note` stands beside it where there is room."""

    x: float
    y: float
    mark: str
    rank: int = 0
    note: str = ""


def text_plot(
    points: Sequence[TextPoint], *, width: int, height: int, x_title: str, y_title: str
) -> list[str]:
    """Lines no wider than `width`; empty where there is nothing to show."""
    if not points:
        return []
    columns, rows = max(20, width - MARGIN - 1), max(6, height)
    across = _Axis.around([point.x for point in points], cells=columns)
    up = _Axis.around([point.y for point in points], cells=rows)
    canvas = [[" "] * columns for _ in range(rows)]
    ordered = sorted(points, key=lambda point: point.rank)
    for point in ordered:
        canvas[rows - 1 - up.cell(point.y)][across.cell(point.x)] = point.mark
    for point in reversed(ordered):
        _note(canvas, rows - 1 - up.cell(point.y), across.cell(point.x), point.note)
    ticks = {rows - 1 - up.cell(value): _short(value) for value in up.ticks(4)}
    lines = [y_title]
    for index, row in enumerate(canvas):
        label = ticks.get(index, "")
        lines.append(f"{label:>{MARGIN - 2}} {'┤' if label else '│'}{''.join(row).rstrip()}")
    lines.append(" " * (MARGIN - 1) + "└" + "─" * columns)
    foot = [" "] * columns
    for value in across.ticks(5):
        text = _short(value)
        _write(foot, min(across.cell(value), columns - len(text)), text)
    lines.append(" " * MARGIN + "".join(foot).rstrip())
    lines.append(" " * MARGIN + x_title.rjust(columns))
    return [line.rstrip() for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    low: float
    high: float
    cells: int

    @classmethod
    def around(cls, values: Sequence[float], *, cells: int) -> _Axis:
        low, high = min(values), max(values)
        # A single value stands in the middle.
        room = 1.04 if high / low > 1.02 else 1.25
        return cls(low=low / room, high=high * room, cells=cells)

    def cell(self, value: float) -> int:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return min(self.cells - 1, max(0, round(share * (self.cells - 1))))

    def ticks(self, count: int) -> list[float]:
        """Round numbers, spread over the axis."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in (
            (1.0,),
            (1.0, 3.0),
            (1.0, 2.0, 5.0),
            (1, 1.5, 2, 3, 5, 7),
            tuple(1 + n / 5 for n in range(45)),
        ):
            found = [step * 10.0**exponent for exponent in exponents for step in steps]
            inside = [value for value in found if self.low <= value <= self.high]
            if len(inside) >= 2:
                stride = math.ceil(len(inside) / count)
                return inside[::stride]
        return [math.sqrt(self.low * self.high)]


def _note(canvas: list[list[str]], row: int, column: int, note: str) -> None:
    """To the right of a point, else to its left, else above or below it."""
    for line, start in (
        (row, column + 2),
        (row, column - len(note) - 1),
        (row - 1, column),
        (row + 1, column),
        (row - 1, column - len(note)),
    ):
        if 0 <= line < len(canvas) and _write(canvas[line], start, note):
            return


def _write(row: list[str], start: int, text: str) -> bool:
    """Only where every character of it, and one on either side, finds room."""
    end = start + len(text)
    has_room = (
        start >= 0 and end <= len(row) and all(cell == " " for cell in row[max(0, start - 1) : end + 1])
    )
    if text and has_room:
        row[start:end] = text
    return has_room


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
