"""The YAML that serving configs are written in: nested maps and lists, scalars, JSON inside. Pure.

Anchors, tags, several documents and folded texts are refused by name and line, never guessed at.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from speclift.core.errors import UsageError
from speclift.linter.json_text import DEEPEST, parse_json

# No two parts of it can take the same characters, so that a long line is read once.
_KEY = re.compile(
    r"""(?P<key>"[^"]*"|'[^']*'|[^\s#:{\[\]},'"&*!|>%@`-][^:#]*|-[^\s:#]+)\s*+:(?:\s++(?P<rest>.*))?$"""
)
DIGITS_MAX = 4_000  # Python's own limit is 4,300
SHOWN_MAX = 80
_INT, _FLOAT = re.compile(r"[-+]?\d+"), re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][-+]?\d+)")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def read_yaml(text: str) -> object:
    """The document as maps, lists and scalars; JSON is YAML too."""
    try:
        return parse_json(text)
    except ValueError:
        pass
    lines = deque(
        line for number, raw in enumerate(text.splitlines(), 1) if (line := _line(number, raw)) is not None
    )
    if not lines:
        raise UsageError("this config is empty")
    value = _block(lines, lines[0].indent)
    if lines:
        raise _refusal(lines[0], "its indent fits nothing above it")
    return value


def yaml_text(value: Mapping[str, object], *, indent: int = 0) -> str:
    """Block style with every text in double quotes, so that no value changes its type on the way back."""
    lines = []
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            lines.append(f"{' ' * indent}{key}:\n{yaml_text(each, indent=indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {json.dumps(each)}\n")
    return "".join(lines)


def _line(number: int, raw: str) -> _Line | None:
    if "\t" in raw[: len(raw) - len(raw.lstrip())]:
        raise UsageError(f"line {number} of this YAML is indented with a tab")
    text = _without_comment(raw).rstrip()
    stripped = text.strip()
    if not stripped or (stripped == "---" and number == 1) or stripped.startswith("%YAML"):
        return None
    return _Line(number, len(text) - len(text.lstrip()), stripped)


def _without_comment(raw: str) -> str:
    quote = ""
    for index, character in enumerate(raw):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#" and (index == 0 or raw[index - 1].isspace()):
            return raw[:index]
    return raw


def _block(lines: deque[_Line], indent: int, depth: int = 0) -> object:
    """Takes its own lines off the queue."""
    if depth > DEEPEST:
        raise _refusal(lines[0], f"it is nested more than {DEEPEST} levels deep")
    if lines[0].text.startswith("- ") or lines[0].text == "-":
        return _list(lines, indent, depth)
    if _KEY.match(lines[0].text):
        return _map(lines, indent, depth)
    if len(lines) == 1:
        line = lines.popleft()
        return _scalar(line.text, line)
    raise _refusal(lines[0], "it is neither `key: value` nor `- value`")


def _map(lines: deque[_Line], indent: int, depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    while lines and lines[0].indent == indent:
        line = lines.popleft()
        match = _KEY.match(line.text)
        if match is None:
            raise _refusal(line, "it is no `key: value`")
        key, rest = match["key"].rstrip().strip("\"'"), (match["rest"] or "").strip()
        if key in found:
            raise _refusal(line, f"{key[:SHOWN_MAX]!r} is given twice")
        if rest:
            found[key] = _scalar(rest, line)
        elif lines and (
            lines[0].indent > indent or (lines[0].indent == indent and lines[0].text.startswith("- "))
        ):
            found[key] = _block(lines, lines[0].indent, depth + 1)
        else:
            found[key] = None
    return found


def _list(lines: deque[_Line], indent: int, depth: int) -> list[object]:
    found: list[object] = []
    while lines and lines[0].indent == indent and lines[0].text.startswith("-"):
        line = lines.popleft()
        rest = line.text[1:].strip()
        if rest and _KEY.match(rest) and not rest.startswith(("{", "[")):
            inner = indent + line.text.index(rest)
            lines.appendleft(_Line(line.number, inner, rest))
            found.append(_map(lines, inner, depth + 1))
        elif rest:
            found.append(_scalar(rest, line))
        elif lines and lines[0].indent > indent:
            found.append(_block(lines, lines[0].indent, depth + 1))
        else:
            found.append(None)
    return found


def _scalar(text: str, line: _Line) -> object:
    if text[0] in "{[":
        return _flow(text, line)
    if text[0] in "&*!|>":
        raise _refusal(line, f"{text[0]!r} starts a part of YAML that is not read here")
    if text[0] == '"':
        try:
            return parse_json(text)
        except ValueError:
            raise _refusal(line, "its double-quoted text does not end, or holds an unknown escape") from None
    if text[0] == "'":
        if len(text) < 2 or not text.endswith("'"):
            raise _refusal(line, "its quoted text does not end")
        return text[1:-1].replace("''", "'")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        if len(text) > DIGITS_MAX:
            raise _refusal(line, f"a number of {len(text):,} digits")
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _flow(text: str, line: _Line) -> object:
    """JSON, or its YAML cousin with bare words: {method: ngram, k: 5}."""
    try:
        return parse_json(text)
    except ValueError:
        pass
    quoted = re.sub(r"""(?P<text>"[^"]*"|'[^']*')|(?P<bare>[^\s{}\[\],:'"][^{}\[\],:'"]*)""", _as_json, text)
    try:
        return parse_json(quoted)
    except ValueError:
        raise _refusal(line, "its braces or brackets do not read as a map or a list") from None


def _as_json(match: re.Match[str]) -> str:
    if match["text"]:
        return json.dumps(match["text"][1:-1])
    bare = match["bare"].strip()
    if _INT.fullmatch(bare) or _FLOAT.fullmatch(bare):
        return bare
    return json.dumps(_WORDS.get(bare.lower(), bare))


def _refusal(line: _Line, why: str) -> UsageError:
    return UsageError(
        f"line {line.number} of this YAML cannot be read: {why}", hint=f"saw {line.text[:SHOWN_MAX]!r}"
    )
