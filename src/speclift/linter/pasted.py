"""A pasted command, whatever its form: a program, its settings in order, what stands around and in them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The part of one PromQL expression that is an engine's. `fails` says what becomes of `asked_by` if nothing
    answers; `has_or`: one side may stand in for another."""

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
    """A command as an engine's dialect understands it."""

    model: str | None
    speculation: Speculation = field(default_factory=Off)
    # What the flags say of the server, under the names of ServerSettings.
    settings: Mapping[str, object] = field(default_factory=dict)
    # The share of the GPU's memory that it may use.
    utilisation: float | None = None
    # The engine loads the model from its hub by itself.
    is_on_hub: bool = False


# JSON from a stranger: as deep as a config may be, and every refusal a ValueError


# Code points that are no characters and stand in no text.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKED = re.compile(r'"\\ufdd0(.*?)\\ufdd1"')
# A serving config has three levels; what walks through it may be recursive.
DEEPEST = 50


def parse_json(text: str) -> object:
    try:
        value: object = json.loads(text, object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[object] = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def looks_like_config(text: str) -> bool:
    """True if it begins as JSON or YAML does."""
    first = next(
        (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), ""
    )
    return text.lstrip().startswith(("{", "[", "---")) or ":" in first


def config_json(value: object, *, separators: tuple[str, str] = (", ", ": ")) -> str:
    """JSON in which a shell's number is none of our texts: {"k": $K}."""
    dumped = json.dumps(value, separators=separators, default=_marked)
    return _MARKED.sub(lambda match: str(json.loads(f'"{match[1]}"')), dumped)


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A key given twice is one value too many: readers take the last one and say nothing."""
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None) if len(set(keys)) < len(keys) else None
    if twice is not None:
        raise ValueError(f"it has the key {twice!r} twice")
    return dict(pairs)


def _marked(value: object) -> str:
    return f"{_OPEN}{value.text}{_CLOSE}" if isinstance(value, ShellExpression) else str(value)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


# What stands where a value should be


_PLACEHOLDER = re.compile(
    r"<[A-Za-z][^<>]*>"
    r"|(?:^|(?<=[\s\"'/=:]))(?:\.\.\.|…)(?=$|[\s\"'/,\]}])"
    r"|^\{\{?\s*[A-Za-z.][\w. -]*\}?\}$"
    r"|^\[[A-Z][A-Z_ -]*\]$"
    r"|(?:^|(?<=[\s\"'/=:]))(?:your|YOUR|Your)[-_ ]\w[\w.-]*"
)
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*|[0-9@*#?!-])(:?[-+=])?")
_ARITHMETIC = re.compile(r"\$\(\((.*)\)\)\Z", re.DOTALL)
_PLAIN_NAME = re.compile(r"(?<![\w$])[A-Za-z_]\w*")
# What is set on most machines, or is a secret that belongs in no script.
_AMBIENT = re.compile(
    r"HOME|PWD|USER|UID|HOSTNAME|PATH|TMPDIR|LD_LIBRARY_PATH|HF_HOME|XDG_\w+|\w+_(?:TOKEN|KEY|SECRET|CACHE)|TOKEN"
)
UNSET = "nothing in this text sets it, so no command is written from it"
STANDS_IN = "it stands in for something that is not here: put in what is meant"


def placeholders_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from (match[0] for match in _PLACEHOLDER.finditer(value))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from placeholders_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from placeholders_in(inner)


def expressions_in(name: str, value: object) -> Iterator[tuple[str, Expression]]:
    """Python that stands for a value, with the name of the setting or the key that it is given to."""
    if isinstance(value, Expression):
        if not isinstance(value, ShellExpression):
            yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from expressions_in(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions_in(name, inner)


def unset_names(pieces: Iterable[str], assigned: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Variables of these pieces of shell source that no assignment sets to something that is known, as $NAME."""
    values: dict[str, str] = {}
    unset: dict[str, None] = {}
    for name, value in assigned:
        if not any(_unset_in(value, values)):
            values[name] = value
        else:
            values.pop(name, None)
    for piece in pieces:
        unset.update(dict.fromkeys(_unset_in(piece, values)))
    return tuple(unset)


def _unset_in(source: str, known: Mapping[str, str]) -> Iterator[str]:
    if source.startswith("$'"):
        return
    arithmetic = _ARITHMETIC.match(source)
    if arithmetic is not None:
        bare = (match[0] for match in _PLAIN_NAME.finditer(arithmetic[1]))
        yield from (f"${name}" for name in bare if name not in known and not _AMBIENT.fullmatch(name))
    for match in _NAME.finditer(source):
        has_default = source[match.start() + 1 : match.start() + 2] == "{" and match[2] is not None
        if not has_default and match[1] not in known and not _AMBIENT.fullmatch(match[1]):
            yield f"${match[1]}"
