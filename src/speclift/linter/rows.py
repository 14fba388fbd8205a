"""The shape of the knowledge: one row per name that an engine takes, with its lifetime and its source. Pure.

A flag, a key, a method, a value, a variable, a metric or a program is a row; a table holds the rows of one engine and
one kind of name. Whether a row is there in a release is asked of the row, nowhere else. The rows of our engines stand
in TOML, beside their adapters (facts/); `tables_of` reads one such file and refuses whatever is not meant to be there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, StrEnum, auto
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from speclift.core.document import Document

# vLLM's (0, 32, 0); llama.cpp numbers its builds: b11549 is (11549,).
Release: TypeAlias = tuple[int, ...]


class Status(StrEnum):
    OK = "ok"
    RISKY = "risky"  # accepted, and likely not what was meant
    REMOVED = "removed"
    RENAMED = "renamed"
    DEAD = "dead"  # accepted, and read by nothing
    CONFLICT = "conflict"  # this value, or this combination, is refused
    UNKNOWN = "unknown"  # not known to this release: never was, or came later
    UNREAD = "unread"  # what stands here could not be read, so nothing was judged

    @property
    def is_error(self) -> bool:
        return self not in (Status.OK, Status.RISKY)


class LintFinding(Document, frozen=True, kw_only=True):
    """`replacement` is what to write instead, None where nothing is."""

    flag: Annotated[str, Meta(description="As the user spelt it; speculative_config.KEY for a key.")]
    status: Status
    message: str
    replacement: str | None = None
    changed_in: Annotated[str | None, Meta(description="The release that changed it.")] = None
    source: Annotated[str, Meta(description="The engine's file, issue or pull request.")] = ""

    @property
    def is_error(self) -> bool:
        return self.status.is_error


def has_errors(findings: Iterable[LintFinding]) -> bool:
    return any(finding.is_error for finding in findings)


def dotted(release: Release) -> str:
    """0.8.3; b11549 for llama.cpp's builds."""
    if len(release) == 1:
        return f"b{release[0]}"
    return ".".join(str(part) for part in release)


# Longer than any name; to compare one of half a million characters with all of them takes minutes.
NAME_MAX = 100


def nearest(name: str, known: Iterable[str]) -> str | None:
    if len(name) > NAME_MAX:
        return None
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return found[0] if found else None


# Rows and tables of them


