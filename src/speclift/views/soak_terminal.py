"""A soak for a terminal: every fault that could have shown, how often it did, and the baseline beside it."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import duration, printable
from speclift.lossless.gate import FaultRate, Soak, SoakResult

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
