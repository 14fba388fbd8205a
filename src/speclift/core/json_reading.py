"""What stands in JSON, made into values that have a type. Pure.

What was read is `object` until it was looked at. `as_...` is for what others wrote: anything of another kind is as
good as absent. `need_...` is for what speclift wrote and somebody may have edited: anything of another kind is a
ValueError that shows it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

# What may be written as JSON.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Made = TypeVar("Made")

SHOWN_CHARACTERS = 40


def as_object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def as_objects(value: object) -> list[Mapping[str, object]]:
    """The objects in a list."""
    return [entry for entry in as_list(value) if isinstance(entry, dict)]


def as_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def as_whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def as_number(value: object) -> float | None:
    """A whole number stays one: it may be larger than any float."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def need_object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _unexpected("a JSON object", value)
    return value


def need_list(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise _unexpected("a list", value)
    return value


def need_objects(value: object) -> list[Mapping[str, object]]:
    return [need_object(entry) for entry in need_list(value)]


def need_text(value: object) -> str:
    if not isinstance(value, str):
        raise _unexpected("text", value)
    return value


def need_texts(value: object) -> tuple[str, ...]:
    return tuple(need_text(entry) for entry in need_list(value))


def need_whole(value: object) -> int:
    whole = as_whole(value)
    if whole is None:
        raise _unexpected("a whole number", value)
    return whole


def need_number(value: object) -> float:
    number = as_number(value)
    if number is None or not math.isfinite(number):
        raise _unexpected("a number", value)
    return number


def need_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _unexpected("true or false", value)
    return value


def built(kind: Callable[..., Made], fields: Mapping[str, object]) -> Made:
    """A dataclass from its fields as they were read. Of lists and objects only that they are one is looked at: what
    is in them was built before."""
    allowed = _field_types(kind)
    for name, value in fields.items():
        if name not in allowed:
            raise ValueError(f"{getattr(kind, '__name__', kind)} has no field {name!r}")
        is_stray_bool = isinstance(value, bool) and bool not in allowed[name]
        if is_stray_bool or not isinstance(value, allowed[name]):
            raise _unexpected(" or ".join(sorted(kind.__name__ for kind in allowed[name])), value, name)
    return kind(**fields)


@functools.cache
def _field_types(kind: Callable[..., object]) -> dict[str, tuple[type, ...]]:
    return {name: tuple(_types(hint)) for name, hint in get_type_hints(kind).items()}


def _types(hint: object) -> list[type]:
    """Those whose instances an annotation allows."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return [kind for part in get_args(hint) for kind in _types(part)]
    if origin is Literal:
        return [type(word) for word in get_args(hint)]
    kind = origin or hint
    if not isinstance(kind, type):
        raise TypeError(f"no value can be held against {hint!r}")
    return [int, float] if kind is float else [kind]


def _unexpected(wanted: str, value: object, name: str = "") -> ValueError:
    place = f" in {name}" if name else ""
    return ValueError(f"expected {wanted}{place}, saw {repr(value)[:SHOWN_CHARACTERS]}")