class ValueKind(StrEnum):
    """The shape that a value must have."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    TEXT = "text"
    CHOICE = "choice"
    RATES = "rates"
    LIST = "list"
    RANGES = "ranges"
    OBJECT = "object"
    INTERNAL = "internal"
    SWITCH = "switch"
    # Of metrics: how they are exported.
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"

    @property
    def words(self) -> str:
        return _IN_WORDS[self]


_IN_WORDS = {
    ValueKind.INT: "a whole number",
    ValueKind.FLOAT: "a number",
    ValueKind.BOOL: "true or false",
    ValueKind.TEXT: "a text",
    ValueKind.CHOICE: "one of a list",
    ValueKind.RATES: "a list of numbers",
    ValueKind.LIST: "one or more values",
    ValueKind.RANGES: "a list of [first batch size, last batch size, k]",
    ValueKind.OBJECT: "an object",
    ValueKind.INTERNAL: "set by the engine itself",
    ValueKind.SWITCH: "no value",
    ValueKind.COUNTER: "a counter",
    ValueKind.GAUGE: "a gauge",
    ValueKind.HISTOGRAM: "a histogram",
}


class Life(Enum):
    """A name's state in one release."""

    COMING = auto()
    THERE = auto()
    DEAD = auto()  # accepted, and read by nothing
    GONE = auto()


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`since` is the first release with it, `gone` the first without it again; None while it lasts."""

    name: str
    kind: ValueKind
    since: Release
    gone: Release | None = None
    source: str = ""  # the table's where it is empty
    earlier: tuple[tuple[Release, Release], ...] = ()  # lifetimes before it went and came back
    aliases: tuple[str, ...] = ()
    choices: tuple[Row, ...] = ()
    low: float | None = None
    high: float | None = None
    dead_since: Release | None = None
    renamed_to: str | None = None
    renamed_in: Release | None = None  # both names are taken from here on
    replacement: str | None = None
    note: str = ""  # what became of it, or what to know about it
    warning: str = ""  # accepted, and likely not what was meant
    value_since: Release | None = None  # a switch before, a value after it from this release on
    key: str | None = None  # of the table's config flag, which carries this flag's value today
    methods: tuple[str, ...] = ()  # that read a key; empty: every method
    needs_model: bool = False
    program: str = ""  # where only one of an engine's programs has it
    today: str | None = None  # the name to write, where this older one is taken all the same

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    def life(self, release: Release) -> Life:
        if self.since <= release and (self.gone is None or release < self.gone):
            is_dead = self.dead_since is not None and release >= self.dead_since
            return Life.DEAD if is_dead else Life.THERE
        if any(since <= release < gone for since, gone in self.earlier):
            return Life.THERE
        return Life.GONE if self.gone_by(release) else Life.COMING

    def holds(self, release: Release) -> bool:
        return self.life(release) in (Life.THERE, Life.DEAD)

    def is_renamed(self, release: Release) -> bool:
        """True if this name is taken for another one."""
        return self.renamed_to is not None and self.renamed_in is not None and release >= self.renamed_in

    def comes_after(self, release: Release) -> Release | None:
        """The next release that has it, where this one is older."""
        return next((since for since, _ in (*self.earlier, (self.since, None)) if since > release), None)

    def gone_by(self, release: Release) -> Release | None:
        """When it went last, seen from this release."""
        ends = [gone for _, gone in (*self.earlier, (self.since, self.gone)) if gone and gone <= release]
        return max(ends, default=None)

    def choices_at(self, release: Release) -> list[str]:
        return [choice.name for choice in self.choices if choice.holds(release)]


class NameTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by every name they go by, with the words in which this engine's findings speak of them."""

    engine: str
    thing: str
    rows: Mapping[str, Row]
    gone_since: str = "removed in"
    dead_since: str = "accepted, but has no effect since"
    is_typed: bool = False  # values are objects, not the text of a command line
    source: str = ""  # where a name would stand that is in no row
    config_flag: str = ""  # takes the keys that carry the values of rows with a key
    newest: Release = ()  # that was looked at
    groups: Mapping[str, str] = {}  # names that belong together

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __getitem__(self, name: str) -> Row:
        return self.rows[name]

    def __iter__(self) -> Iterator[Row]:
        return iter(dict.fromkeys(self.rows.values()))

    def find(self, name: str) -> Row | None:
        return self.rows.get(name)

    def holds(self, name: str, release: Release) -> bool:
        return name in self.rows and self.rows[name].holds(release)

    def names_at(self, release: Release) -> tuple[str, ...]:
        """The names that a user may write."""
        return tuple(
            name
            for name, row in self.rows.items()
            if row.kind is not ValueKind.INTERNAL and row.holds(release)
        )


def by_name(rows: Iterable[Row], *, source: str) -> dict[str, Row]:
    """The rows of a table by every name; a row without a source of its own gets this one."""
    named: dict[str, Row] = {}
    for row in rows:
        for name in row.names:
            if name in named:
                raise ValueError(f"{name} has two rows")
            named[name] = row if row.source else msgspec.structs.replace(row, source=source)
    return named


# A file of facts: tables, each with what is true of all its rows, then the rows.


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table as the file has it. `row`: fields by name. `alike`: rows that share fields, with `names` by lifetime.
    `listed`: by lifetime, then by kind, the names of rows that have nothing else."""

    thing: str
    source: str
    gone_since: str = "removed in"
    dead_since: str = "accepted, but has no effect since"
    is_typed: bool = False
    config_flag: str = ""
    prefix: str = ""  # of the names in `listed`
    listed_source: str = ""
    short: dict[str, str] = {}  # another name for one in `listed`, by that
    newest: str = "0"
    groups: dict[str, str] = {}  # names that belong together, under a name of their own
    row: dict[str, dict[str, object]] = {}
    alike: tuple[dict[str, object], ...] = ()
    listed: dict[str, dict[str, str]] = {}


def tables_of(document: Mapping[str, object], *, engine: str, where: str) -> dict[str, NameTable]:
    """The tables of one file by name. ValueError, with the place, for anything that is not a fact's."""
    tables = {}
    for name, value in document.items():
        place = f"{where}: {name}"
        section = _converted(value, _Section, place)
        tables[name] = NameTable(
            engine=engine,
            thing=section.thing,
            rows=by_name(_rows(section, place), source=section.source),
            gone_since=section.gone_since,
            dead_since=section.dead_since,
            is_typed=section.is_typed,
            source=section.source,
            config_flag=section.config_flag,
            newest=tuple(_release(section.newest, place)),
            groups=section.groups,
        )
    return tables


