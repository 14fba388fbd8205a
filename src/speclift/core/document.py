"""Values that are their own JSON documents: read strictly, written plainly, described by their type.

A value is a msgspec Struct or a frozen dataclass whose fields are the document's. Unknown is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

import msgspec

# What may be written as JSON.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
T = TypeVar("T")

# A bound beyond this is the exponential of an unknown one; JSON has no infinity.
UNKNOWN_FROM = 1e300


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The base of values that are written as JSON; fields it does not know are skipped when it is read."""


@runtime_checkable
class ReadsItself(Protocol):
    """A family of values that JSON tells apart by their fields, where msgspec would want a tag."""

    @classmethod
    def from_plain(cls, value: object) -> object: ...

    @classmethod
    def plain_schema(cls) -> dict[str, object]: ...


@overload
def read(kind: type[T], value: object) -> T: ...
@overload
def read(kind: UnionType, value: object) -> Any: ...
def read(kind: Any, value: object) -> Any:
    """`value`, as `json.loads` gave it, as a `kind`; ValueError names the first place that does not fit."""
    return msgspec.convert(value, kind, dec_hook=_read_itself)


@overload
def read_json(kind: type[T], text: str | bytes) -> T: ...
@overload
def read_json(kind: UnionType, text: str | bytes) -> Any: ...
def read_json(kind: Any, text: str | bytes) -> Any:
    """JSON text as a `kind`; ValueError names the first place that does not fit."""
    # The library's own reader, which keeps the lone surrogates that people's prompts hold.
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    return read(kind, value)


def plain(value: object) -> Json:
    """`value` as JSON's own types, with null for every number that is none or beyond all."""
    return _finite(msgspec.to_builtins(value, str_keys=True))


def plain_object(value: object) -> dict[str, Json]:
    """A Struct or dataclass as a JSON object."""
    document = plain(value)
    assert isinstance(document, dict)
    return document


def schema_of(kind: type) -> dict[str, object]:
    """The JSON Schema of `kind`; the types within it stand under $defs, once each."""
    (schema,), definitions = msgspec.json.schema_components((kind,), schema_hook=_own_schema)
    whole = definitions.pop(kind.__name__, schema)
    if definitions:
        whole = {**whole, "$defs": dict(sorted(definitions.items()))}
    return _bare(whole)


def _bare(schema: Mapping[str, object]) -> dict[str, object]:
    """`schema` without titles and defaults, which say nothing of what is written."""
    return {
        key: {name: _bare(part) for name, part in entry.items()}
        if key in ("properties", "$defs") and isinstance(entry, Mapping)
        else _bare_entry(entry)
        for key, entry in schema.items()
        if key not in ("title", "default")
    }


def _bare_entry(entry: object) -> object:
    if isinstance(entry, Mapping):
        return _bare(entry)
    return [_bare_entry(part) for part in entry] if isinstance(entry, list) else entry


def _read_itself(kind: type, value: object) -> object:
    if kind is object:
        return value
    if issubclass(kind, ReadsItself):
        return kind.from_plain(value)
    raise NotImplementedError(f"no value of {kind.__name__} is read from JSON")


def _own_schema(kind: type) -> dict[str, object]:
    if kind is object:
        return {"description": "Any JSON."}
    if issubclass(kind, ReadsItself):
        return kind.plain_schema()
    raise NotImplementedError(f"no schema for {kind.__name__}")


def _finite(value: object) -> Json:
    if isinstance(value, float) and not (math.isfinite(value) and abs(value) <= UNKNOWN_FROM):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value  # type: ignore[return-value]  # to_builtins leaves nothing else
