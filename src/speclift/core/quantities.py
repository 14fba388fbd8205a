"""The only place that turns base units into words, and foreign text into something a terminal can show."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

from speclift.core.json_reading import as_number
from speclift.core.results import Estimate

# Bidirectional controls reorder what follows them on the line; shown as escapes they cannot.
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
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


def ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    if not math.isfinite(estimate.high) or estimate.high > 1e6:
        return f"{estimate.value:.2f}x (?)"
    return f"{estimate.value:.2f}x [{estimate.low:.2f}, {estimate.high:.2f}]"


def ratio_words(estimate: Mapping[str, object] | None) -> str:
    """Of an estimate as the JSON document holds it."""
    if estimate is None:
        return "–"
    value, low, high = (as_number(estimate[name]) for name in ("value", "low", "high"))
    if low is None or high is None:
        return f"{number(value)}x (interval unknown)"
    return f"{number(value)}x [{low:.2f}, {high:.2f}]"


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
