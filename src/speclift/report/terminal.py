"""The verdict and its tables for a terminal, as rich renderables. Prompt and engine text never carries markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from speclift.core.results import (
    Cell,
    Conditions,
    Decision,
    Evidence,
    Finding,
    Level,
    Part,
    Reason,
    Verdict,
)
from speclift.core.traffic import load_label
from speclift.report.quantities import number, printable, printable_lines, ratio, seconds, share

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


def verdict_view(
    verdict: Verdict,
    *,
    cells: Sequence[Cell],
    comparisons: Sequence[Evidence],
    findings: Sequence[Finding],
    command: str | None,
    bar: float,
) -> RenderableType:
    parts: list[RenderableType] = [cells_table(cells)]
    if comparisons:
        parts.append(speedup_table(comparisons, bar=bar))
    if findings:
        parts.append(findings_view(findings))
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
    columns = ("TTFT p50", "TPOT p50", "TPOT p95", "E2E p50", "tok/s", "accept", "length", "ok")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        if cell.segment != ALL:
            continue
        load = load_label(cell.load)
        if cell.temperature is not None:
            load += f" T={cell.temperature:g}"
        table.add_row(
            Text(cell.arm),
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
    metric = next((e.overall.metric for e in comparisons if e.overall is not None), "tpot")
    table = _table(f"Speedup over the baseline ({metric}, 95 % intervals)")
    table.add_column("traffic", no_wrap=True)
    for evidence in comparisons:
        table.add_column(Text(evidence.arm.name), justify="right", no_wrap=True)
    rows: dict[tuple[Part, str], dict[str, Text]] = {}
    for evidence in comparisons:
        overall = [evidence.overall] if evidence.overall is not None else []
        for comparison in (*overall, *evidence.parts):
            estimate = comparison.simultaneous if comparison.part is Part.ALL else comparison.speedup
            style = "green" if estimate.low >= bar else "red" if estimate.high < 1 else ""
            text = Text(ratio(estimate), style=style)
            rows.setdefault((comparison.part, comparison.label), {})[evidence.arm.name] = text
    for (part, label), by_arm in rows.items():
        title = "all traffic" if part is Part.ALL else f"  {_part_title(part, label)}"
        table.add_row(Text(title), *(by_arm.get(e.arm.name, Text("–")) for e in comparisons))
    return table


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


def _banner(verdict: Verdict, command: str | None) -> Panel:
    title, style = STYLES[verdict.decision]
    body = Text()
    if verdict.winner is not None:
        body.append("winner: ").append(verdict.winner.name, style="bold").append("\n")
    if verdict.conditions is not None:
        body.append(f"only for: {conditions_text(verdict.conditions)}\n", style="bold")
    for reason in verdict.reasons:
        _append_reason(body, reason)
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
