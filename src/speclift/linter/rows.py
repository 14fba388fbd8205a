"""The shapes of the knowledge tables: one row per flag, key or method, with its lifetime and its source. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from speclift.linter.findings import Release


class FlagKind(StrEnum):
    """What a value has to look like."""

    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    TEXT = "a text"
    CHOICE = "one of a list"
    RATES = "a list of numbers"
    LIST = "one or more values"
    SCHEDULE = "a list of [first batch size, last batch size, k]"
    OBJECT = "an object"
    INTERNAL = "set by the engine itself"
    SWITCH = "no value"


# A choice and the span in which it is one: (value, since, gone).
AllowedValue: TypeAlias = tuple[str, Release, Release | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`since` is the first release with it, `gone` the first without it again; None while it lasts."""

    since: Release
    gone: Release | None = None

    def holds(self, release: Release) -> bool:
        return self.since <= release and (self.gone is None or release < self.gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """One key of vLLM's speculative config."""

    name: str
    span: Span
    kind: FlagKind
    source: str
    low: float | None = None
    high: float | None = None
    choices: tuple[AllowedValue, ...] = ()
    methods: tuple[str, ...] = ()  # that read it; empty: every method
    dead_since: Release | None = None  # accepted from here on, read by nothing
    renamed_to: str | None = None
    replacement: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """One speculative method of vLLM; a method may go and come back."""

    name: str
    spans: tuple[Span, ...]
    source: str
    needs_model: bool = False
    renamed_to: str | None = None
    renamed_in: Release | None = None
    note: str = ""

    def holds(self, release: Release) -> bool:
        return any(span.holds(release) for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagRow:
    """One flag of a server's command line with its aliases."""

    name: str
    span: Span
    kind: FlagKind
    source: str
    aliases: tuple[str, ...] = ()
    choices: tuple[AllowedValue, ...] = ()
    low: float | None = None
    high: float | None = None
    key: str | None = None  # the speculative-config key that carries its value today
    dead_since: Release | None = None
    renamed_to: str | None = None
    replacement: str | None = None
    note: str = ""  # what became of it, or what to know about it
    warning: str = ""  # accepted, and likely not what was meant
    value_since: Release | None = None  # a switch before, a value after it from this release on
    program: str = ""  # where only one of an engine's programs has it

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)
