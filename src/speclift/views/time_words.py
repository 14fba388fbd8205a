"""How long a command takes, in words: an estimate has no more than two figures."""

from __future__ import annotations

import math


def command_time(command: str, seconds: float) -> str:
    """A server goes on; what it takes is until it answers."""
    until = "about" if command.startswith("speclift ") else "ready in about"
    return f"{until} {_words(seconds)}"


def _words(seconds: float) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
