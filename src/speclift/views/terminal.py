"""A verdict on a terminal, as rich renderables. Prompt and engine text never carries markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import number, printable, printable_lines, ratio, seconds, share
from speclift.core.results import RAW_E2E, Bounds, Cell, Decision, Finding, Level, Moved, Part, Upgrade
from speclift.verdict.judgement import OwnLineChange

if TYPE_CHECKING:
    from speclift.verdict.document import ArmSpeedups, VerdictDocument


# Of the answer's sentence.
STYLES = {
    Decision.SHIP: "bold green",
    Decision.SHIP_ON_CONDITIONS: "bold yellow",
    Decision.DO_NOT_SHIP: "bold red",
    Decision.INCONCLUSIVE: "bold magenta",
    Decision.OUTPUT_CHANGED: "bold white on red",
}
MARKS = {
    Level.PASS: ("✓", "green"),
    Level.INFO: ("·", "cyan"),
    Level.WARN: ("!", "yellow"),
    Level.FAIL: ("✗", "red"),
}
ALL = "all"
METRIC_NAMES = {
    "e2e": "E2E",
    "tpot": "TPOT",
    "ttft": "TTFT",
    RAW_E2E: "E2E at its own lengths",
    "throughput": "throughput",
}
# What the sources of rules of thumb are.
GUIDES = "[S0]-[S4]: published guides, listed in docs/method.md"
SPEEDUP_ROWS_MAX = 40
RULER_WIDTH_MIN, RULER_WIDTH_MAX = 12, 34
# Columns between two columns, and of both edges.
GAP, EDGES = 3, 2


def result_table(document: VerdictDocument) -> RenderableType:
    """Speedups where there is anything to compare; else what was measured."""
    has_pairs = any(arm.overall is not None for arm in document.speedups)
    if has_pairs:
        return ComparedSpeedups(document.speedups, bar=document.goals.min_speedup)
    return cells_table(document.cells)


def metrics_line(document: VerdictDocument) -> Text:
    """The other metrics beside the one of the table, over the same traffic; end to end at its own lengths where these
    make a difference."""
    shown = {speedup.metric: ratio(speedup) for speedup in document.by_metric}
    left_out = {document.speedup.metric} if document.speedup is not None else set()
    if shown.get(RAW_E2E) == shown.get("e2e"):
        left_out.add(RAW_E2E)
    others = [f"{METRIC_NAMES[metric]} {words}" for metric, words in shown.items() if metric not in left_out]
    where = "" if document.conditions is None else " within the conditions"
    arm = next((speedup.arm for speedup in document.by_metric), "")
    return Text(f"{_arm_title(arm)}{where}: {', '.join(others)}" if others else "")


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )


def cells_table(cells: Sequence[Cell]) -> Table:
    table = _table("Measured cells")
    for name in ("arm", "load"):
        table.add_column(name, no_wrap=True)
    columns = ("TTFT p50", "TPOT p50", "TPOT p95", "E2E p50", "tok/s", "acc.rate", "acc.len", "ok")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    swept = {cell.temperature for cell in cells} - {None}
    for cell in cells:
        # Of one temperature the cells over all temperatures are the same ones again.
        if cell.segment != ALL or (cell.temperature is None and len(swept) == 1):
            continue
        load = cell.load.label
        if cell.temperature is not None:
            load += f" T={cell.temperature:g}"
        table.add_row(
            Text(_arm_title(cell.arm)),
            load,
            seconds(cell.ttft_s.p50 if cell.ttft_s else None),
            seconds(cell.tpot_s.p50 if cell.tpot_s else None),
            seconds(cell.tpot_s.p95 if cell.tpot_s else None),
            seconds(cell.e2e_s.p50 if cell.e2e_s else None),
            number(cell.throughput_tok_s, 1),
            share(cell.acceptance_rate.mean if cell.acceptance_rate else None),
            number(cell.accepted_length.value if cell.accepted_length else None),
            f"{cell.requests - cell.failed}/{cell.requests}",
        )
    return table


class ComparedSpeedups:
    """One row per part and arm with its interval drawn; long tables keep the parts of the best arm only. The drawing
    takes the width that the words leave."""

    def __init__(self, arms: Sequence[ArmSpeedups], *, bar: float) -> None:
        self._metric = next((arm.overall.metric for arm in arms if arm.overall is not None), "")
        self._rows = _speedup_rows(arms)
        self._bar = bar

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [
            [name, *(words(row) for row in self._rows)]
            for name, words in (
                ("traffic", _title),
                ("arm", lambda row: _arm_title(row.arm)),
                ("speedup", lambda row: ratio(row.bounds)),
            )
        ]
        taken = sum(max(map(cell_len, column)) + GAP for column in columns)
        left = options.max_width - taken - EDGES
        yield self._drawn(width=min(RULER_WIDTH_MAX, max(RULER_WIDTH_MIN, left)))

    def _drawn(self, *, width: int) -> Table:
        table = _table(f"Speedup over the baseline ({self._metric}, 95 % intervals)")
        for name in ("traffic", "arm"):
            table.add_column(name, no_wrap=True)
        table.add_column("speedup", justify="right", no_wrap=True)
        picture = Ruler.around([row.bounds for row in self._rows], bar=self._bar, width=width)
        table.add_column(picture.legend(), no_wrap=True)
        previous = ""
        for row in self._rows:
            bounds, title = row.bounds, _title(row)
            is_fast = bounds.low is not None and bounds.low >= self._bar
            is_slow = bounds.high is not None and bounds.high < 1
            style = "green" if is_fast else "red" if is_slow else ""
            table.add_row(
                Text("" if title == previous else title),
                Text(_arm_title(row.arm)),
                Text(ratio(bounds), style=style),
                Text(picture.draw(bounds), style=style),
            )
            previous = title
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One arm on one part of the traffic."""

    arm: str
    part: Part
    label: str
    bounds: Bounds


