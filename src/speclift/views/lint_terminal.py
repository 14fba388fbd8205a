"""What lint found, for a terminal: the flags that need a hand first, the fine ones in one line, then the notes."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from speclift.core.quantities import printable
from speclift.linter.report import LintReport
from speclift.linter.row_rules import Translation
from speclift.linter.rows import LintFinding, Status

MARKS = {
    Status.CONFLICT: ("✗", "bold red"),
    Status.REMOVED: ("✗", "red"),
    Status.UNKNOWN: ("?", "red"),
    Status.DEAD: ("∅", "red"),
    Status.UNREAD: ("?", "bold red"),
    Status.RENAMED: ("→", "yellow"),
    Status.RISKY: ("!", "yellow"),
    Status.OK: ("✓", "green"),
}
# Of the answer's sentence: whether every server is fine.
STYLES = {True: "bold green", False: "bold red"}
INDENT = 4
FINDINGS_MAX = 60
LINE_MAX = 2_000


def lint_view(report: LintReport) -> RenderableType:
    """Findings; the answer and the translation are the caller's to print."""
    findings = report.findings
    engine = f"{report.title} {report.version}".rstrip()
    title = f"Checked for {engine}" if report.version else f"{engine}: known by name, not checked"
    parts: list[RenderableType] = [Text(title, style="bold")]
    rank = {flag: place for place, flag in enumerate(dict.fromkeys(finding.flag for finding in findings))}
    spoken_of = sorted(
        (finding for finding in findings if finding.status is not Status.OK),
        key=lambda finding: rank[finding.flag],
    )
    parts += [_finding(finding) for finding in spoken_of[:FINDINGS_MAX]]
    if len(spoken_of) > FINDINGS_MAX:
        parts.append(_indented(f"… and {len(spoken_of) - FINDINGS_MAX:,} more; --json has all"))
    fine = [finding.flag for finding in findings if finding.status is Status.OK]
    if fine:
        mark, style = MARKS[Status.OK]
        line = Text(f" {mark} ", style=style)
        line.append("fine: ", style="bold default")
        parts.append(line.append(printable(", ".join(dict.fromkeys(fine)), limit=600), style="default"))
    parts += [_indented(f"note: {note}") for note in report.notes[:FINDINGS_MAX]]
    return Group(*parts)


def _finding(finding: LintFinding) -> RenderableType:
    mark, style = MARKS[finding.status]
    head = Text(f" {mark} ", style=style)
    head.append(printable(finding.flag, limit=80), style="bold default")
    head.append(f"  {finding.status}", style=style)
    lines: list[RenderableType] = [head]
    if finding.message:
        lines.append(_indented(finding.message))
    if finding.replacement:
        lines.append(_indented(f"-> {finding.replacement}", style="cyan"))
    if finding.source:
        lines.append(_indented(f"[{finding.source}]", style="dim"))
    return Group(*lines)


def _indented(text: str, *, style: str = "") -> RenderableType:
    return Padding(Text(printable(text, limit=1000), style=style), (0, 0, 0, INDENT), expand=False)


def translation_notes(today: Translation) -> RenderableType:
    """What has no equivalent."""
    lines = [
        Padding(Text(f"- {printable(note, limit=1000)}"), (0, 0, 0, 2), expand=False)
        for note in today.notes[:FINDINGS_MAX]
    ]
    return Group(Text("\nChanges in the translation", style="bold"), *lines)


def shown_lines(text: str, *, limit: int | None = LINE_MAX) -> str:
    """Line by line without anything that moves the cursor; long lines are cut unless they are data."""
    return "\n".join(_shown_line(line, len(line) if limit is None else limit) for line in text.split("\n"))


def _shown_line(line: str, limit: int) -> str:
    cut = line if len(line) <= limit else f"{line[:limit]}…"
    return "\t".join(printable(part, limit=len(part)) for part in cut.split("\t"))
