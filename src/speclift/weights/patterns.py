"""Pre-tokenizer patterns for Python's re, which knows no \\p{L}: each class is spelt out as its ranges."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from functools import cache

from speclift.core.errors import UsageError

_CLASS = re.compile(r"\\(?P<negated>[pP])\{(?P<name>[A-Za-z_]+)\}")
_CATEGORY = re.compile(r"[LMNPSZC][a-z]?")
_CODE_POINTS = 0x110000


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as tokenizer files write it; UsageError where Python cannot express it."""
    pieces: list[str] = []
    position = 0
    for found in _CLASS.finditer(pattern):
        if found["negated"] == "P" or not _CATEGORY.fullmatch(found["name"]):
            raise UsageError(f"the pre-tokenizer's {found[0]} cannot be matched here")
        before = pattern[position : found.start()]
        ranges = _ranges_of(found["name"])
        pieces.append(before)
        pieces.append(ranges if _is_inside_class(pattern[: found.start()]) else f"[{ranges}]")
        position = found.end()
    pieces.append(pattern[position:])
    try:
        return re.compile("".join(pieces))
    except re.error as error:
        raise UsageError(f"the pre-tokenizer's pattern cannot be matched here: {error}") from error


def _is_inside_class(before: str) -> bool:
    is_open, position = False, 0
    while position < len(before):
        if before[position] == "\\":
            position += 1
        elif before[position] == "[" and not is_open:
            is_open = True
        elif before[position] == "]":
            is_open = False
        position += 1
    return is_open


def _ranges_of(name: str) -> str:
    found = [text for category, text in _ranges().items() if category.startswith(name)]
    return "".join(found)


@cache
def _ranges() -> dict[str, str]:
    """Every general category as the inside of a character class."""
    ranges: defaultdict[str, list[str]] = defaultdict(list)
    start, current = 0, unicodedata.category(chr(0))
    for point in range(1, _CODE_POINTS + 1):
        category = unicodedata.category(chr(point)) if point < _CODE_POINTS else ""
        if category != current:
            ranges[current].append(f"\\U{start:08x}-\\U{point - 1:08x}")
            start, current = point, category
    return {category: "".join(texts) for category, texts in ranges.items()}
