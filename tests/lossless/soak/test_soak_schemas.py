"""Schemas of users hold more than ours do: what is not read raises no fault."""

from __future__ import annotations

import pytest

from speclift.lossless.soak.schemas import misfit


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
