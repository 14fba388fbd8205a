"""The user's own text with another speculation in it, everything else as they wrote it. Pure.

Text is edited where flags stand in it, in the way of its format, and whoever asks reads the result back: an edit that
does not say what was meant is not shown (verbs/own_line.py).
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from speclift.linter.dialect import Dialect
from speclift.linter.pasted import Form, Pasted
from speclift.linter.row_rules import folded_command, yaml_text

CONTEXT_LINES = 3

# A value as a shell reads it, and what may stand between two words of one command.
_WORD = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+"""
_GAP = r"(?:[ \t]|\\\n|\\\r\n)+"
_LISTED = r"""(?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^\s,\]]+)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSpeculation:
    """The speculation to put in, in the two ways it can be said; both empty to take it out."""

    words: tuple[str, ...]
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True, order=True)
class _Edit:
    start: int
    end: int
    text: str = ""


def rewritings(text: str, pasted: Pasted, dialect: Dialect, wanted: NewSpeculation) -> Iterator[str]:
    """Attempts, the one that keeps most of the text first. `pasted` is what the text was read as."""
    if pasted.form is Form.PYTHON:
        yield from _in_python(text, dialect, wanted)
    elif pasted.form is Form.CONFIG:
        yield from _in_config(text, pasted, dialect, wanted)
    else:
        for find in (_in_lines, _in_flow_list, _in_command):
            edits = _flag_edits(text, pasted, dialect, wanted, find)
            if edits is not None:
                yield _applied(text, edits)


def unified(before: str, after: str) -> str:
    """The change line by line; a command in one line is folded first, one flag per line."""
    if "\n" not in before.strip():
        before, after = _folded(before), _folded(after)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "yours", "recommended", lineterm="", n=CONTEXT_LINES
    )
    return "\n".join(lines)


def _folded(text: str) -> str:
    try:
        return folded_command([shlex.quote(word) for word in shlex.split(text)])
    except ValueError:
        return text


# Flags of a command


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a flag and its value, and how other words are written there."""

    start: int
    end: int
    say: Callable[[Sequence[str]], str]


def _flag_edits(
    text: str,
    pasted: Pasted,
    dialect: Dialect,
    wanted: NewSpeculation,
    find: Callable[[str, str, bool], _Place | None],
) -> list[_Edit] | None:
    """None where the flags do not stand in the text in this way, each once."""
    places, last = [], None
    for setting in pasted.settings:
        place = find(text, setting.spelled, setting.value is not None)
        if dialect.is_speculation(setting.name):
            if place is None:
                return None
            places.append(place)
        elif place is not None:
            last = place if last is None or place.end > last.end else last
    if not places:
        if last is None or not wanted.words:
            return None
        return [_Edit(last.end, last.end, last.say(wanted.words))]
    first, *others = sorted(places, key=lambda place: place.start)
    instead = first.say(wanted.words) if wanted.words else ""
    return [_Edit(first.start, first.end, instead), *(_Edit(place.start, place.end) for place in others)]


def _in_command(text: str, flag: str, has_value: bool) -> _Place | None:
    """Words between blanks, over one line or several."""
    value = f"(?:={_WORD}|{_GAP}{_WORD})" if has_value else ""
    match = _only(re.compile(rf"{_GAP}{re.escape(flag)}(?![\w-]){value}"), text)
    if match is None:
        return None
    gap = re.match(_GAP, match[0])
    between = gap[0] if gap is not None else " "

    def say(words: Sequence[str]) -> str:
        flags = _by_flag(words)
        return "".join(between + " ".join(shlex.quote(word) for word in each) for each in flags)

    return _Place(match.start(), match.end(), say)


def _in_lines(text: str, flag: str, has_value: bool) -> _Place | None:
    """Items of a YAML list, one per line."""
    item = rf"""(?P<indent>[ \t]*-[ \t]+)["']?{re.escape(flag)}"""
    one = rf"""(?m)^{item}={_LISTED}["']?[ \t]*\n"""
    two = rf"""(?m)^{item}["']?[ \t]*\n""" + (r"[ \t]*-[ \t]+.*\n" if has_value else "")
    match = _only(re.compile(one), text) or _only(re.compile(two), text)
    if match is None:
        return None
    indent = match["indent"]
    return _Place(
        match.start(), match.end(), lambda words: "".join(f"{indent}{json.dumps(word)}\n" for word in words)
    )


