"""The published schemas are those of the types that the documents are written with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import pytest

from speclift.core.document import plain, read
from speclift.core.typed_json import Keywords, read_as
from speclift.views.schema import PUBLISHED, published_schema

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schema"
KEPT = ROOT / "tests" / "recorded" / "documents"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(TypedDict):
    """One of
    many."""

    size: float


class Sample(TypedDict):
    schema: Literal[1]
    name: str
    colour: Colour
    word: Literal["a", "b"]
    share: Annotated[float | None, Keywords(maximum=1)]
    inner: Inner
    others: list[Inner]
    perhaps: Inner | None
    counts: dict[str, int]
    free: Mapping[str, object]
    extra: NotRequired[bool]


GOOD: dict[str, Any] = {
    "schema": 1,
    "name": "n",
    "colour": "blue",
    "word": "b",
    "share": None,
    "inner": {"size": 2},
    "others": [{"size": 1.5}],
    "perhaps": None,
    "counts": {"x": 3},
    "free": {"whatever": [1, None]},
}
BAD: list[dict[str, Any]] = [
    {"schema": 2},
    {"name": None},
    {"colour": "green"},
    {"word": "c"},
    {"share": "half"},
    {"inner": {}},
    {"others": [{"size": "large"}]},
    {"perhaps": 1},
    {"counts": {"x": 1.5}},
    {"free": []},
    {"extra": "yes"},
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_file_is_what_the_types_say(name: str) -> None:
    written = json.loads((SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
    assert written == published_schema(name), "make schemas writes it anew"


def test_there_is_no_schema_that_nothing_is_written_by() -> None:
    assert {path.name for path in SCHEMAS.glob("*.json")} == {f"{name}.schema.json" for name in PUBLISHED}


@pytest.mark.parametrize(
    ("document", "schema"),
    [
        ("decide", "verdict"),
        ("tune", "verdict"),
        ("verify", "verify"),
        ("plan", "plan"),
        ("lint", "lint"),
        ("replay", "replay"),
    ],
)
def test_documents_of_earlier_versions_keep_the_schema_and_the_type(document: str, schema: str) -> None:
    kept = json.loads((KEPT / f"{document}.json").read_text("utf-8"))
    jsonschema.validate(kept, published_schema(schema))
    assert kept == _as_in(kept, plain(read(PUBLISHED[schema].document, kept)))


def _as_in(kept: Any, whole: Any) -> Any:
    """Of `whole` the fields that stand in `kept`: those that came later have defaults."""
    if isinstance(kept, dict):
        return {name: _as_in(entry, whole[name]) for name, entry in kept.items()}
    if isinstance(kept, list):
        return [_as_in(entry, whole[place]) for place, entry in enumerate(kept)]
    return whole


@pytest.mark.parametrize("change", BAD, ids=lambda change: next(iter(change)))
def test_what_is_wrong_is_named(change: dict[str, Any]) -> None:
    assert read_as(Sample, GOOD)["colour"] is Colour.BLUE
    (name,) = change
    with pytest.raises(ValueError, match=rf"\$\.{name}"):
        read_as(Sample, {**GOOD, **change})


def test_what_is_missing_and_what_is_no_object_is_named() -> None:
    with pytest.raises(ValueError, match=r"\$\.name is missing"):
        read_as(Sample, {key: value for key, value in GOOD.items() if key != "name"})
    with pytest.raises(ValueError, match="expected Sample, saw \\[\\]"):
        read_as(Sample, [])


def test_a_field_of_a_later_version_stays() -> None:
    assert {**read_as(Sample, {**GOOD, "new": 1})}["new"] == 1
