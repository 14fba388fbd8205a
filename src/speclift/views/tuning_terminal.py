"""What a search found, for a terminal: latency against throughput, the tables, what was dropped, how good it was."""

from __future__ import annotations

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import printable, ratio
from speclift.search.tuning import ConfirmedBest, Tuning
from speclift.views.text_plot import TextPoint, text_plot
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
