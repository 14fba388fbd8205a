"""Schemas of users hold more than ours do: what is not read raises no fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.document import Json
from speclift.lossless.soak.prompts import answer_schema
from speclift.lossless.soak.schemas import closed, misfit, misfit_so_far

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
PARCEL = json.dumps(answer_schema("abcd"))
FINE = {"id": "abcd", "colour": "red", "done": True, "sizes": [1, 2, 5]}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"x-a": 1}', '{"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": false}'),
        ("1.0", '{"type": "integer"}'),
        ("null", '{"type": ["string", "null"]}'),
        ('{"a": 1}', '{"$ref": "#/$defs/thing", "$defs": {"thing": {"type": "string"}}}'),
        ('{"a": 1}', '{"anyOf": [{"type": "string"}, {"type": "object"}]}'),
        ('{"a": [1, "x"]}', '{"properties": {"a": {"type": "array", "prefixItems": [{}, {}]}}}'),
        ("true", "{}"),
    ],
)
def test_what_fits_is_not_called_a_misfit(text: str, schema: str) -> None:
    assert misfit(text, schema) == ""


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("1.5", '{"type": "integer"}'),
        ("true", '{"type": "integer"}'),
        ('"1"', '{"type": "number"}'),
        ('{"b": 1}', '{"type": "object", "properties": {"a": {}}, "additionalProperties": false}'),
        ('{"a": 1', "{}"),
    ],
)
def test_what_does_not_fit_is_told(text: str, schema: str) -> None:
    assert misfit(text, schema) != ""


@given(ANYTHING, st.sampled_from([None, 1, 4]), st.booleans(), st.data())
def test_every_beginning_of_json_may_become_json(
    value: Json, indent: int | None, is_ascii: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    end = data.draw(st.integers(0, len(text)))

    assert misfit_so_far(text[:end], "{}") == ""


@pytest.mark.parametrize("indent", [None, 2])
def test_every_beginning_of_what_a_schema_allows_may_become_that(indent: int | None) -> None:
    text = json.dumps(FINE, indent=indent)

    assert [text[:end] for end in range(len(text) + 1) if misfit_so_far(text[:end], PARCEL)] == []


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        ("{", "{}"),
        ('{"id": "ab', "{}"),
        ('{"id": "abcd"', "{}"),
        ('{"id": "abcd",', '{"id": "abcd"}'),
        ('{"a": [1, 2, 3', '{"a": [1, 2]}'),
        ('{"a": [1, 2]', '{"a": [1, 2]}'),
        ('{"a": "[,]}\\"{", "b', '{"a": "[,]}\\"{"}'),
    ],
)
def test_a_beginning_is_closed_behind_its_last_whole_value(text: str, whole: str) -> None:
    assert closed(text) == whole


@pytest.mark.parametrize(
    "text",
    [
        "Here is the parcel: {",
        '{"id" "abcd", "colour',
        '{"id": "abcd"]',
        '{"id": "other", "colour": "r',
        '{"id": "abcd", "colour": "pink", "do',
        '{"id": "abcd", "price": 3, "do',
        '{"id": "abcd", "sizes": [1, 2, 3, 5, 8, 1,',
        '{"id": "abcd", "colour": "red", "done": true, "sizes": [1, 2]} and then',
        "[1, 2",
    ],
)
def test_what_can_become_nothing_that_is_allowed_is_told(text: str) -> None:
    assert misfit_so_far(text, PARCEL) != ""


@given(st.text(alphabet='{}[]",:\\ ab1tn'))
def test_no_text_makes_the_look_at_a_beginning_fail(text: str) -> None:
    assert isinstance(misfit_so_far(text, PARCEL), str)
