"""The JSON Schemas under docs/schema, from the types of the documents: one description of each, not two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Annotated, Literal, TypeAlias, get_args, get_origin, is_typeddict

import msgspec

from speclift.core.doctor import Doctor
from speclift.core.document import plain_object
from speclift.core.document import schema_of as document_schema
from speclift.core.live import Watched
from speclift.core.typed_json import Keywords, fields_of, is_union
from speclift.linter.report import LintDocument
from speclift.lossless.document import GateDocument, LosslessDocument
from speclift.planner.plan import Plan
from speclift.replayer.result import ReplayResult
from speclift.routing.policy import Policy
from speclift.verdict.document import ExportDocument, MeasureDocument, VerdictDocument
from speclift.views.gateway_route import ExplainedRoute

Schema: TypeAlias = dict[str, object]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROMISE = "Schema 1. Fields may be added, those here stay. Unknown is null."
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One file under docs/schema: the verbs whose --json it describes, and the type of that document. `title` where
    it is no such document, but a file that people write."""

    verbs: tuple[str, ...]
    document: type
    title: str = ""
    # Of a Struct: fields with defaults are written too, and were from the first version on.
    has_every_field: bool = False
    # But for these, which the first versions had not.
    later: tuple[str, ...] = ()


PUBLISHED = {
    "doctor": Published(verbs=("doctor",), document=Doctor),
    "export": Published(verbs=("export",), document=ExportDocument),
    "gateway-route": Published(verbs=("gateway --dry-run",), document=ExplainedRoute, has_every_field=True),
    "lint": Published(
        verbs=("lint",), document=LintDocument, has_every_field=True, later=("answer", "others")
    ),
    "measure": Published(verbs=("measure",), document=MeasureDocument),
    "plan": Published(verbs=("plan",), document=Plan),
    "policy": Published(verbs=(), document=Policy, title="speclift gateway --policy FILE"),
    "replay": Published(verbs=("replay",), document=ReplayResult),
    "verdict": Published(verbs=("decide", "tune", "compare"), document=VerdictDocument),
    "verify": Published(verbs=("verify",), document=GateDocument),
    "watch": Published(verbs=("watch",), document=Watched, has_every_field=True),
}


def published_schema(name: str) -> Schema:
    published = PUBLISHED[name]
    schema = schema_of(published.document)
    if published.document is VerdictDocument:
        definitions, fields = schema["$defs"], schema["properties"]
        assert isinstance(definitions, dict)
        assert isinstance(fields, dict)
        fields["lossless"] = _schema(LosslessDocument, definitions)
    if published.has_every_field:
        _require_all(schema, but=published.later)
    schema.pop("title", None)
    return {
        "$schema": DIALECT,
        "title": published.title or ", ".join(f"speclift {verb} --json" for verb in published.verbs),
        **schema,
        **({"additionalProperties": False} if published.title else {}),
        "description": f"{'' if published.title else PROMISE} {_words(published.document)}".strip(),
    }


def _require_all(schema: Schema, *, but: tuple[str, ...]) -> None:
    """A document is written whole, so every field of it is there, and of what stands in it."""
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, dict)
    for part in (schema, *definitions.values()):
        if "properties" in part:
            part["required"] = sorted(
                name for name in part["properties"] if part is not schema or name not in but
            )


def schema_of(document: type) -> Schema:
    """Of a TypedDict or a document; those within it, and dataclasses, are under $defs, once each."""
    if issubclass(document, msgspec.Struct):
        return dict(plain_object(document_schema(document)))
    definitions: dict[str, Schema] = {}
    whole = _fields(document, definitions)
    return {**whole, "$defs": dict(sorted(definitions.items()))} if definitions else whole


def _schema(hint: object, definitions: dict[str, Schema]) -> Schema:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema = _schema(parts[0], definitions)
        for more in parts[1:]:
            schema |= more.keywords if isinstance(more, Keywords) else {}
        return schema
    if is_union(hint):
        return _one_of([_schema(part, definitions) for part in parts])
    if origin is Literal:
        words = [word.value if isinstance(word, Enum) else word for word in parts]
        return {"const": words[0]} if len(words) == 1 else {"enum": words}
    if origin is list or (origin is tuple and parts[1:] == (...,)):
        return {"type": "array", "items": _schema(parts[0], definitions)}
    if origin in (dict, Mapping):
        entries = {} if parts[1] is object else {"additionalProperties": _schema(parts[1], definitions)}
        return {"type": "object", **entries}
    return _plain(hint, definitions)


def _plain(hint: object, definitions: dict[str, Schema]) -> Schema:
    if is_typeddict(hint) or is_dataclass(hint):
        return _reference(hint, definitions)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if isinstance(hint, type) and hint in PLAIN:
        return {"type": PLAIN[hint]}
    raise TypeError(f"no schema for {hint!r}")


def _one_of(schemas: list[Schema]) -> Schema:
    """Plain types side by side are one list of types."""
    if all(schema.keys() == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": schemas}


def _reference(hint: object, definitions: dict[str, Schema]) -> Schema:
    assert isinstance(hint, type)
    name = hint.__name__.removesuffix("Document")
    if name not in definitions:
        definitions[name] = {}  # a type that holds itself refers to what is being written
        definitions[name] = _fields(hint, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _fields(hint: object, definitions: dict[str, Schema]) -> Schema:
    known, words = fields_of(hint), _words(hint)
    optional = _with_defaults(hint)
    return {
        "type": "object",
        **({"description": words} if words else {}),
        "properties": {name: _schema(field.hint, definitions) for name, field in known.items()},
        "required": sorted(
            name for name, field in known.items() if field.is_required and name not in optional
        ),
        **({"additionalProperties": False} if is_dataclass(hint) else {}),
    }


def _with_defaults(hint: object) -> set[str]:
    """Of a dataclass, which a file is read into: what need not be said."""
    if not is_dataclass(hint):
        return set()
    return {
        field.name
        for field in fields(hint)
        if field.default is not MISSING or field.default_factory is not MISSING
    }


def _words(hint: object) -> str:
    """What the type says of itself; empty where it says nothing."""
    return " ".join((hint.__doc__ or "").split())
