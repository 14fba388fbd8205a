"""What a search found, for a terminal: latency against throughput, the tables, what was dropped, how good it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import printable, ratio
from speclift.search.tuning import ConfirmedBest, Tuning
from speclift.views.tuning_figures import (
    SpeedupTable,
    cost_line,
    dropped_lines,
    error_lines,
    schedule_line,
    speedup_tables,
)

PLOT_HEIGHT = 14
BASELINE_MARK, WINNER_MARK = "o", "@"
LETTERS = "ABCDEFGHIJKLMNPQRSTUVWXYZ"


def search_view(tuning: Tuning, *, best: ConfirmedBest | None = None) -> RenderableType:
    """The tables by draft length; `best` is of the study that confirmed it, for whoever wants the fastest setting
    whether or not it clears the bar."""
    parts: list[RenderableType] = [Text("Search", style="bold"), Text(cost_line(tuning) + "\n")]
    parts += _tables(tuning)
    if best is not None:
        parts.append(
            Text.assemble(
                ("Fastest in the confirmation\n", "bold"),
                f" · {printable(best.arm, limit=40)} {ratio(best.speedup)} (95 % interval of this arm alone); "
                f"run it with\n   {printable(best.command, limit=2000)}",
            )
        )
    return Group(*parts)


def stopped_view(tuning: Tuning) -> RenderableType:
    """All that is known of a search that nothing has confirmed, and that no page shows."""
    parts: list[RenderableType] = [Text("Search", style="bold"), Text(cost_line(tuning) + "\n")]
    parts += [ParetoPicture(tuning), Text(""), *_tables(tuning)]
    notes = Text()
    schedule = schedule_line(tuning)
    for title, lines in (
        ("Dropped", dropped_lines(tuning)),
        ("Predicted and measured", error_lines(tuning)),
        ("Schedule", [] if schedule is None else [schedule]),
    ):
        if lines:
            notes.append(f"{title}\n", style="bold")
            notes.append("".join(f" · {line}\n" for line in lines))
    return Group(*parts, notes)


def _tables(tuning: Tuning) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for table in speedup_tables(tuning):
        about = "; ~ = predicted" if table.has_predictions else ""
        title = f"Speedup per token at {table.load} by draft length k (search, on the tuning prompts{about})"
        parts += [Text(title, style="bold"), _table(table)]
    return parts


class ParetoPicture:
    """Latency against throughput; as wide as the terminal."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in pareto_lines(self._tuning, width=min(options.max_width, 120)):
            yield Text(line, no_wrap=True, overflow="crop")


def pareto_lines(tuning: Tuning, *, width: int) -> list[str]:
    drafters = dict.fromkeys(cell.drafter for cell in tuning.cells if cell.drafter is not None)
    letters = {drafter: LETTERS[place % len(LETTERS)] for place, drafter in enumerate(drafters)}
    points = []
    for cell in tuning.cells:
        letter = letters[cell.drafter] if cell.drafter is not None else BASELINE_MARK
        mark = letter if cell.is_measured else letter.lower()
        rank = 1 + cell.is_measured
        note = ""
        if cell.drafter is None:
            mark, rank, note = BASELINE_MARK, 3, cell.load.label
        elif cell.arm == tuning.winner:
            mark, rank = WINNER_MARK, 4
        points.append(
            TextPoint(
                x=1000 / cell.rate_tok_s,
                y=cell.rate_tok_s * cell.in_flight,
                mark=mark,
                rank=rank,
                note=note,
            )
        )
    lines = text_plot(
        points,
        width=width,
        height=PLOT_HEIGHT,
        x_title="ms per token of one stream",
        y_title="tokens/s, all streams",
    )
    legend = [f"{BASELINE_MARK} baseline", f"{WINNER_MARK} {printable(tuning.winner, limit=40)}"]
    legend += [f"{letter} {printable(drafter, limit=40)}" for drafter, letter in letters.items()]
    return [
        *lines,
        *_wrapped(legend, width),
        " small letters: predicted, not measured; up and left is better",
    ]


def _wrapped(words: list[str], width: int) -> list[str]:
    lines = [""]
    for word in words:
        longer = f"{lines[-1]}  {word}" if lines[-1] else f" {word}"
        lines = [*lines[:-1], longer] if len(longer) <= width else [*lines, f" {word}"]
    return lines


def _table(table: SpeedupTable) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("method", overflow="fold")
    for k in table.ks:
        shown.add_column("off" if k == 0 else f"k={k}", justify="right", no_wrap=True)
    for label, cells in table.rows:
        texts = []
        for cell in cells:
            style = (
                "" if cell is None else "bold green" if cell.is_best else "" if cell.is_measured else "dim"
            )
            texts.append(
                Text("–" if cell is None else cell.text + ("*" if cell.is_best else ""), style=style)
            )
        shown.add_row(Text(printable(label, limit=60)), *texts)
    return shown


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