def _title(row: _Row) -> str:
    if row.part is Part.ALL:
        return "all traffic"
    return f"  {_part_title(row.part, row.label)}"


def _speedup_rows(arms: Sequence[ArmSpeedups]) -> list[_Row]:
    """The same part of every arm beside each other."""
    rows = []
    for arm in arms:
        if arm.overall is not None:
            rows.append(_Row(arm=arm.arm, part=Part.ALL, label=ALL, bounds=arm.overall))
        rows += [_Row(arm=arm.arm, part=part.part, label=part.label, bounds=part) for part in arm.parts]
    if len(rows) > SPEEDUP_ROWS_MAX:
        best = max(rows, key=lambda row: (row.part is Part.ALL, row.bounds.value)).arm
        rows = [row for row in rows if row.part is Part.ALL or row.arm == best]
    order = list(dict.fromkeys((row.part, row.label) for row in rows))
    return sorted(rows, key=lambda row: order.index((row.part, row.label)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """Draws intervals on one logarithmic line of characters, with marks at 1 and at the bar."""

    low: float
    high: float
    bar: float
    width: int

    @classmethod
    def around(cls, shown: Sequence[Bounds], *, bar: float, width: int) -> Ruler:
        # An unbounded interval must not squeeze the others into a dot.
        low = min([max(e.low or 0.0, e.value / 2) for e in shown] + [1.0, bar])
        high = max([min(e.high or math.inf, e.value * 2) for e in shown] + [1.0, bar])
        return cls(low=low * 0.97, high=high * 1.03, bar=bar, width=width)

    def column(self, value: float) -> int:
        share = math.log(max(value, 1e-9) / self.low) / math.log(self.high / self.low)
        return round(min(max(share, 0.0), 1.0) * (self.width - 1))

    def draw(self, bounds: Bounds) -> str:
        cells = [" "] * self.width
        cells[self.column(self.bar)] = "┊"
        cells[self.column(1.0)] = "│"
        left = 0 if bounds.low is None else self.column(bounds.low)
        right = self.width - 1 if bounds.high is None else self.column(bounds.high)
        for column in range(left, right + 1):
            cells[column] = "┼" if cells[column] in "│┊" else "─"
        cells[self.column(bounds.value)] = "●"
        return "".join(cells)

    def legend(self) -> str:
        cells = list(" " * self.width)
        for value, label in ((1.0, "1x"), (self.bar, f"{self.bar:g}x")):
            start = min(self.column(value), self.width - len(label))
            if all(cell == " " for cell in cells[max(0, start - 1) : start + len(label)]):
                cells[start : start + len(label)] = label
        return "".join(cells)


def _arm_title(name: str) -> str:
    """Arms are named after files among other things, and a file name may hold anything."""
    return printable(name, limit=64)


def _part_title(part: Part, label: str) -> str:
    shown = printable(label, limit=32)
    return f"temperature {shown}" if part is Part.TEMPERATURE else shown


def findings_view(findings: Sequence[Finding]) -> RenderableType:
    lines = Text("Findings\n", style="bold")
    for finding in findings:
        mark, style = MARKS[finding.level]
        lines.append(f" {mark} ", style=style)
        lines.append(f"{finding.check}: ", style="bold")
        lines.append(printable_lines(finding.message) + "\n", style="not bold")
        if finding.next_step:
            lines.append(f"     -> {printable(finding.next_step)}\n", style="dim not bold")
    return lines


LINE_STYLES = {"+": "green", "-": "red"}


def line_view(change: OwnLineChange) -> Text:
    if not change.diff:
        return Text("Your line stays as it is.", style="bold")
    view = Text("Your line, changed:\n", style="bold")
    for line in change.diff.splitlines()[2:]:  # without the names of the two sides
        if not line.startswith("@@"):
            view.append(f"{printable(line)}\n", style=LINE_STYLES.get(line[:1], "not bold"))
    view.rstrip()
    return view


def upgrade_view(upgrade: Upgrade) -> Text:
    """One fact a line; every change is after / before."""
    versions = f"{printable(upgrade.before.engine_version)} -> {printable(upgrade.after.engine_version)}"
    view = Text()
    view.append(f"\n{upgrade.sentence}\n", style="bold")
    view.append(f"  {printable(upgrade.arm)}, {versions}; each change is after / before\n")
    view.append(
        f"  TPOT speedup      {upgrade.before.speedup:.2f}x -> {upgrade.after.speedup:.2f}x, {ratio(upgrade.speedup)}\n"
    )
    view.append(f"  accepted length   {_change(upgrade, Moved.ACCEPTANCE, upgrade.accepted_length)}\n")
    view.append(f"  cost of a step    {_change(upgrade, Moved.STEP_COST, upgrade.step_cost)}")
    return view


def _change(upgrade: Upgrade, part: Moved, change: Bounds | None) -> str:
    if change is None:
        return "unknown"
    return f"{ratio(change)}, {'moved' if part in upgrade.moved else 'not shown to have moved'}"
