"""The lossless gate for a terminal: what was compared, what it says, texts side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import printable, printable_lines
from speclift.lossless.gate import Example, Gate, Result

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