def _rows(section: _Section, place: str) -> Iterator[Row]:
    for name, fields in section.row.items():
        yield from _row(name, fields, section, f"{place}.row.{name}")
    for index, shared in enumerate(section.alike):
        here = f"{place}.alike[{index}]"
        by_lifetime = _converted(shared.get("names"), dict[str, str], f"{here}.names")
        fields = {key: value for key, value in shared.items() if key != "names"}
        for lifetime, names in by_lifetime.items():
            for name in names.split():
                yield from _row(name, {**fields, **_lifetime(lifetime, here)}, section, here)
    for lifetime, by_kind in section.listed.items():
        here = f"{place}.listed.{lifetime}"
        for kind, names in by_kind.items():
            program, _, plain = kind.rpartition("-")
            fields = {"kind": plain, "program": program, **_lifetime(lifetime, here)}
            for name in names.split():
                aliases = [section.short[name]] if name in section.short else []
                own = {**fields, "aliases": aliases, "source": section.listed_source}
                yield from _row(f"{section.prefix}{name}", own, section, here)


def _row(name: str, fields: Mapping[str, object], section: _Section, place: str) -> Iterator[Row]:
    """The row, and one for each of its `old` names, which stay accepted."""
    own = dict(fields)
    old = _converted(own.pop("old", {}), dict[str, str], f"{place}.old")
    for key in ("since", "gone", "dead_since", "renamed_in", "value_since"):
        if key in own:
            own[key] = _release(own[key], place)
    own["earlier"] = [tuple(_lifetime(each, place).values()) for each in _texts(own, "earlier", place)]
    own["choices"] = list(_choices(own, place))
    named = _texts(own, "methods", place)
    own["methods"] = [method for each in named for method in section.groups.get(each, each).split()]
    row = _converted({**own, "name": name}, Row, place)
    yield row
    for lifetime, names in old.items():
        for each in names.split():
            fields = {"kind": row.kind, "today": name, "note": f"today's name is {name}"}
            yield from _row(each, {**fields, **_lifetime(lifetime, place)}, section, place)


def _texts(fields: Mapping[str, object], key: str, place: str) -> list[str]:
    return _converted(fields.get(key, []), list[str], f"{place}.{key}")


def _choices(fields: Mapping[str, object], place: str) -> Iterator[dict[str, object]]:
    """A list, which is as old as the flag, or names by lifetime."""
    choices = fields.get("choices", {})
    here = f"{place}.choices"
    if isinstance(choices, list):
        for name in _converted(choices, list[str], here):
            yield {"name": name, "kind": "text", "since": fields["since"]}
        return
    for lifetime, names in _converted(choices, dict[str, str], here).items():
        for name in names.split():
            yield {"name": name, "kind": "text", **_lifetime(lifetime, here)}


def _lifetime(text: str, place: str) -> dict[str, object]:
    """`0.8.2` or `0.8.2-0.10.0`, the first release without it."""
    since, _, gone = text.partition("-")
    found: dict[str, object] = {"since": _release(since, place)}
    return {**found, "gone": _release(gone, place)} if gone else found


def _release(text: object, place: str) -> list[int]:
    if isinstance(text, list):
        return text
    parts = str(text).split(".")
    if not isinstance(text, str) or not all(part.isdecimal() for part in parts):
        raise ValueError(f'{place}: {text!r} is no release; write it as "0.24.0" or "9131"')
    return [int(part) for part in parts]


Shape = TypeVar("Shape")


def _converted(value: object, shape: type[Shape], place: str) -> Shape:
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise ValueError(f"{place}: {error}") from error
