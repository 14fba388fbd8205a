"""What a verb says first: one sentence, why, and what to do next. A reader who stops there has read the result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from speclift.core.quantities import printable
from speclift.core.units import Seconds

BECAUSE_MAX = 3
# Three and two lines of a terminal with 80 columns.
SENTENCE_CHARACTERS_MAX = 200
BECAUSE_CHARACTERS_MAX = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCommand:
    """A command that runs as it stands, and how long it takes by what was measured."""

    command: str
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortAnswer:
    sentence: str
    because: tuple[str, ...]
    next: NextCommand | None = None

    def __post_init__(self) -> None:
        assert self.sentence == shortened(self.sentence, SENTENCE_CHARACTERS_MAX)
        assert len(self.because) <= BECAUSE_MAX


def answered(sentence: str, because: Iterable[str], following: NextCommand | None = None) -> ShortAnswer:
    """The strongest reasons come first; those beyond three are left to the report."""
    reasons = dict.fromkeys(shortened(reason, BECAUSE_CHARACTERS_MAX) for reason in because if reason)
    return ShortAnswer(
        sentence=shortened(sentence, SENTENCE_CHARACTERS_MAX),
        because=tuple(reasons)[:BECAUSE_MAX],
        next=following,
    )


def shortened(text: str, limit: int) -> str:
    """One line of at most so many characters that cannot act on a terminal."""
    shown = printable(" ".join(text.split()), limit=limit)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
