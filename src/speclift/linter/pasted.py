"""What was pasted, whatever its form: a program, its settings in order, and what stands around them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from speclift.core.speculation import Off, Speculation
from speclift.linter.shell import NOTHING, Expansions


class Form(StrEnum):
    COMMAND = "command"
    PYTHON = "python"
    CONFIG = "config"


@dataclass(frozen=True, slots=True)
class Expression:
    """Python source whose value cannot be known without running it."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ShellExpression(Expression):
    """Shell source that stands for a number or an object: in JSON it stands as it is, elsewhere as a text."""

    def __repr__(self) -> str:
        return repr(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`name` is the flag as the engine's table has it, `spelled` as the user wrote it.

    The value is text on a command line and an object in Python or YAML; None for a flag without one.
    """

    name: str
    spelled: str
    value: object = None
    is_off: bool = False  # --no-x
    is_opaque: bool = False  # only a shell knows the value, or a part of it
    is_one_word: bool = False  # --name=value


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricQuery:
    """What of one PromQL expression is an engine's. `fails` says what becomes of `asked_by` where nothing answers;
    `has_or`: one side may stand in for another."""

    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()  # regular expressions that a whole name has to match
    asked_by: str = ""
    fails: str = ""
    has_or: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedMetrics:
    """Metrics of one engine that a text asks for: in queries, by grep's patterns, or only by their names."""

    queries: tuple[MetricQuery, ...] = ()
    patterns: tuple[str, ...] = ()
    named: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.patterns or self.named or any(each.names or each.patterns for each in self.queries))


NO_METRICS = AskedMetrics()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    engine: str
    form: Form
    settings: tuple[Setting, ...]
    model: str | None = None  # given by place, not by flag
    program: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()  # docker run … image, sudo, nohup
    environment: tuple[tuple[str, str], ...] = ()
    sampling: tuple[Setting, ...] = ()  # of SamplingParams(...)
    metrics: AskedMetrics = NO_METRICS
    notes: tuple[str, ...] = ()
    expansions: Expansions = NOTHING  # what of shell source only a shell would fill in
    exported: frozenset[str] = frozenset()  # variables that commands before this one set
    stray: tuple[str, ...] = ()  # words that no flag takes
    unread: tuple[tuple[str, str], ...] = ()  # what could not be read, and why
    # What stands for something that is not here, and why: no command is written from it.
    missing: tuple[tuple[str, str], ...] = ()

    @property
    def carried(self) -> tuple[str, ...]:
        """Stray words that a shell fills in; they go where they stood, behind everything that is known."""
        return tuple(word for word in self.stray if self.expansions.holds(word))

    def last(self, *names: str) -> object:
        """The value given last under one of these names, as an engine takes it; None where none is."""
        found = [setting for setting in self.settings if setting.name in names]
        return found[-1].value if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenApart:
    """What an engine's dialect makes of a command."""

    model: str | None
    speculation: Speculation = field(default_factory=Off)
    # What the flags say of the server, under the names of ServerSettings.
    settings: Mapping[str, object] = field(default_factory=dict)
    # The share of the GPU's memory that it may use.
    utilisation: float | None = None
    # The engine loads the model from its hub by itself.
    is_on_hub: bool = False
