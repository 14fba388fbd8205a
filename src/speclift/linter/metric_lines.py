"""Metrics that shell commands ask for: curl … | grep, promtool query, a query in an address. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.core.errors import UsageError
from speclift.linter.dialect import base_name
from speclift.linter.metric_files import Query, url_query
from speclift.linter.shell import read_shell

PATTERNS_MAX = 200  # each is compared with every metric there is
_DEEPEST = 3  # watch "ssh host 'curl …'"
_GREPS = ("grep", "egrep", "fgrep", "zgrep", "rg")
_WITH_VALUE = ("-A", "-B", "-C", "-m", "--context", "--max-count", "--color", "-d", "-D")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedByLines:
    """`patterns` are what grep looks for in a page of metrics; `documents` are files that the script writes."""

    queries: tuple[Query, ...] = ()
    patterns: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


def asked_by_lines(text: str, *, depth: int = 0) -> AskedByLines:
    """Nothing where this is no shell source."""
    try:
        shell = read_shell(text)
    except UsageError:
        return AskedByLines()
    reads_page = "/metrics" in text
    queries: list[Query] = []
    patterns: list[str] = []
    for command in shell.commands:
        program = base_name(command.words[0])
        rest = command.words[1:]
        if program in _GREPS and reads_page:
            patterns += _grepped(rest)
        elif program == "promtool" and rest[:1] == ("query",):
            queries += [
                Query(text=word, asked_by="promtool") for word in rest[3:] if not word.startswith("-")
            ][:1]
        else:
            asked = [url_query(word) for word in rest if "query=" in word]
            queries += [Query(text=query, asked_by=program) for query in asked if query]
            inner = _inside(rest, depth=depth)
            queries += inner.queries
            patterns += inner.patterns
    patterns = list(dict.fromkeys(patterns))
    if len(patterns) > PATTERNS_MAX:
        queries.append(Query(text="", asked_by="grep", fault=f"only {PATTERNS_MAX} patterns were judged"))
    return AskedByLines(
        queries=tuple(queries), patterns=tuple(patterns[:PATTERNS_MAX]), documents=tuple(shell.documents)
    )


def _inside(words: Sequence[str], *, depth: int) -> AskedByLines:
    """What watch, bash -c or ssh are given to run."""
    if depth >= _DEEPEST:
        return AskedByLines()
    told = [
        asked_by_lines(word, depth=depth + 1)
        for word in words
        if "/metrics" in word and any(character.isspace() for character in word)
    ]
    return AskedByLines(
        queries=tuple(query for each in told for query in each.queries),
        patterns=tuple(pattern for each in told for pattern in each.patterns),
    )


def _grepped(words: Sequence[str]) -> list[str]:
    """The patterns that lines have to match; those of -v leave lines out."""
    patterns: list[str] = []
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        is_short = word.startswith("-") and not word.startswith("--")
        if word == "--invert-match" or (is_short and "v" in word):
            return []
        if word in ("-e", "--regexp"):
            patterns += [pattern for pattern in (next(rest, ""),) if pattern]
        elif word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            plain.append(word)
    return patterns or plain[:1]
