"""The lossless gate for a terminal, from its JSON document: what was compared, what it says, texts side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import duration, printable, printable_lines
from speclift.core.results import Level
from speclift.views.terminal import MARKS

STYLES = {
    "pass": ("OUTPUT UNCHANGED", "bold green"),
    "fail": ("OUTPUT CHANGED", "bold white on red"),
    "inconclusive": ("INCONCLUSIVE", "bold magenta"),
    "skipped": ("NOT VERIFIED", "bold yellow"),
}
LEVELS = {"pass": Level.PASS, "fail": Level.FAIL, "inconclusive": Level.WARN, "skipped": Level.INFO}
EXAMPLES_SHOWN = 3


def gate_view(document: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = []
    if any(arm["greedy"].get("checks") for arm in document["arms"]):
        parts.append(checks_table(document))
    parts += [examples_view(document)] if has_examples(document) else []
    parts.append(_banner(document))
    return Group(*parts)


def has_examples(document: Mapping[str, Any]) -> bool:
    """A tie that fell the other way is no news; --json has it."""
    return bool(document.get("examples")) and document["result"] != "pass"


def checks_table(document: Mapping[str, Any]) -> Table:
    table = Table(
        title="Answers that part from the baseline's, temperature 0",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    for name in ("arm", "asked"):
        table.add_column(name, no_wrap=True)
    for name in ("answers", "tokens", "part", "per 1k", "control", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    previous = ""
    for arm in document["arms"]:
        for check in arm["greedy"].get("checks", ()):
            if not check["answers"]:
                continue
            control = check["control"]
            own = f"{control['per_1000_tokens']:.1f}" if control["tokens"] else "–"
            table.add_row(
                Text("" if arm["arm"] == previous else printable(arm["arm"], limit=40)),
                check["name"],
                str(check["answers"]),
                f"{check['tokens']:.0f}",
                str(check["divergences"]),
                f"{check['per_1000_tokens']:.1f}",
                own,
                f"{check['p_value']:.1g}" if check["divergences"] else "–",
            )
            previous = arm["arm"]
    return table


def examples_view(document: Mapping[str, Any]) -> RenderableType:
    """Both outputs beside each other; what differs starts where they part."""
    shown: list[RenderableType] = [Text("Side by side", style="bold")]
    for example in document["examples"][:EXAMPLES_SHOWN]:
        title = Text(f"\n{printable(example['arm'])} · {printable(example['case'])}: ", style="bold")
        title.append(printable(example["why"], limit=300), style="not bold")
        shown.append(title)
        same = _common(example["baseline"], example["answer"])
        table = Table(box=box.SIMPLE, show_header=True, pad_edge=False, expand=True)
        for name in ("baseline", "speculative"):
            table.add_column(name, ratio=1)
        table.add_row(
            _parted(example["baseline"], same, "green"), _parted(example["answer"], same, "bold red")
        )
        shown.append(table)
    left = len(document["examples"]) - EXAMPLES_SHOWN
    if left > 0:
        shown.append(Text(f"and {left} more with --json or in the report", style="dim"))
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


def _banner(document: Mapping[str, Any]) -> Panel:
    title, style = STYLES[document["result"]]
    body = Text()
    for arm in document["arms"]:
        mark, colour = MARKS[LEVELS[arm["result"]]]
        body.append(f"{mark} ", style=colour).append(printable(arm["arm"]), style="bold").append("\n")
        for part in ("greedy", "sampled"):
            found = arm[part]
            if found["result"] != "skipped":
                _line(body, found["result"], part, found["message"])
        kept = [edge["name"] for edge in arm["edges"] if edge["result"] == "pass"]
        if kept:
            _line(body, "pass", "edges", ", ".join(kept))
        for edge in arm["edges"]:
            if edge["result"] == "fail":
                _line(body, "fail", edge["name"], edge["message"])
        for finding in arm["findings"]:
            _finding(body, finding)
    control = document["control"]
    if control.get("noise_tokens"):
        body.append(
            f"· the baseline's own runs move the gap between two tokens by up to {control['noise_nats_max']:.2f} nats; "
            f"a fault is more than {control['fault_nats']:.2f}\n",
            style="dim",
        )
    for note in document.get("notes", ()):
        body.append(f"· {printable(note, limit=300)}\n", style="dim")
    if document.get("wall_s"):
        body.append(f"· took {duration(document['wall_s'])}\n", style="dim")
    body.rstrip()
    return Panel(
        body, title=Text(f" {title} ", style=style), title_align="left", border_style=style.split()[-1]
    )


def _line(body: Text, result: str, name: str, message: str) -> None:
    mark, colour = MARKS[LEVELS[result]]
    body.append(f"  {mark} ", style=colour).append(f"{printable(name)}: ", style="bold")
    body.append(f"{printable(message, limit=400)}\n")


def _finding(body: Text, finding: Mapping[str, Any]) -> None:
    mark, colour = MARKS[Level(finding["level"])]
    body.append(f"  {mark} ", style=colour).append(f"{finding['check']}: ", style="bold")
    body.append(f"{printable_lines(finding['message'], limit=900)}\n")
    if finding["next_step"]:
        body.append(f"    -> {printable(finding['next_step'])}\n", style="dim")
