"""The verdict and its tables for a terminal, as rich renderables. Prompt and engine text never carries markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import number, printable, printable_lines, ratio, seconds, share
from speclift.core.results import (
    Cell,
    Comparison,
    Conditions,
    Crossover,
    Decision,
    Estimate,
    Evidence,
    Finding,
    Level,
    Part,
    Reason,
    Verdict,
)
from speclift.core.traffic import load_label

STYLES = {
    Decision.SHIP: ("SHIP", "bold green"),
    Decision.SHIP_ON_CONDITIONS: ("SHIP ON CONDITIONS", "bold yellow"),
    Decision.DO_NOT_SHIP: ("DO NOT SHIP", "bold red"),
    Decision.INCONCLUSIVE: ("INCONCLUSIVE", "bold magenta"),
    Decision.OUTPUT_CHANGED: ("OUTPUT CHANGED", "bold white on red"),
}
MARKS = {
    Level.PASS: ("✓", "green"),
    Level.INFO: ("·", "cyan"),
    Level.WARN: ("!", "yellow"),
    Level.FAIL: ("✗", "red"),
}
ALL = "all"
# What the sources of rules of thumb are.
GUIDES = "[S0]-[S4]: published guides, listed in docs/method.md"
SPEEDUP_ROWS_MAX = 40


def verdict_view(
    verdict: Verdict,
    *,
    cells: Sequence[Cell],
    comparisons: Sequence[Evidence],
    findings: Sequence[Finding],
    crossovers: Sequence[Crossover] = (),
    command: str | None,
    bar: float,
    examples: RenderableType | None = None,
) -> RenderableType:
    """`examples` are outputs that the lossless gate found changed."""
    parts: list[RenderableType] = [cells_table(cells)]
    if comparisons:
        parts.append(speedup_table(comparisons, bar=bar))
    if crossovers:
        parts.append(crossover_view(crossovers))
    if findings:
        parts.append(findings_view(findings))
    if examples is not None:
        parts.append(examples)
    parts.append(_banner(verdict, command))
    return Group(*parts)


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
    for cell in cells:
        if cell.segment != ALL:
            continue
        load = load_label(cell.load)
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


def speedup_table(comparisons: Sequence[Evidence], *, bar: float) -> Table:
    """One row per part and arm with its interval drawn; long tables keep the parts of the best arm only."""
    metric = next((arm.overall.metric for arm in comparisons if arm.overall is not None), "tpot")
    rows = _speedup_rows(comparisons)
    table = _table(f"Speedup over the baseline ({metric}, 95 % intervals)")
    for name in ("traffic", "arm"):
        table.add_column(name, no_wrap=True)
    table.add_column("speedup", justify="right", no_wrap=True)
    picture = Ruler.around([_shown(comparison) for comparison in rows], bar=bar)
    table.add_column(picture.legend(), no_wrap=True)
    previous = ""
    for comparison in rows:
        estimate = _shown(comparison)
        is_all = comparison.part is Part.ALL
        title = "all traffic" if is_all else f"  {_part_title(comparison.part, comparison.label)}"
        style = "green" if estimate.low >= bar else "red" if estimate.high < 1 else ""
        table.add_row(
            Text("" if title == previous else title),
            Text(_arm_title(comparison.arm)),
            Text(ratio(estimate), style=style),
            Text(picture.draw(estimate), style=style),
        )
        previous = title
    return table


def _speedup_rows(comparisons: Sequence[Evidence]) -> list[Comparison]:
    """The same part of every arm beside each other."""
    rows = [
        comparison
        for arm in comparisons
        for comparison in (arm.overall, *arm.parts)
        if comparison is not None
    ]
    if len(rows) > SPEEDUP_ROWS_MAX:
        best = max(rows, key=lambda row: (row.part is Part.ALL, row.speedup.value)).arm
        rows = [row for row in rows if row.part is Part.ALL or row.arm == best]
    order = list(dict.fromkeys((row.part, row.label) for row in rows))
    return sorted(rows, key=lambda row: order.index((row.part, row.label)))


def _shown(comparison: Comparison) -> Estimate:
    return comparison.simultaneous if comparison.part is Part.ALL else comparison.speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """Draws intervals on one logarithmic line of characters, with marks at 1 and at the bar."""

    low: float
    high: float
    bar: float
    width: int = 34

    @classmethod
    def around(cls, estimates: Sequence[Estimate], *, bar: float) -> Ruler:
        # An unbounded interval must not squeeze the others into a dot.
        low = min([max(e.low, e.value / 2) for e in estimates] + [1.0, bar])
        high = max([min(e.high, e.value * 2) for e in estimates] + [1.0, bar])
        return cls(low=low * 0.97, high=high * 1.03, bar=bar)

    def column(self, value: float) -> int:
        share = math.log(max(value, 1e-9) / self.low) / math.log(self.high / self.low)
        return round(min(max(share, 0.0), 1.0) * (self.width - 1))

    def draw(self, estimate: Estimate) -> str:
        cells = [" "] * self.width
        cells[self.column(self.bar)] = "┊"
        cells[self.column(1.0)] = "│"
        for column in range(self.column(estimate.low), self.column(estimate.high) + 1):
            cells[column] = "┼" if cells[column] in "│┊" else "─"
        cells[self.column(estimate.value)] = "●"
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


def crossover_view(crossovers: Sequence[Crossover]) -> RenderableType:
    """Where each metric stops paying."""
    lines = Text(
        f"Crossover: load from which {printable(crossovers[0].arm)} is no longer faster\n", style="bold"
    )
    for crossing in crossovers:
        low = number(crossing.low, 1) if crossing.low is not None else "…"
        high = number(crossing.high, 1) if crossing.high is not None else "…"
        where = f"{crossing.axis} {number(crossing.value, 1)} [{low}, {high}]"
        said = where if crossing.value is not None else crossing.note
        lines.append(f"   {crossing.metric:<11}", style="not bold")
        lines.append(f"{printable(said)}\n", style="not bold")
    return lines


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


def _banner(verdict: Verdict, command: str | None) -> Panel:
    title, style = STYLES[verdict.decision]
    body = Text()
    if verdict.winner is not None:
        body.append("winner: ").append(_arm_title(verdict.winner.name), style="bold").append("\n")
    if verdict.conditions is not None:
        body.append(f"only for: {conditions_text(verdict.conditions)}\n", style="bold")
    for reason in verdict.reasons:
        _append_reason(body, reason)
    if any(reason.source != "measured" for reason in verdict.reasons):
        body.append(f"{GUIDES}\n", style="dim")
    if command is not None:
        body.append("\nrun it with\n", style="bold")
        body.append(f"  {printable(command, limit=2000)}\n", style="cyan")
    body.rstrip()
    return Panel(
        body, title=Text(f" {title} ", style=style), title_align="left", border_style=style.split()[-1]
    )


def _append_reason(body: Text, reason: Reason) -> None:
    mark, style = MARKS[reason.level]
    body.append(f"{mark} ", style=style)
    body.append(f"{reason.rule}: ", style="bold")
    body.append(printable(reason.message, limit=600))
    if reason.source != "measured":
        body.append(f" [{reason.source}]", style="dim")
    body.append("\n")


def conditions_text(conditions: Conditions) -> str:
    said = []
    if conditions.segments is not None:
        said.append(f"segments {', '.join(printable(name) for name in conditions.segments)}")
    if conditions.max_concurrency is not None:
        said.append(f"at most {conditions.max_concurrency} concurrent requests")
    if conditions.max_qps is not None:
        said.append(f"at most {conditions.max_qps:g} requests/s")
    if conditions.max_temperature is not None:
        said.append(f"temperature at most {conditions.max_temperature:g}")
    return " and ".join(said)
