"""Metrics that rules, dashboards and scripts ask for, judged by what the engine exports. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from speclift.core.engine_facts import MetricsFile
from speclift.linter.pasted import AskedMetrics, MetricQuery, Setting
from speclift.linter.row_rules import finding, lifetime_fault
from speclift.linter.rows import (
    Life,
    LintFinding,
    NameTable,
    Release,
    Row,
    Status,
    ValueKind,
    nearest,
    tables_of,
)

# Which series does a PromQL expression select? Read as Grafana writes it too: $name, ${name} and [[name]] are filled in


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
            kind, text = self._tokens[self._at]
            self._at += 1
            if kind == "name":
                self._name(text)
            elif kind == "sign":
                fault = self._sign(text)
        if self._closings and not fault:
            fault = f"{self._closings[-1]} is missing at its end"
        return Selection(
            names=tuple(self._names), patterns=tuple(self._patterns), has_or=self._has_or, fault=fault
        )

    def _sign(self, sign: str) -> str:
        """Says what is wrong with it; empty where nothing is."""
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
        """Reads {…}; labels are the scraper's, and a name may stand in __name__ or alone in quotes."""
        before = "{"
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            self._at += 1
            if (kind, text) == ("sign", "}"):
                return True
            if kind == "text" and before in ("{", ","):
                if self._peek() in ("}", ","):
                    self._names.setdefault(text[1:-1])
            elif (kind, text) == ("name", "__name__") and self._at + 1 < len(self._tokens):
                (_, sign), (value_kind, value) = self._tokens[self._at : self._at + 2]
                if value_kind == "text" and sign in ("=", "=~"):
                    names = self._names if sign == "=" else self._patterns
                    names.setdefault(value[1:-1])
            before = text
        return False

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _skip_to(self, closing: str) -> None:
        while self._at < len(self._tokens) and self._tokens[self._at][1] != closing:
            self._at += 1
        self._at += 1


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each."""
    is_range = False
    for match in _TOKEN.finditer(expression):
        kind, text = match.lastgroup or "", match[0]
        # What stands in a range, [5m] or [$__interval:1m], is a duration.
        if kind == "sign" and text in "[]":
            is_range = text == "["
        if kind != "blank" and not (is_range and kind == "name"):
            yield kind, text
        # Behind a quote that is never closed nothing is known, and looking again from each further one takes for ever.
        if kind == "sign" and text in "\"'`":
            return


# The few regular expressions that people write over names, matched in time that their length bounds: a stranger's
# pattern is not handed to `re`. What is read: alternatives, brackets around them, .* and what stands for itself


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


# The names of one engine


# What Prometheus' client adds to the name of each kind; the first is the one to ask for.
SUFFIXES = {
    ValueKind.COUNTER: ("_total", "_created"),
    ValueKind.GAUGE: ("",),
    ValueKind.HISTOGRAM: ("_bucket", "_sum", "_count", "_created"),
}
_ANY_SUFFIX = ("_total", "_created", "_bucket", "_sum", "_count", "")
COMPARED_MAX = 100  # names that are compared with all there are, which takes a while
ASKERS_MAX = 3  # named in a finding; the rest is counted


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Rows without the engine's `prefix`; `elsewhere` are names with that prefix which others export."""

    table: NameTable
    prefix: str
    elsewhere: frozenset[str] = frozenset()

    @classmethod
    def of(cls, file: MetricsFile, *, title: str) -> MetricNames:
        tables = tables_of({"metrics": file.metrics}, engine=title, where=f"the metrics.toml of {title}")
        prefix, elsewhere = file.prefix.removesuffix(":"), frozenset(file.elsewhere.split())
        return cls(tables["metrics"], prefix=prefix, elsewhere=elsewhere)

    def found_in(self, text: str) -> tuple[str, ...]:
        """Names in a text that is no query: any with the prefix, without it those that are no common words."""
        telling = [row.name for row in self.table if row.replacement or row.renamed_to]
        told = "|".join(sorted(self.table.rows, key=len, reverse=True))
        without = "|".join(sorted((name for name in telling if name.count("_") > 1), key=len, reverse=True))
        suffix = f"(?:{'|'.join(filter(None, _ANY_SUFFIX))})?"
        pattern = (
            rf"(?<![\w:])(?:(?:ray_)?{self.prefix}[:_](?:{told})|(?:{without or '(?!)'})){suffix}(?![\w:])"
        )
        return tuple(dict.fromkeys(match[0] for match in re.finditer(pattern, text)))

    def is_own(self, name: str) -> bool:
        """Recording rules put further colons into a name; underscores for the colon are Ray's and some exporters'."""
        bare = name.removeprefix(f"{self.prefix}:")
        if bare != name:
            return ":" not in bare
        return self._row(name)[0] is not None and name.startswith((f"{self.prefix}_", f"ray_{self.prefix}_"))

    def may_match(self, pattern: str, *, is_whole: bool = False) -> bool:
        """True if a pattern is about these metrics, of whatever release."""
        return f"{self.prefix}:" in pattern or any(self._matched(pattern, is_whole=is_whole))

    def finds(self, pattern: str, release: Release) -> bool:
        """True if a pattern finds something that this release exports."""
        return any(row.life(release) is Life.THERE for row in self._matched(pattern, is_whole=False))

    def _matched(self, pattern: str, *, is_whole: bool) -> Iterator[Row]:
        for part in alternatives(pattern) or ():
            yield from self._rows_of(part, is_whole=is_whole)

    def _rows_of(self, alternative: str, *, is_whole: bool) -> list[Row]:
        return [
            row
            for row in self.table
            if any(matches(alternative, sample, is_whole=is_whole) for sample in self._samples(row))
        ]

    def judged(self, asked: AskedMetrics, *, release: Release) -> tuple[LintFinding, ...]:
        by_name: dict[str, list[MetricQuery]] = {name: [] for name in asked.named}
        for query in asked.queries:
            for name in query.names:
                by_name.setdefault(name, []).append(query)
        judged = [
            self._judged_name(name, queries, release, is_compared=place < COMPARED_MAX)
            for place, (name, queries) in enumerate(by_name.items())
        ]
        patterns = [(pattern, False) for pattern in asked.patterns]
        patterns += [(pattern, True) for query in asked.queries for pattern in query.patterns]
        for pattern, is_whole in dict.fromkeys(patterns):
            judged += self._judged_pattern(pattern, release, is_whole=is_whole)
        return tuple(judged)

    # One name

    def _judged_name(
        self, spelled: str, queries: Sequence[MetricQuery], release: Release, *, is_compared: bool
    ) -> LintFinding:
        setting = Setting(name=spelled, spelled=spelled)
        if has_variable(spelled):
            said = "only the dashboard knows this name: it was not judged"
            return finding(setting, Status.UNREAD, said)
        row, suffix = self._row(spelled)
        if row is None:
            bare = self._bare(spelled)
            if _without_suffix(bare) in self.elsewhere:
                return finding(setting, Status.OK, "another exporter's: it was not judged")
            near = self._nearest(bare, release) if is_compared else None
            said = f"{self.table.engine} exports no such metric" + (f"; did you mean {near}?" if near else "")
            fault = finding(setting, Status.UNKNOWN, said, replacement=near, source=self.table.source)
        else:
            settled = self._fault(setting, row, suffix, release, is_query=bool(queries))
            if settled.status in (Status.OK, Status.RISKY):
                return settled
            fault = settled
        failing = [query for query in queries if not self._has_stand_in(query, spelled, release)]
        if queries and not failing:
            return replace(
                fault, status=Status.RISKY, message=f"{fault.message}; the other side of `or` answers for it"
            )
        return replace(fault, message=f"{fault.message}{_consequence(failing)}")

    def _nearest(self, bare: str, release: Release) -> str | None:
        """The nearest name that is exported, with the prefix."""
        exported = [sample for row in self.table if row.holds(release) for sample in self._samples(row)]
        return nearest(f"{self.prefix}:{bare}", exported)

    def _fault(
        self, setting: Setting, row: Row, suffix: str, release: Release, *, is_query: bool
    ) -> LintFinding:
        fault = lifetime_fault(setting, row, self.table, release)
        if fault is not None:
            return fault
        exported = SUFFIXES.get(row.kind, (suffix,))
        # Underscores for the colon are somebody else's renaming, suffixes included.
        if is_query and suffix not in exported and setting.name.startswith(f"{self.prefix}:"):
            name = f"{self.prefix}:{row.name}{exported[0]}"
            said = f"{row.kind.words}, which is exported as {name}; under this name there is nothing"
            return finding(setting, Status.UNKNOWN, said, replacement=name, source=row.source)
        if row.warning:
            return finding(setting, Status.RISKY, row.warning, source=row.source)
        return finding(setting, Status.OK, row.note, source=row.source)

    def _has_stand_in(self, query: MetricQuery, name: str, release: Release) -> bool:
        others = (self._row(other) for other in query.names if other != name)
        return query.has_or and any(
            row is not None and row.holds(release) and suffix in SUFFIXES.get(row.kind, (suffix,))
            for row, suffix in others
        )

    def _bare(self, name: str) -> str:
        plain = name.removeprefix("ray_")
        for prefix in (f"{self.prefix}:", f"{self.prefix}_"):
            if plain.startswith(prefix):
                return plain.removeprefix(prefix)
        return name

    def _row(self, name: str) -> tuple[Row | None, str]:
        """Its row and the suffix that was written behind the row's name."""
        bare = self._bare(name)
        if bare in self.table:
            return self.table[bare], ""
        plain = _without_suffix(bare)
        return self.table.find(plain), bare.removeprefix(plain)

    def _samples(self, row: Row) -> list[str]:
        return [f"{self.prefix}:{row.name}{suffix}" for suffix in SUFFIXES.get(row.kind, _ANY_SUFFIX)]

    # Patterns over names

    def _judged_pattern(self, pattern: str, release: Release, *, is_whole: bool) -> Iterator[LintFinding]:
        setting = Setting(name=pattern, spelled=pattern)
        parts = alternatives(pattern)
        if parts is None:
            yield finding(setting, Status.UNREAD, "this pattern was not read: ask for a name")
            return
        for part in parts:
            rows = self._rows_of(part, is_whole=is_whole)
            live = [row for row in rows if lifetime_fault(setting, row, self.table, release) is None]
            if live:
                yield finding(setting, Status.OK, f"finds {_few([row.name for row in live])}")
            elif rows:
                faults = (lifetime_fault(setting, row, self.table, release) for row in rows)
                yield from (replace(fault, message=f"{row.name}: {fault.message}; it finds nothing")
                            for row, fault in zip(rows, faults, strict=True) if fault is not None)  # fmt: skip
            elif f"{self.prefix}:" in part:
                near = self._nearest(self._bare(part.strip("^$")), release)
                said = f"{self.table.engine} exports nothing that this finds"
                yield finding(setting, Status.UNKNOWN, said, replacement=near, source=self.table.source)


def _without_suffix(name: str) -> str:
    return next(
        (name.removesuffix(suffix) for suffix in _ANY_SUFFIX if suffix and name.endswith(suffix)), name
    )


def _consequence(queries: Iterable[MetricQuery]) -> str:
    """Says what the fault does to those who ask."""
    askers = list(dict.fromkeys(f"{query.asked_by} {query.fails}" for query in queries if query.asked_by))
    if not askers:
        return ""
    more = len(askers) - ASKERS_MAX
    return f"; {', '.join(askers[:ASKERS_MAX])}" + (f" and {more} more" if more > 0 else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:ASKERS_MAX]) + (" and others" if len(names) > ASKERS_MAX else "")
