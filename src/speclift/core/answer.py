"""What a verb says first: one sentence, why, and what to do next. A reader who stops there has read the result."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from speclift.core.document import Document
from speclift.core.quantities import printable
from speclift.core.units import Seconds

BECAUSE_MAX = 3
# Three and two lines of a terminal with 80 columns.
SENTENCE_CHARACTERS_MAX = 200
BECAUSE_CHARACTERS_MAX = 150


class NextCommand(Document, frozen=True, kw_only=True):
    """A command that runs as it stands, and how long it takes by what was measured."""

    command: str
    seconds: Annotated[Seconds, Meta(ge=0)]


class ShortAnswer(Document, frozen=True, kw_only=True):
    sentence: str
    because: Annotated[tuple[str, ...], Meta(max_length=BECAUSE_MAX)]
    next: NextCommand | None = None


def answered(sentence: str, because: Iterable[str], following: NextCommand | None = None) -> ShortAnswer:
    """The strongest reasons come first; those beyond three are left to the report."""
    reasons = dict.fromkeys(shortened(reason, BECAUSE_CHARACTERS_MAX) for reason in because if reason)
    return ShortAnswer(
        sentence=shortened(sentence, SENTENCE_CHARACTERS_MAX),
        because=tuple(reasons)[:BECAUSE_MAX],
        next=following and replace(following, seconds=round(following.seconds, 1)),
    )


def shortened(text: str, limit: int) -> str:
    """One line of at most so many characters that cannot act on a terminal."""
    shown = printable(" ".join(text.split()), limit=limit)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def command_time(command: str, seconds: float) -> str:
    """A server goes on; what it takes is until it answers."""
    until = "about" if command.startswith("speclift ") else "ready in about"
    return f"{until} {_time_words(seconds)}"


def _time_words(seconds: float) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
