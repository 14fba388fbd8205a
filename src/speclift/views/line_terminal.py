"""The user's own line beside what is recommended, for a terminal."""

from __future__ import annotations

from rich.text import Text

from speclift.core.quantities import printable
from speclift.verdict.judgement import OwnLineChange

STYLES = {"+": "green", "-": "red"}


def line_view(change: OwnLineChange) -> Text:
    if not change.diff:
        return Text("Your line stays as it is.", style="bold")
    view = Text("Your line, changed:\n", style="bold")
    for line in change.diff.splitlines()[2:]:  # without the names of the two sides
        if not line.startswith("@@"):
            view.append(f"{printable(line)}\n", style=STYLES.get(line[:1], "not bold"))
    view.rstrip()
    return view
