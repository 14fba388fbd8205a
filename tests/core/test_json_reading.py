"""Nothing read from JSON is used as something that it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from speclift.core import json_reading
from speclift.core.json_reading import (
    as_list,
    as_number,
    as_object,
    as_objects,
    as_text,
    as_whole,
    built,
    need_flag,
    need_list,
    need_number,
    need_object,
    need_objects,
    need_text,
    need_texts,
    need_whole,
)

ANYTHING: tuple[object, ...] = (None, True, 0, 1.5, "text", [], ["a"], {}, {"a": 1}, float("nan"), 10**400)


@pytest.mark.parametrize(
    ("read", "taken", "nothing"),
    [
        (as_object, [{}, {"a": 1}], {}),
        (as_list, [[], ["a"]], ()),
        (as_text, ["text"], None),
        (as_whole, [0, 10**400], None),
        (as_number, [0, 1.5, float("nan"), 10**400], None),
    ],
)
def test_what_others_wrote_is_that_or_absent(
    read: Callable[[object], object], taken: list[object], nothing: object
) -> None:
    for value in ANYTHING:
        assert repr(read(value)) == repr(value if repr(value) in map(repr, taken) else nothing)


def test_of_a_list_only_the_objects_are_taken() -> None:
    assert as_objects([{"a": 1}, 2, "x", {}]) == [{"a": 1}, {}]
    assert as_objects({"a": 1}) == []


@pytest.mark.parametrize(
    ("read", "taken"),
    [
        (need_object, [{}, {"a": 1}]),
        (need_list, [[], ["a"]]),
        (need_text, ["text"]),
        (need_whole, [0, 10**400]),
        (need_number, [0, 1.5]),
        (need_flag, [True]),
    ],
)
def test_what_we_wrote_is_that_or_an_error(read: Callable[[object], object], taken: list[object]) -> None:
    for value in ANYTHING:
        if repr(value) in map(repr, taken):
            assert read(value) == value
        else:
            with pytest.raises((ValueError, OverflowError), match=r"expected|too large"):
                read(value)


def test_lists_are_read_whole_or_not_at_all() -> None:
    assert need_texts(["a", "b"]) == ("a", "b")
    assert need_objects([{"a": 1}]) == [{"a": 1}]
    with pytest.raises(ValueError, match="expected text, saw 1"):
        need_texts(["a", 1])
    with pytest.raises(ValueError, match="expected a JSON object, saw 'a'"):
        need_objects([{}, "a"])


@dataclass(frozen=True, kw_only=True)
class Shelf:
    name: str
    width: float = 1.0
    boards: int | None = None
    finish: Literal["plain", "oiled"] = "plain"
    labels: tuple[str, ...] = ()


class TestBuilt:
    def test_a_dataclass_from_its_fields(self) -> None:
        fields = {"name": "s", "width": 2, "boards": None, "finish": "oiled", "labels": ("a",)}

        assert built(Shelf, fields) == Shelf(name="s", width=2, finish="oiled", labels=("a",))

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"name": 1}, "expected str in name, saw 1"),
            ({"name": "s", "width": "wide"}, "expected float or int in width"),
            ({"name": "s", "boards": True}, "expected NoneType or int in boards, saw True"),
            ({"name": "s", "labels": ["a"]}, "expected tuple in labels"),
            ({"name": "s", "depth": 1}, "Shelf has no field 'depth'"),
        ],
    )
    def test_never_with_a_value_of_another_kind(self, fields: Mapping[str, object], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            built(Shelf, fields)

    def test_what_is_shown_of_a_strange_value_is_short(self) -> None:
        with pytest.raises(ValueError, match="expected str") as error:
            built(Shelf, {"name": ["x" * 10_000]})

        assert len(str(error.value)) < 40 + json_reading.SHOWN_CHARACTERS
