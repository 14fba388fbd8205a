"""What lint found, for a terminal: the flags that need a hand first, the fine ones in one line, then the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from speclift.core.quantities import printable

MARKS = {
    "conflict": ("✗", "bold red"),
    "removed": ("✗", "red"),
    "unknown": ("?", "red"),
    "dead": ("∅", "red"),
    "unread": ("?", "bold red"),
    "renamed": ("→", "yellow"),
    "risky": ("!", "yellow"),
    "ok": ("✓", "green"),
}
INDENT = 4
FINDINGS_MAX = 60
LINE_MAX = 2_000


def lint_view(document: Mapping[str, Any], *, title: str) -> RenderableType:
    """Findings and the verdict on them; the translation is the caller's to print. `title` names the engine."""
    findings = document["findings"]
    engine = f"{title} {document['version']}"
    parts: list[RenderableType] = [Text(f"As {engine} reads it", style="bold")]
    rank = {flag: place for place, flag in enumerate(dict.fromkeys(found["flag"] for found in findings))}
    spoken_of = sorted(
        (found for found in findings if found["status"] != "ok"), key=lambda found: rank[found["flag"]]
    )
    parts += [_finding(found) for found in spoken_of[:FINDINGS_MAX]]
    if len(spoken_of) > FINDINGS_MAX:
        parts.append(_indented(f"… and {len(spoken_of) - FINDINGS_MAX:,} more, all of them in --json"))
    fine = [found["flag"] for found in findings if found["status"] == "ok"]
    if fine:
        mark, style = MARKS["ok"]
        line = Text(f" {mark} ", style=style)
        line.append("fine: ", style="bold default")
        parts.append(line.append(printable(", ".join(dict.fromkeys(fine)), limit=600), style="default"))
    parts += [_indented(f"note: {note}") for note in document["notes"][:FINDINGS_MAX]]
    parts.append(_summary(findings, engine))
    return Group(*parts)


def _finding(found: Mapping[str, Any]) -> RenderableType:
    mark, style = MARKS[found["status"]]
    head = Text(f" {mark} ", style=style)
    head.append(printable(found["flag"], limit=80), style="bold default")
    head.append(f"  {found['status']}", style=style)
    lines: list[RenderableType] = [head]
    if found["message"]:
        lines.append(_indented(found["message"]))
    if found["replacement"]:
        lines.append(_indented(f"-> {found['replacement']}", style="cyan"))
    if found["source"]:
        lines.append(_indented(f"[{found['source']}]", style="dim"))
    return Group(*lines)


def _indented(text: str, *, style: str = "") -> RenderableType:
    return Padding(Text(printable(text, limit=1000), style=style), (0, 0, 0, INDENT), expand=False)


def _summary(findings: Sequence[Mapping[str, Any]], engine: str) -> Text:
    wrong = len({found["flag"] for found in findings if found["status"] not in ("ok", "risky")})
    risky = len({found["flag"] for found in findings if found["status"] == "risky"})
    if wrong:
        said, style = f"{engine} refuses or ignores {_counted(wrong, 'setting')}", "bold red"
    elif risky:
        said, style = (
            f"{engine} takes it; {_counted(risky, 'setting')} may not do what was meant",
            "bold yellow",
        )
    else:
        said, style = f"{engine} takes it as it is", "bold green"
    return Text(f"\n{said}", style=style)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def translation_notes(document: Mapping[str, Any]) -> RenderableType:
    """What has no equivalent."""
    notes = document["translated"]["notes"]
    lines = [
        Padding(Text(f"- {printable(note, limit=1000)}"), (0, 0, 0, 2), expand=False)
        for note in notes[:FINDINGS_MAX]
    ]
    return Group(Text("\nWhat changed on the way", style="bold"), *lines)


def folded_command(words: Sequence[str]) -> str:
    """Words of shell source over several lines, one flag each, still one command for a shell."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit() and lines != [[]]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(" ".join(line) for line in lines)


def shown_lines(text: str, *, limit: int | None = LINE_MAX) -> str:
    """Line by line without anything that moves the cursor; long lines are cut unless they are data."""
    return "\n".join(_shown_line(line, len(line) if limit is None else limit) for line in text.split("\n"))


def _shown_line(line: str, limit: int) -> str:
    cut = line if len(line) <= limit else f"{line[:limit]}…"
    return "\t".join(printable(part, limit=len(part)) for part in cut.split("\t"))
