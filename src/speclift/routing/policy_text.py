"""A policy as the TOML file that people read and edit, and back; what is wrong in one is said all at once. Pure."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Literal, NotRequired, TypedDict, get_args, get_origin, get_type_hints

from speclift.core.errors import UsageError, unknown_name
from speclift.core.quantities import printable
from speclift.core.routing import ServerPool
from speclift.core.typed_json import is_union
from speclift.core.units import Bytes
from speclift.routing.policy import (
    SCHEMA,
    LoadLimit,
    Policy,
    PolicySegment,
    PolicySource,
    PrefixWorth,
    RepetitionLook,
    faults,
)

# A policy of a thousand segments has less.
FILE_BYTES_MAX: Bytes = 1 << 20
SHOWN_CHARACTERS = 60
HINT = "speclift export STUDY --to gateway writes a policy to begin with"
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class PolicyDocument(TypedDict):
    """A policy of `speclift gateway --policy FILE`, as TOML. Unknown keys are refused; what is not said was not
    measured."""

    schema: Literal[1]
    elsewhere: NotRequired[ServerPool]
    source: NotRequired[PolicySource]
    load: NotRequired[LoadLimit]
    prefix: NotRequired[PrefixWorth]
    repetition: NotRequired[RepetitionLook]
    segment: NotRequired[list[PolicySegment]]


def read_policy(data: bytes, *, name: str) -> Policy:
    """UsageError with every fault, one on each line, where it cannot be read or would make things worse."""
    table = _table(data, name)
    reading = _Reading(faults=[])
    reading.schema(table)
    policy = reading.made(Policy, {key: value for key, value in table.items() if key != "schema"}, "")
    wrong = reading.faults or list(faults(policy) if isinstance(policy, Policy) else ())
    if wrong or not isinstance(policy, Policy):
        raise UsageError("\n".join([f"{name} cannot be followed:", *wrong]), hint=HINT)
    return policy


def _table(data: bytes, name: str) -> Mapping[str, object]:
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{name} is larger than {FILE_BYTES_MAX >> 20} MiB: it is no policy", hint=HINT)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 at byte {error.start}", hint=HINT) from error
    except (ValueError, RecursionError) as error:  # also of a number of thousands of digits
        raise UsageError(f"{name} is not TOML: {printable(str(error))}", hint=HINT) from error


def _key(field: str) -> str:
    """As the file says it: there each segment is a `[[segment]]`."""
    return "segment" if field == "segments" else field


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Tables to values; whatever is wrong is collected on the way, and stands for nothing."""

    faults: list[str]

    def schema(self, table: Mapping[str, object]) -> None:
        if table.get("schema") != SCHEMA or isinstance(table.get("schema"), bool):
            seen = f"saw {_shown(table['schema'])}" if "schema" in table else "it is missing"
            self.faults.append(f"schema = {SCHEMA} is what this speclift reads: {seen}")

    def made(self, kind: type, table: Mapping[str, object], at: str) -> object:
        """None where a field is missing or not what it should be."""
        hints = get_type_hints(kind)
        names = {_key(name): name for name in hints}
        values: dict[str, object] = {}
        before = len(self.faults)
        for key, value in table.items():
            if key in names:
                values[names[key]] = self._value(hints[names[key]], value, f"{at}.{key}" if at else key)
            else:
                nearest = unknown_name(what=f"key of {at or 'a policy'}", seen=printable(key), allowed=names)
                self.faults.append(f"{nearest} ({nearest.hint})")
        for field in fields(kind):
            if (
                field.default is MISSING
                and field.default_factory is MISSING
                and _key(field.name) not in table
            ):
                self.faults.append(f"{at}: {_key(field.name)} is missing")
        return kind(**values) if len(self.faults) == before else None

    def _value(self, hint: object, value: object, at: str) -> object:
        if is_union(hint):
            hint = next(part for part in get_args(hint) if part is not NoneType)
        if get_origin(hint) is tuple:
            return self._list(get_args(hint)[0], value, at)
        assert isinstance(hint, type)
        if is_dataclass(hint):
            if not isinstance(value, dict):
                return self._wrong(at, f"a table: [{at}]", value)
            return self.made(hint, value, at)
        if issubclass(hint, Enum):
            return self._word(hint, value, at)
        return self._plain(hint, value, at)

    def _list(self, hint: object, value: object, at: str) -> object:
        if not isinstance(value, list):
            return self._wrong(at, f"a list of tables: [[{at}]]", value)
        return tuple(self._value(hint, entry, _entry(at, place, entry)) for place, entry in enumerate(value))

    def _word(self, kind: type[Enum], value: object, at: str) -> object:
        words = {str(member.value): member for member in kind}
        if not isinstance(value, str) or value not in words:
            return self._wrong(at, " or ".join(f'"{word}"' for word in words), value)
        return words[value]

    def _plain(self, kind: type, value: object, at: str) -> object:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind is float and isinstance(value, int | float) and is_number and math.isfinite(value):
            return float(value)
        if kind is float or not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            return self._wrong(at, WORDS[kind], value)
        return value

    def _wrong(self, at: str, wanted: str, value: object) -> object:
        self.faults.append(f"{at} takes {wanted}, saw {_shown(value)}")
        return None


def _entry(at: str, place: int, entry: object) -> str:
    """By its name, where it has one: nobody counts tables."""
    name = entry.get("name") if isinstance(entry, dict) else None
    return f"{at} {printable(name, limit=SHOWN_CHARACTERS)!r}" if isinstance(name, str) else f"{at}[{place}]"


def _shown(value: object) -> str:
    return printable(repr(value), limit=SHOWN_CHARACTERS)


def policy_toml(policy: Policy, *, remarks: Mapping[str, Sequence[str]] | None = None) -> str:
    """`remarks` are comments: under "" those at the head, under a segment's name those above it."""
    said = remarks or {}
    blocks = [
        [*_comments(said.get("", ())), f"schema = {SCHEMA}", *_lines("elsewhere", policy.elsewhere)],
        *(
            _named(f"[{name}]", part)
            for name in ("source", "load", "prefix", "repetition")
            if (part := getattr(policy, name)) is not None
        ),
        *(_segment(segment, said.get(segment.name, ())) for segment in policy.segments),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _segment(segment: PolicySegment, remarks: Sequence[str]) -> list[str]:
    head = [*_comments(remarks), *_named("[[segment]]", segment)]
    return [
        line
        for block in (head, *(_named("[[segment.when]]", rule) for rule in segment.when))
        for line in block
    ]


def _named(name: str, part: object) -> list[str]:
    """Without what is as it is where nothing is said."""
    return [name, *_told(part)]


def _told(part: object) -> Iterator[str]:
    assert is_dataclass(part)
    for field in fields(part):
        value = getattr(part, field.name)
        if value is not None and not isinstance(value, tuple):
            yield from _lines(field.name, value)


def _lines(name: str, value: object) -> Iterable[str]:
    yield f"{name} = {_literal(value)}"


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{"".join(_escaped(character) for character in value)}"'
    return repr(value)


def _escaped(character: str) -> str:
    """Whatever could end the text, or act in a terminal that shows the file, as its number."""
    if character in '"\\':
        return f"\\{character}"
    if 0xD800 <= ord(character) <= 0xDFFF:
        return "\N{REPLACEMENT CHARACTER}"  # half of a pair is no character, and has no form in TOML
    if character == " " or (character.isprintable() and not character.isspace()):
        return character
    return f"\\U{ord(character):08X}"


def _comments(lines: Iterable[str]) -> list[str]:
    return [f"# {printable(line)}" for line in lines]
