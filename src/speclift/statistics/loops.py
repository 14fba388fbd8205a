"""Which answers end in a loop? A loop accepts every draft, so its speed is not that of traffic anybody wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from speclift.core.records import Record
from speclift.core.results import Looping

# Beyond this share of looping answers a segment's speedup is not the traffic's.
DEGENERATE_SHARE = 0.2
# A text whose last characters repeat with one period for this long is a loop, not an answer.
LOOP_PERIODS = 4
LOOP_CHARACTERS = 60


def degenerate_segments(records: Iterable[Record]) -> tuple[Looping, ...]:
    """Segments of which more answers end in a loop than DEGENERATE_SHARE allows."""
    answers: Counter[str] = Counter()
    looping: Counter[str] = Counter()
    for record in records:
        if record.is_ok:
            answers[record.place.segment] += 1
            looping[record.place.segment] += is_looping(record.text)
    return tuple(
        Looping(segment=segment, looping=looping[segment], answers=count)
        for segment, count in answers.items()
        if looping[segment] > DEGENERATE_SHARE * count
    )


def is_looping(text: str) -> bool:
    """True where the text ends with the same piece at least four times over at least 60 characters."""
    tail = text[-400:]
    for period in range(1, len(tail) // LOOP_PERIODS + 1):
        length = max(LOOP_CHARACTERS, period * LOOP_PERIODS)
        if length > len(tail):
            return False
        end = tail[-length:]
        if end[period:] == end[:-period]:
            return True
    return False
