"""The words in which a part of the gate answers, and which of them wins."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Result(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


# How one prompt is answered says little about the next: fewer distinct ones never pass, as they never ship.
PROMPTS_MIN = 8


def few_prompts(prompts: int) -> str:
    """Why so many do not carry a pass; empty where they do."""
    if prompts >= PROMPTS_MIN:
        return ""
    return f"{prompts} distinct prompt{'' if prompts == 1 else 's'} compared, {PROMPTS_MIN} needed"


def worst(results: Iterable[Result]) -> Result:
    """Skipped parts do not speak; if nothing spoke, nothing is known."""
    spoken = [result for result in results if result is not Result.SKIPPED]
    for result in (Result.FAIL, Result.INCONCLUSIVE, Result.PASS):
        if result in spoken:
            return result
    return Result.INCONCLUSIVE
