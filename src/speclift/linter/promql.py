"""Which series does a PromQL expression select? Its metric names, told from functions, labels and keywords. Pure.

Read as Grafana writes it too: $name, ${name} and [[name]] stand for what a dashboard fills in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_VARIABLE = r"\$\{[^{}]*\}|\$\w+|\[\[\w+\]\]"
_TOKEN = re.compile(
    rf"""(?P<blank>\s+|\#[^\n]*)
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<number>\d[\w.]*|\.\d[\w.]*)
    |(?P<name>(?:[A-Za-z_:]|{_VARIABLE})(?:[\w:]|{_VARIABLE})*)
    |(?P<sign>=~|!~|!=|.)""",
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(("and", "or", "unless", "bool", "offset", "inf", "nan", "atan2", "start", "end", "by", "without",
                       "on", "ignoring", "group_left", "group_right"))  # fmt: skip
# What takes a list of labels in brackets.
_LABELLED = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_OPENING = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`names` are metrics, `patterns` regular expressions over their names. `has_or`: one side may stand in for
    another. `fault` says why the rest was not read; empty where all was."""

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    has_or: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def selection(expression: str) -> Selection:
    return _Reader(expression).read()


def has_variable(name: str) -> bool:
    return re.search(_VARIABLE, name) is not None


class _Reader:
    def __init__(self, expression: str) -> None:
        self._tokens = list(_tokens(expression))
        self._at = 0
        self._names: dict[str, None] = {}
        self._patterns: dict[str, None] = {}
        self._closings: list[str] = []
        self._has_or = False

    def read(self) -> Selection:
        fault = ""
        while self._at < len(self._tokens) and not fault:
            token = self._tokens[self._at]
            self._at += 1
            if token.kind == "name":
                self._name(token.text)
            elif token.kind == "sign":
                fault = self._sign(token.text)
        if self._closings and not fault:
            fault = f"{self._closings[-1]} is missing at its end"
        return Selection(
            names=tuple(self._names), patterns=tuple(self._patterns), has_or=self._has_or, fault=fault
        )

    def _sign(self, sign: str) -> str:
        """What is wrong with it; empty where nothing is."""
        if sign == "{":
            return "" if self._matchers() else "{ is never closed"
        if sign in _OPENING:
            self._closings.append(_OPENING[sign])
        elif sign in ")}]":
            return "" if self._closings and self._closings.pop() == sign else f"{sign} closes nothing"
        elif sign in "\"'`":
            return f"{sign} is never closed"
        return ""

    def _name(self, name: str) -> None:
        word, follows = name.lower(), self._peek()
        if word in _LABELLED:
            if follows == "(":
                self._skip_to(")")
        elif word in _KEYWORDS:
            self._has_or = self._has_or or word == "or"
        elif follows != "(" and not (follows.lower() in ("by", "without") and ":" not in name):
            self._names.setdefault(name)

    def _matchers(self) -> bool:
        """Of {…}: labels are whoever's scrape adds them; a name may stand in __name__ or alone in quotes."""
        before = "{"
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token.kind == "sign" and token.text == "}":
                return True
            if token.kind == "text" and before in ("{", ","):
                if self._peek() in ("}", ","):
                    self._names.setdefault(token.text[1:-1])
            elif token.kind == "name" and token.text == "__name__" and self._at + 1 < len(self._tokens):
                sign, value = self._tokens[self._at : self._at + 2]
                if value.kind == "text" and sign.text in ("=", "=~"):
                    found = self._names if sign.text == "=" else self._patterns
                    found.setdefault(value.text[1:-1])
            before = token.text
        return False

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _skip_to(self, closing: str) -> None:
        while self._at < len(self._tokens) and self._tokens[self._at].text != closing:
            self._at += 1
        self._at += 1


def _tokens(expression: str) -> Iterator[_Token]:
    is_range = False
    for match in _TOKEN.finditer(expression):
        kind, text = match.lastgroup or "", match[0]
        # What stands in a range, [5m] or [$__interval:1m], is a duration.
        if kind == "sign" and text in "[]":
            is_range = text == "["
        if kind != "blank" and not (is_range and kind == "name"):
            yield _Token(kind, text)
        # Behind a quote that is never closed nothing is known, and looking again from each further one takes for ever.
        if kind == "sign" and text in "\"'`":
            return
