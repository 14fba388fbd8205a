"""JSON from a stranger: as deep as a config may be, and every refusal a ValueError. Pure."""

from __future__ import annotations

import json
import re

from speclift.linter.pasted import ShellExpression

# Code points that are no characters and stand in no text.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKED = re.compile(r'"\\ufdd0(.*?)\\ufdd1"')
# A serving config has three levels; what walks through it may be recursive.
DEEPEST = 50


def parse_json(text: str) -> object:
    try:
        value: object = json.loads(text, object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[object] = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def looks_like_config(text: str) -> bool:
    """Whether it begins as JSON or YAML does."""
    first = next(
        (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), ""
    )
    return text.lstrip().startswith(("{", "[", "---")) or ":" in first


def config_json(value: object, *, separators: tuple[str, str] = (", ", ": ")) -> str:
    """JSON in which a shell's number is none of our texts: {"k": $K}."""
    dumped = json.dumps(value, separators=separators, default=_marked)
    return _MARKED.sub(lambda match: str(json.loads(f'"{match[1]}"')), dumped)


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A key given twice is one value too many: readers take the last one and say nothing."""
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None) if len(set(keys)) < len(keys) else None
    if twice is not None:
        raise ValueError(f"it has the key {twice!r} twice")
    return dict(pairs)


def _marked(value: object) -> str:
    return f"{_OPEN}{value.text}{_CLOSE}" if isinstance(value, ShellExpression) else str(value)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
