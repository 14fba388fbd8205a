"""The published schemas are those of the types that the documents are written with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from speclift.core.document import plain, read
from speclift.views.schema import PUBLISHED, published_schema

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schema"
KEPT = ROOT / "tests" / "recorded" / "documents"


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
