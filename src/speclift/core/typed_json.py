"""JSON and the TypedDict that describes it: what was read is held against its type once, and typed from there on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Document = TypeVar("Document")

# exp of an unknown bound; JSON has no infinity.
UNKNOWN_FROM = 1e300
SHOWN_CHARACTERS = 60


class Keywords:
    """What else holds of a field, in the words of JSON Schema: `Annotated[int, Keywords(minimum=1)]`."""

    def __init__(self, **keywords: object) -> None:
        self.keywords = keywords


class Field(NamedTuple):
    """One of a TypedDict or a dataclass: its type without `NotRequired`, and whether it may be missing."""

    hint: object
    is_required: bool


def fields_of(kind: object) -> dict[str, Field]:
    """Of a TypedDict or a dataclass. The list of required keys that a TypedDict has cannot see NotRequired in a
    postponed annotation."""
    assert isinstance(kind, type)
    return _fields_of(kind)


@cache
def _fields_of(kind: type) -> dict[str, Field]:
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        found[name] = Field(get_args(hint)[0] if is_optional else hint, not is_optional)
    return found


def is_union(hint: object) -> bool:
    return get_origin(hint) in (Union, UnionType)


def read_as(kind: type[Document], value: object) -> Document:
    """`value`, every field of it held against the TypedDict or dataclass `kind`, with enumerations as their members;
    ValueError names the first that is of another kind. A field that a TypedDict does not have stays as it is, and
    one that a dataclass does not have is left out."""
    return cast(Document, _read(kind, value, "$"))


def _read(hint: object, value: object, at: str) -> object:
    parts = get_args(hint)
    if is_union(hint):
        return _read_one_of(parts, value, at)
    match get_origin(hint):
        case None:
            return _read_plain(hint, value, at)
        case form if form is Annotated:
            return _read(parts[0], value, at)
        case form if form is Literal:
            return _read_word(parts, value, at)
        case form if form is list and isinstance(value, list):
            return [_read(parts[0], entry, f"{at}[{place}]") for place, entry in enumerate(value)]
        case form if form is tuple and isinstance(value, list | tuple):
            return _read_tuple(hint, value, at)
        case form if form in (dict, Mapping) and isinstance(value, dict):
            return {str(key): _read(parts[1], entry, f"{at}.{key}") for key, entry in value.items()}
    raise _unexpected(hint, value, at)


def _read_tuple(hint: object, value: Sequence[object], at: str) -> tuple[object, ...]:
    """Of one kind and any length, or of as many kinds as entries."""
    parts = get_args(hint)
    kinds = [parts[0]] * len(value) if parts[1:] == (...,) else list(parts)
    if len(kinds) != len(value):
        raise _unexpected(hint, value, at)
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_read(kind, entry, f"{at}[{place}]") for place, (kind, entry) in pairs)


def _read_plain(hint: object, value: object, at: str) -> object:
    if is_typeddict(hint):
        return {**_object(hint, value, at), **_read_fields(hint, value, at)}
    if isinstance(hint, type) and is_dataclass(hint):
        return hint(**_read_fields(hint, value, at))
    if not _is_scalar(hint, value):
        raise _unexpected(hint, value, at)
    return hint(value) if isinstance(hint, type) and issubclass(hint, Enum) else value


def _is_scalar(hint: object, value: object) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return any(member.value == value for member in hint)
    is_stray_flag = isinstance(value, bool) and hint is int
    return isinstance(hint, type) and isinstance(value, hint) and not is_stray_flag


def _read_word(words: tuple[object, ...], value: object, at: str) -> object:
    for word in words:
        plain = word.value if isinstance(word, Enum) else word
        if value == plain and isinstance(value, type(plain)):
            return word
    raise ValueError(f"{at}: expected one of {words}, saw {repr(value)[:SHOWN_CHARACTERS]}")


def _read_one_of(hints: tuple[object, ...], value: object, at: str) -> object:
    if value is None and NoneType in hints:
        return None
    faults = []
    for hint in hints:
        try:
            return _read(hint, value, at)
        except ValueError as fault:
            faults.append(fault)
    # The fuller form stands first in a union, and says best what is wrong.
    raise faults[0]


def _object(hint: object, value: object, at: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _unexpected(hint, value, at)
    return value


def _read_fields(hint: object, value: object, at: str) -> dict[str, object]:
    held, read = _object(hint, value, at), {}
    for name, field in fields_of(hint).items():
        if name in held:
            read[name] = _read(field.hint, held[name], f"{at}.{name}")
        elif field.is_required:
            raise ValueError(f"{at}.{name} is missing")
    return read


def _unexpected(hint: object, value: object, at: str) -> ValueError:
    wanted = hint.__name__ if isinstance(hint, type) else str(hint)
    return ValueError(f"{at}: expected {wanted}, saw {repr(value)[:SHOWN_CHARACTERS]}")


def finite(document: Document) -> Document:
    """With null for every number that is none, or beyond all: JSON has no infinity."""
    return cast(Document, _finite(document))


def _finite(value: object) -> object:
    if isinstance(value, float) and (not math.isfinite(value) or abs(value) > UNKNOWN_FROM):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
