"""The lossless gate for a terminal: what was compared, what it says, texts side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import duration, printable, printable_lines
from speclift.lossless.gate import Example, FaultRate, Gate, Result, Soak, SoakResult

# Of the answer's sentence.
STYLES = {
    Result.PASS: "bold green",
    Result.FAIL: "bold white on red",
    Result.INCONCLUSIVE: "bold magenta",
    Result.SKIPPED: "bold yellow",
}
EXAMPLES_SHOWN = 3


def gate_view(gate: Gate) -> RenderableType:
    parts: list[RenderableType] = []
    if any(arm.greedy.checks for arm in gate.arms):
        parts.append(checks_table(gate))
    examples = examples_view(gate.result, gate.examples)
    parts += [examples] if examples is not None else []
    return Group(*parts)


def checks_table(gate: Gate) -> Table:
    table = Table(
        title="Answers that differ from the baseline's, temperature 0",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    for name in ("arm", "case"):
        table.add_column(name, no_wrap=True)
    for name in ("answers", "tokens", "differ", "per 1k", "control", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    previous = ""
    for arm in gate.arms:
        for check in arm.greedy.checks:
            if not check.answers:
                continue
            control = f"{1000 * check.control.per_token:.1f}" if check.control.tokens else "–"
            table.add_row(
                Text("" if arm.arm == previous else printable(arm.arm, limit=40)),
                check.name,
                str(check.answers),
                f"{check.tokens:.0f}",
                str(check.events),
                f"{1000 * check.per_token:.1f}",
                control,
                f"{check.p_value:.1g}" if check.events else "–",
            )
            previous = arm.arm
    return table


def examples_view(result: Result, examples: Sequence[Example]) -> RenderableType | None:
    """Both outputs beside each other; what differs starts where they part. None where there is nothing to show: a tie
    that fell the other way is no news, --json has it."""
    if not examples or result is Result.PASS:
        return None
    shown: list[RenderableType] = [Text("Side by side", style="bold")]
    for example in examples[:EXAMPLES_SHOWN]:
        title = Text(f"\n{printable(example.arm)} · {printable(example.case)}: ", style="bold")
        title.append(printable(example.why, limit=300), style="not bold")
        shown.append(title)
        same = _common(example.baseline, example.answer)
        table = Table(box=box.SIMPLE, show_header=True, pad_edge=False, expand=True)
        for name in ("baseline", "speculative"):
            table.add_column(name, ratio=1)
        table.add_row(_parted(example.baseline, same, "green"), _parted(example.answer, same, "bold red"))
        shown.append(table)
    left = len(examples) - EXAMPLES_SHOWN
    if left > 0:
        shown.append(Text(f"and {left} more in --json or the report", style="dim"))
    return Group(*shown)


def _common(first: str, second: str) -> int:
    return next(
        (i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )


def _parted(text: str, same: int, style: str) -> Text:
    """A few words before the difference are enough to find the place."""
    start = max(0, same - 80)
    shown = Text("…" if start else "", style="dim")
    shown.append(printable_lines(text[start:same], limit=200), style="dim")
    shown.append("▸", style=style)  # visible without colour, too
    shown.append(printable_lines(text[same : same + 300], limit=300) or "∎", style=style)
    return shown


MARKS = {
    SoakResult.FOUND: ("✗", "bold red"),
    SoakResult.INCONCLUSIVE: ("?", "magenta"),
    SoakResult.CLEAN: ("✓", "green"),
}
LEGEND = "✗ more often than the baseline, ? too few to tell, ✓ no more often"
EVIDENCE_SHOWN = 3
EVIDENCE_CHARACTERS = 200


def soak_view(soak: Soak) -> RenderableType:
    parts: list[RenderableType] = []
    if soak.faults:
        parts += [faults_table(soak), Text(LEGEND, style="dim")]
    parts += [_evidence(rate) for arm in soak.arms for rate in soak.found_in(arm.arm)[:EVIDENCE_SHOWN]]
    parts += [
        Text(
            f"{printable(arm.arm, limit=40)}, sampled under load: {printable(arm.distribution.message, limit=300)}"
        )
        for arm in soak.arms
        if arm.distribution is not None
    ]
    if soak.scale < 1:
        parts.append(
            Text(
                f"most answers were asked for at {soak.scale:.0%} of full length, for lack of time",
                style="dim",
            )
        )
    if soak.refused_kinds:
        names = ", ".join(soak.refused_kinds)
        parts.append(Text(f"not asked, because the baseline refuses it: {names}", style="dim"))
    parts += [
        Text(printable(finding.message.partition("\n")[0], limit=300), style="yellow")
        for finding in soak.findings
    ]
    return Group(*parts, Text(""))


def faults_table(soak: Soak) -> Table:
    streams = " or ".join(map(str, soak.concurrency))
    launched = f"{soak.launches} launch{'' if soak.launches == 1 else 'es'}"
    table = Table(
        title=f"Faults in {soak.requests:,} requests, {streams} at once, {launched}, {duration(soak.seconds)}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    table.add_column("arm", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("fault", no_wrap=True)
    for name in ("seen", "95 %", "baseline", "first"):
        table.add_column(name, justify="right", no_wrap=True)
    for arm in soak.arms:
        previous = ""
        for rate in sorted(soak.faults_of(arm.arm), key=lambda rate: list(MARKS).index(rate.result)):
            table.add_row(Text("" if previous else printable(arm.arm, limit=20)), *_cells(rate))
            previous = arm.arm
    return table


def _cells(rate: FaultRate) -> tuple[str | Text, ...]:
    mark, style = MARKS[rate.result]
    return (
        Text(mark, style=style),
        rate.name.value,
        f"{rate.count} of {rate.exposed}",
        f"{100 * rate.low:.1f}–{100 * rate.high:.1f} %",
        f"{rate.control_count} of {rate.control_exposed}",
        "–" if rate.first_seen_s is None else f"{rate.first_seen_s:.0f} s",
    )


def _evidence(rate: FaultRate) -> Text:
    shown = Text(f"{printable(rate.arm, limit=40)}, {rate.name}: ", style="bold")
    said = next(iter(rate.evidence), rate.message)
    shown.append(printable(said, limit=EVIDENCE_CHARACTERS), style="not bold")
    if rate.script is not None:
        shown.append(
            f"\n  to reproduce it: python {printable(rate.script, limit=200)} URL", style="not bold cyan"
        )
    return shown
