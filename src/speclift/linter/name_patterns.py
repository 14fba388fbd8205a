"""The few regular expressions that people write over metric names, matched in time that their length bounds. Pure.

A stranger's pattern is not handed to `re`, which can take for ever over one. What is read: alternatives, brackets
around them, .* and what stands for itself.
"""

from __future__ import annotations

import re

PATTERN_MAX = 500  # characters
ALTERNATIVES_MAX = 64
_LABELS = re.compile(r"\\?\{.*|\s.*|\[0-9\].*", re.DOTALL)
_PLAIN = re.compile(r"[\w:.-]*")


def alternatives(pattern: str) -> tuple[str, ...] | None:
    """Each without brackets and bars, for `matches`; None where more than that is in it."""
    if len(pattern) > PATTERN_MAX:
        return None
    # Basic regular expressions write \| and \( for what others write | and (.
    text = pattern.replace("\\|", "|").replace("\\(", "(").replace("\\)", ")").replace("?:", "")
    found = _expanded(text)
    if found is None:
        return None
    # A name ends where labels or a value begin.
    plain = [
        _LABELS.sub("", each).replace("\\.", ".").replace(".+", ".*").replace("\\b", "") for each in found
    ]
    if not all(
        _PLAIN.fullmatch(each.removeprefix("^").removesuffix("$").replace(".*", "")) for each in plain
    ):
        return None
    return tuple(dict.fromkeys(each for each in plain if each.strip("^$.*")))


def _expanded(text: str) -> list[str] | None:
    """Brackets multiplied out; None where they do not match or are too many."""
    done: list[str] = []
    open_texts = [text]
    while open_texts:
        each = open_texts.pop()
        closing = each.find(")")
        opening = each.rfind("(", 0, max(closing, 0))
        if closing < 0:
            if "(" in each:
                return None
            done += each.split("|")
        elif opening < 0:
            return None
        else:
            inner = each[opening + 1 : closing].split("|")
            open_texts += [each[:opening] + part + each[closing + 1 :] for part in inner]
        if len(done) + len(open_texts) > ALTERNATIVES_MAX:
            return None
    return done


def matches(alternative: str, name: str, *, is_whole: bool = False) -> bool:
    """`is_whole` as Prometheus anchors its matchers; grep finds its pattern anywhere."""
    starts = is_whole or alternative.startswith("^")
    ends = is_whole or alternative.endswith("$")
    pieces = alternative.lower().removeprefix("^").removesuffix("$").split(".*")
    if starts and not name.startswith(pieces[0]):
        return False
    at = 0
    for piece in pieces:
        at = name.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return not ends or (name.endswith(pieces[-1]) and (len(pieces) > 1 or at == len(name) or not starts))
