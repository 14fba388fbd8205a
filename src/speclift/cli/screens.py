"""Where text goes: answers to stdout, progress to stderr, 100 columns wide where no terminal says otherwise."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from speclift.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_COLUMNS = 100
STDOUT = "-"
_PADDING = re.compile(r"[ \t]+$", re.MULTILINE)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, nothing else.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact server commands and stop.")]
Markdown = Annotated[
    str | None,
    typer.Option("--markdown", metavar="[FILE]", help="Write a summary in Markdown; without FILE to stdout."),
]


def screen(*, stderr: bool) -> Console:
    """stdout is for the answer, stderr for progress, warnings and errors."""
    from rich.console import Console  # here, because --help must not wait for it

    file = None if stderr else cast("IO[str]", _AnswerFile())
    console = Console(file=file, stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_COLUMNS
    return console


class _AnswerFile:
    """Standard output; without a terminal its lines end where their words end."""

    def __init__(self) -> None:
        # Not looked up later: while a live screen is shown, sys.stdout is a proxy that writes here.
        self._stdout = sys.stdout

    def __getattr__(self, name: str) -> object:
        return getattr(self._stdout, name)

    def write(self, text: str) -> int:
        if not self._stdout.isatty():
            text = _PADDING.sub("", text)
        encoding = self._stdout.encoding or "utf-8"
        # A bar that the encoding lacks must not cost the answer.
        return self._stdout.write(text.encode(encoding, "replace").decode(encoding))


def write_json(document: object) -> None:
    """ASCII only: what a prompt or a server says cannot move a cursor."""
    from speclift.core.document import plain

    sys.stdout.write(json.dumps(plain(document), indent=2, ensure_ascii=True) + "\n")
    sys.stdout.flush()


def require_markdown_place(markdown: str | None, *, as_json: bool) -> None:
    """Before anything is measured: UsageError where two documents would be mixed on stdout, or where no file can be."""
    if markdown == STDOUT and as_json:
        raise UsageError(
            "--json and --markdown both write to standard output", hint="give a file: --markdown summary.md"
        )
    if markdown is not None and markdown != STDOUT:
        from speclift.studies.outputs import require_report_place

        require_report_place(Path(markdown), flag="--markdown")


def write_markdown(text: str, markdown: str | None) -> None:
    if markdown == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
    elif markdown is not None:
        from speclift.studies.outputs import write_result

        write_result(Path(markdown), text)


def write_commands(commands: Mapping[str, Sequence[str]], *, as_json: bool) -> None:
    """What --dry-run shows: the server of each arm."""
    if as_json:
        write_json({"schema": 1, "commands": {name: list(command) for name, command in commands.items()}})
        return
    for name, command in commands.items():
        sys.stdout.write(f"# {name}\n{shlex.join(command)}\n")