def _in_flow_list(text: str, flag: str, has_value: bool) -> _Place | None:
    """["--flag", "value"]"""
    value = rf",\s*{_LISTED}" if has_value else ""
    match = _only(re.compile(rf""",\s*["']{re.escape(flag)}["']{value}"""), text)
    if match is None:
        return None
    return _Place(
        match.start(), match.end(), lambda words: "".join(f", {json.dumps(word)}" for word in words)
    )


def _only(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = [match for match in pattern.finditer(text) if not _is_in_comment(text, match)]
    return matches[0] if len(matches) == 1 else None


def _is_in_comment(text: str, match: re.Match[str]) -> bool:
    """True in a comment line, which a shell, Python and YAML skip alike."""
    begun = text.rfind("\n", 0, match.end()) + 1
    return text[begun : match.end()].lstrip().startswith("#")


def _by_flag(words: Sequence[str]) -> list[list[str]]:
    flags: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not flags:
            flags.append([])
        flags[-1].append(word)
    return flags


def _applied(text: str, edits: Sequence[_Edit]) -> str:
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


# Keywords of a call


def _in_python(text: str, dialect: Dialect, wanted: NewSpeculation) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    if dialect.config is None:
        return
    key = dialect.config.flag.removeprefix("--").replace("-", "_")
    offsets = _Offsets(text)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if getattr(call.func, "id", getattr(call.func, "attr", "")) in dialect.python_makers:
            edits = [
                _without_keyword(text, keyword, offsets)
                for keyword in call.keywords
                if keyword.arg is not None and dialect.is_speculation(f"--{keyword.arg.replace('_', '-')}")
            ]
            if wanted.config:
                edits.append(_with_keyword(text, call, f"{key}={dict(wanted.config)!r}", offsets))
            yield _applied(text, edits)


class _Offsets:
    """Places in the text by lines and columns, which Python counts in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *(place + 1 for place, character in enumerate(text) if character == "\n")]

    def end(self, node: ast.expr) -> int:
        return self.at(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def at(self, line: int, column: int) -> int:
        begun = self._starts[line - 1]
        return begun + len(self._text[begun:].encode()[:column].decode("utf-8", "ignore"))


def _without_keyword(text: str, keyword: ast.keyword, offsets: _Offsets) -> _Edit:
    end = offsets.end(keyword.value)
    comma = re.compile(r"\s*,[ \t]*\n?[ \t]*").match(text, end)
    return _Edit(offsets.at(keyword.lineno, keyword.col_offset), end if comma is None else comma.end())


def _with_keyword(text: str, call: ast.Call, said: str, offsets: _Offsets) -> _Edit:
    """Behind the others, on a line of its own where the call has several."""
    closing = offsets.end(call) - 1
    before = text[:closing].rstrip()
    tail = text[len(before) : closing]
    if "\n" not in tail:
        return _Edit(closing, closing, said if before.endswith((",", "(")) else f", {said}")
    indent = re.match(r"[ \t]*", before[before.rfind("\n") + 1 :])
    comma = "" if before.endswith((",", "(")) else ","
    return _Edit(len(before), len(before), f"{comma}\n{indent[0] if indent else ''}{said},")


# Keys of a config


def _in_config(text: str, pasted: Pasted, dialect: Dialect, wanted: NewSpeculation) -> Iterator[str]:
    """Edits keys of the first level; what is indented under one goes with it."""
    if dialect.config is None:
        return
    for setting in pasted.settings:
        if dialect.is_speculation(setting.name):
            block = rf"(?m)^{re.escape(setting.spelled)}[ \t]*:.*\n?(?:[ \t]+.*\n?|\n)*"
            text = re.sub(block, "", text, count=1)
    if wanted.config:
        key = dialect.config.flag.removeprefix("--")
        text = f"{text.rstrip()}\n{yaml_text({key: dict(wanted.config)})}"
    yield text
