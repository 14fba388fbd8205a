"""One declaration of a flag, on the field that it fills: the command line, the key in speclift.toml, the argument in
Python and the documentation follow from it. A field is named like its flag, with an s where it holds several values
and with its unit where it has one: `--method` fills `methods`, `--budget` fills `budget_s`.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from keyword import iskeyword
from typing import TypeVar

from speclift.core.errors import UsageError, unknown_name
from speclift.core.units import Bytes, Seconds

Asked = TypeVar("Asked")
Number = TypeVar("Number", int, float)

# Groups of --help, in their order.
COMPARED, ATTACH, TRAFFIC, GOALS, STUDY, SERVER = PANELS = (
    "Configurations to compare",
    "Servers already running (--engine attach)",
    "Traffic",
    "Goals",
    "Study",
    "Server settings, the same for every arm",
)
RANGE_MAX = 1000
# Python turns no more than 4,300 into a number.
DIGITS_MAX = 4000
SWITCH: dict[str, bool | None] = {"auto": None, "on": True, "off": False}
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class Reading:
    """How the text of a flag becomes the value of its field. Without a text the field keeps its default."""

    read: Callable[[str, str], object]  # the text, and the flag for what goes wrong
    entry: type = str  # what one of its values is in a file
    takes_commas: bool = False  # a list in a file
    default: str = ""


@dataclass(frozen=True, slots=True)
class Flag:
    help: str
    panel: str
    metavar: str | None = None
    names: tuple[str, ...] = ()  # where they are not the field's own name
    reading: Reading | None = None
    low: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFlag:
    """A flag with the field that it stands on."""

    field: str
    flag: Flag
    type: object
    default: object  # MISSING where it has to be given

    @property
    def names(self) -> tuple[str, ...]:
        return self.flag.names or (f"--{self.field.replace('_', '-')}",)

    @property
    def key(self) -> str:
        """In speclift.toml, and of the command's parameter, which no word of the language can be."""
        name = self.names[0].removeprefix("--").replace("-", "_")
        return f"{name}_" if iskeyword(name) else name


def declared_flags(asked: type) -> Iterator[DeclaredFlag]:
    """Of this dataclass and of those that its fields hold."""
    for name, part, hint, default in _fields(asked):
        if part is not None:
            yield from declared_flags(part)
            continue
        for flag in getattr(hint, "__metadata__", ()):
            if isinstance(flag, Flag):
                yield DeclaredFlag(field=name, flag=flag, type=typing.get_args(hint)[0], default=default)


def assembled(asked: type[Asked], values: Mapping[str, object]) -> Asked:
    """An instance from flat names, as flags have them: what belongs to a part goes to that part."""
    known = set(_flat_names(asked))
    for name in values:
        if name not in known:
            raise unknown_name(what="setting", seen=name, allowed=sorted(known))
    return _assembled(asked, values)


def flat_values(value: object) -> dict[str, object]:
    """What `assembled` would make the value from, where it has no parts."""
    return {name: getattr(value, name) for name, _part, _hint, _default in _fields(type(value))}


def _assembled(asked: type[Asked], values: Mapping[str, object]) -> Asked:
    given = {}
    for name, part, _hint, _default in _fields(asked):
        if name in values:
            twice = values.keys() & set(_flat_names(part)) if part is not None else ()
            if twice:
                raise UsageError(
                    f"{name} and {', '.join(sorted(twice))} were both given", hint="give one of them"
                )
            given[name] = values[name]
        elif part is not None and not values.keys().isdisjoint(_flat_names(part)):
            given[name] = _assembled(part, values)
    return asked(**given)


def _flat_names(asked: type) -> Iterator[str]:
    for name, part, _hint, _default in _fields(asked):
        yield name
        if part is not None:
            yield from _flat_names(part)


def _fields(asked: type) -> Iterator[tuple[str, type | None, object, object]]:
    """Name, the dataclass it holds if it is one with flags, type and default."""
    hints = _hints(asked)
    for field in fields(asked):
        hint = hints[field.name]
        part = hint if isinstance(hint, type) and is_dataclass(hint) else None
        yield field.name, part, hint, field.default


@cache
def _hints(asked: type) -> dict[str, object]:
    return typing.get_type_hints(asked, include_extras=True)


# Readings


def read_numbers(text: str, kind: Callable[[str], Number], *, flag: str) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{flag} takes numbers with commas, such as 1,4,8; saw {text[:60]!r}") from None


def read_counts(text: str, flag: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, each once."""
    values = read_numbers(text, int, flag=flag)
    for value in values:
        if value < 1:
            raise UsageError(f"{flag} must be at least 1, saw {value}")
    return tuple(dict.fromkeys(values))


def read_words(text: str) -> tuple[str | None, ...]:
    """Names with commas, each once; `none` is the server's own way and comes first."""
    found = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    return tuple(
        sorted((None if word == "none" else word for word in found), key=lambda word: word is not None)
    )


def read_ranges(text: str, flag: str) -> tuple[int, ...]:
    """`1,3,5`, `1..16`, or both."""
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        words = [word.strip() for word in part.split("..")]
        if len(words) > 2 or not all(word.isdecimal() and len(word) <= DIGITS_MAX for word in words):
            raise UsageError(
                f"{flag} takes whole numbers, saw {part[:60]!r}",
                hint=f"for example {flag} 1..8 or {flag} 3,5",
            )
        low, high = int(words[0]), int(words[-1])
        if not low <= high <= low + RANGE_MAX:
            raise UsageError(f"{flag}: {part[:60]!r} is not a range", hint=f"for example {flag} 1..8")
        found += range(low, high + 1)
    if not found:
        raise UsageError(f"{flag} has no number", hint=f"for example {flag} 1..8")
    return tuple(found)


def read_switch(text: str, flag: str) -> bool | None:
    if text not in SWITCH:
        raise unknown_name(what=f"value of {flag}", seen=text, allowed=SWITCH)
    return SWITCH[text]


def read_duration_s(text: str, flag: str) -> Seconds:
    """`90`, `90s`, `250ms`, `10m`, `1.5h` as seconds."""
    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = text, "s"
    for suffix in ("ms", "s", "m", "h"):
        if text.endswith(suffix):
            number, unit = text[: -len(suffix)], suffix
            break
    try:
        value_s = float(number) * units[unit]
    except ValueError:
        value_s = -1.0
    if not 0 < value_s < float("inf"):
        raise UsageError(f"{flag} takes a duration such as 50ms, 10s or 5m, saw {text[:60]!r}")
    return value_s


def read_size_bytes(text: str, flag: str) -> Bytes:
    """256M and 1G are powers of two, as vLLM reads them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    size = 0.0 if match is None else float(match[1]) * _SIZES[match[2]]
    if not 0 < size < float("inf"):
        raise UsageError(f"{flag} takes a size such as 256M or 1G, saw {text[:60]!r}")
    return round(size)


INTEGERS = Reading(lambda text, flag: read_numbers(text, int, flag=flag), int, takes_commas=True)
FLOATS = Reading(lambda text, flag: read_numbers(text, float, flag=flag), float, takes_commas=True)
COUNTS = Reading(read_counts, int, takes_commas=True)
WORDS = Reading(lambda text, _flag: read_words(text), takes_commas=True)
AUTO_ON_OFF = Reading(read_switch, default="auto")
DURATION = Reading(read_duration_s)
SIZE = Reading(read_size_bytes)
