"""Where text goes: data to stdout, narrative to stderr, 100 columns wide where no terminal says otherwise."""

from __future__ import annotations

import os
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
