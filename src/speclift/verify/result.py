"""The words in which a part of the gate answers, and which of them wins."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Result(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


def worst(results: Iterable[Result]) -> Result:
    """Skipped parts do not speak; if nothing spoke, nothing is known."""
    spoken = [result for result in results if result is not Result.SKIPPED]
    for result in (Result.FAIL, Result.INCONCLUSIVE, Result.PASS):
        if result in spoken:
            return result
    return Result.INCONCLUSIVE
