"""The only place that turns base units into words, and foreign text into something a terminal can show."""

from __future__ import annotations

import unicodedata

from speclift.core.results import Bounds

# Bidirectional controls reorder what follows them on the line; shown as escapes they cannot.
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
# An upper bound beyond it says nothing.
BOUND_MAX = 1e6
_JOINER = "\u200d"  # holds emoji together


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 60 else duration(value)


def duration(value: float) -> str:
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def ratio(bounds: Bounds, unknown: str = "?") -> str:
    """A speedup with its interval in brackets."""
    low, high = bounds.low, bounds.high
    if low is None or high is None or high > BOUND_MAX:
        return f"{bounds.value:.2f}x ({unknown})"
    return f"{bounds.value:.2f}x [{low:.2f}, {high:.2f}]"


def ratio_words(bounds: Bounds) -> str:
    return ratio(bounds, "interval unknown")


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable: GB always returns")


def printable(text: str, *, limit: int = 200) -> str:
    """One line that cannot move the cursor, reorder the line or flood the screen."""
    shown = "".join(_visible(character) for character in text[: limit + 1])
    return shown if len(text) <= limit else shown[:limit] + "…"


def printable_lines(text: str, *, limit: int = 2000) -> str:
    return "\n".join(printable(line, limit=limit) for line in text[:limit].splitlines())


def _visible(character: str) -> str:
    if character == _JOINER or unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    return character.encode("unicode_escape").decode("ascii")
