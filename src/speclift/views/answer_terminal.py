"""The answer on a terminal: the first lines of every result, and at most twelve of them."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from speclift.core.answer import ShortAnswer, command_time
from speclift.core.quantities import printable

LINES_MAX = 12
INDENT = 2
COMMAND_CHARACTERS_MAX = 4000


class AnswerScreen:
    """What stands above the table, and what is left for below it: a command that is too long for the space."""

    def __init__(self, answer: ShortAnswer, *, style: str) -> None:
        self._answer = answer
        self._style = style

    def print_above(self, console: Console) -> None:
        if console.is_terminal:
            console.print()
        console.print(Text(self._answer.sentence, style=self._style))
        for reason in self._answer.because:
            console.print(_reason(reason))
        following = self._answer.next
        if following is None:
            console.print()
            return
        when = f"next, {command_time(following.command, following.seconds)}"
        if self._has_room(console):
            console.print(Text(f"{when}:", style="bold"))
            _print_command(console, following.command)
        else:
            console.print(Text(f"{when}: the command below the table", style="bold"))
        console.print()

    def print_below(self, console: Console) -> None:
        if self._answer.next is not None and not self._has_room(console):
            console.print(Text("next:", style="bold"))
            _print_command(console, self._answer.next.command)
            console.print()

    def _has_room(self, console: Console) -> bool:
        assert self._answer.next is not None
        texts = [(self._answer.sentence, 0), *((reason, INDENT + 1) for reason in self._answer.because)]
        above = sum(len(Text(text).wrap(console, console.width - indent)) for text, indent in texts)
        command = math.ceil(len(_shown(self._answer.next.command)) / console.width)
        # Beside them empty lines before and after, and the one that says when.
        return above + command + 3 <= LINES_MAX


def _reason(text: str) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=INDENT, justify="right")
    line.add_column()
    line.add_row("·", Text(text))
    return line


def _print_command(console: Console, command: str) -> None:
    """Whole on one line, so that what is copied can be pasted; the terminal folds it."""
    console.print(_shown(command), style="cyan", markup=False, highlight=False, soft_wrap=True)


def _shown(command: str) -> str:
    return printable(command, limit=COMMAND_CHARACTERS_MAX)
