"""Where text goes: data to stdout, narrative to stderr, 100 columns wide where no terminal says otherwise."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_COLUMNS = 100


def screen(*, stderr: bool) -> Console:
    from rich.console import Console  # here, because --help must not wait for it

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_COLUMNS
    return console


def write_json(document: Mapping[str, object]) -> None:
    """ASCII only: what a prompt or a server says cannot move a cursor."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True) + "\n")
    sys.stdout.flush()


def write_commands(commands: Mapping[str, Sequence[str]], *, as_json: bool) -> None:
    """What --dry-run shows: the server of each arm."""
    if as_json:
        write_json({"schema": 1, "commands": {name: list(command) for name, command in commands.items()}})
        return
    for name, command in commands.items():
        sys.stdout.write(f"# {name}\n{shlex.join(command)}\n")
