"""The shape of the knowledge: one row per name that an engine takes, with its lifetime and its source. Pure.

A flag, a key, a method, a value, a variable, a metric or a program is a row; a table holds the rows of one engine and
one kind of name. Whether a row is there in a release is asked of the row, nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum, StrEnum, auto

from speclift.linter.findings import Release


class ValueKind(StrEnum):
    """What a value has to look like."""

    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    TEXT = "a text"
    CHOICE = "one of a list"
    RATES = "a list of numbers"
    LIST = "one or more values"
    RANGES = "a list of [first batch size, last batch size, k]"
    OBJECT = "an object"
    INTERNAL = "set by the engine itself"
    SWITCH = "no value"
    # Of metrics: how they are exported.
    COUNTER = "a counter"
    GAUGE = "a gauge"
    HISTOGRAM = "a histogram"


# A table of a hundred rows reads better without the name of the class in each.
INT, FLOAT, BOOL, TEXT, CHOICE = (
    ValueKind.INT,
    ValueKind.FLOAT,
    ValueKind.BOOL,
    ValueKind.TEXT,
    ValueKind.CHOICE,
)
RATES, LIST, RANGES, OBJECT = ValueKind.RATES, ValueKind.LIST, ValueKind.RANGES, ValueKind.OBJECT
INTERNAL, SWITCH = ValueKind.INTERNAL, ValueKind.SWITCH


class Life(Enum):
    """What a release makes of a name."""

    COMING = auto()
    THERE = auto()
    DEAD = auto()  # accepted, and read by nothing
    GONE = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """`since` is the first release with it, `gone` the first without it again; None while it lasts."""

    name: str
    kind: ValueKind
    since: Release
    gone: Release | None = None
    _: KW_ONLY
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
        """Whether this name is taken for another one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTable:
    """Rows by every name they go by, with the words in which this engine's findings speak of them."""

    engine: str
    thing: str
    rows: Mapping[str, Row]
    gone_since: str = "removed in"
    dead_since: str = "accepted, but has no effect since"
    is_typed: bool = False  # values are objects, not the text of a command line
    source: str = ""  # where a name would stand that is in no row
    config_flag: str = ""  # takes the keys that carry the values of rows with a key

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
    """What a table is made of; a row without a source of its own has this one."""
    found: dict[str, Row] = {}
    for row in rows:
        for name in row.names:
            if name in found:
                raise ValueError(f"{name} has two rows")
            found[name] = row if row.source else replace(row, source=source)
    return found


def values(since: Release, *names: str) -> tuple[Row, ...]:
    """Choices that came together and last."""
    return tuple(Row(name, ValueKind.TEXT, since) for name in names)


KINDS = {
    "switch": ValueKind.SWITCH,
    "int": ValueKind.INT,
    "float": ValueKind.FLOAT,
    "value": ValueKind.TEXT,
    "list": ValueKind.LIST,
    "counter": ValueKind.COUNTER,
    "gauge": ValueKind.GAUGE,
    "histogram": ValueKind.HISTOGRAM,
}


def listed(
    table: str, *, prefix: str = "", aliases: Mapping[str, str] | None = None, source: str = ""
) -> Iterator[Row]:
    """Rows from lines of `since gone kind program: names`; `-` while they last, the program where there are several."""
    short = aliases or {}
    for entry in table.strip().replace("\n    ", " ").splitlines():
        head, _, names = entry.partition(":")
        since, gone, kind, *program = head.split()
        for name in names.split():
            yield Row(
                f"{prefix}{name}",
                KINDS[kind],
                _release(since),
                None if gone == "-" else _release(gone),
                aliases=(short[name],) if name in short else (),
                program="".join(program),
                source=source,
            )


def _release(text: str) -> Release:
    return tuple(int(part) for part in text.split("."))
