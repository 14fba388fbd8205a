"""JSON from a stranger: as deep as a config may be, and every refusal a ValueError. Pure."""

from __future__ import annotations

import json

# A serving config has three levels; what walks through it may be recursive.
DEEPEST = 50


def parse_json(text: str) -> object:
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[object] = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
