"""The JSON Schemas under docs/schema, from the types of the documents: one description of each, not two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from speclift.core.doctor import Doctor
from speclift.core.document import plain_object, schema_of
from speclift.core.live import Watched
from speclift.linter.report import LintDocument
from speclift.lossless.gate import Gate, Greedy, Sampled
from speclift.planner.plan import Plan
from speclift.replayer.result import ReplayResult
from speclift.routing.policy import Policy
from speclift.verdict.document import ExportDocument, MeasureDocument, VerdictDocument
from speclift.views.gateway_route import ExplainedRoute

Schema: TypeAlias = dict[str, object]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PROMISE = "Schema 1. Fields may be added, those here stay. Unknown is null."

# A part that was not asked said nothing but that, in older versions.
GATE_MAY_LACK = frozenset({"soak", "answer", "why", "mode", "interrupted", "variance", "slack"}) | {
    field.encode_name for part in (Greedy, Sampled) for field in msgspec.structs.fields(part)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One file under docs/schema: the verbs whose --json it describes, and the type of that document. `title` where
    it is no such document, but a file that people write."""

    verbs: tuple[str, ...]
    document: type
    title: str = ""
    # Of a Struct: fields with defaults are written too, and were from the first version on.
    has_every_field: bool = False
    # But for these, which came later or stand where there is something to say.
    later: frozenset[str] = frozenset()


PUBLISHED = {
    "doctor": Published(verbs=("doctor",), document=Doctor),
    "export": Published(verbs=("export",), document=ExportDocument),
    "gateway-route": Published(verbs=("gateway --dry-run",), document=ExplainedRoute, has_every_field=True),
    "lint": Published(
        verbs=("lint",), document=LintDocument, has_every_field=True, later=frozenset({"answer", "others"})
    ),
    "measure": Published(verbs=("measure",), document=MeasureDocument),
    "plan": Published(verbs=("plan",), document=Plan),
    "policy": Published(verbs=(), document=Policy, title="speclift gateway --policy FILE"),
    "replay": Published(verbs=("replay",), document=ReplayResult),
    "verdict": Published(verbs=("decide", "tune", "compare"), document=VerdictDocument),
    "verify": Published(verbs=("verify",), document=Gate, has_every_field=True, later=GATE_MAY_LACK),
    "watch": Published(verbs=("watch",), document=Watched, has_every_field=True),
}


def published_schema(name: str) -> Schema:
    published = PUBLISHED[name]
    schema: Schema = {**plain_object(schema_of(published.document))}
    if published.has_every_field:
        _require_all(schema, later=published.later)
    schema.pop("title", None)
    words = " ".join((published.document.__doc__ or "").split())
    return {
        "$schema": DIALECT,
        "title": published.title or ", ".join(f"speclift {verb} --json" for verb in published.verbs),
        **schema,
        **({"additionalProperties": False} if published.title else {}),
        "description": f"{'' if published.title else PROMISE} {words}".strip(),
    }


def _require_all(schema: Schema, *, later: frozenset[str]) -> None:
    """A document is written whole, so every field of it is there, and of what stands in it."""
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, dict)
    for part in (schema, *definitions.values()):
        if "properties" in part:
            part["required"] = sorted({*part.get("required", ()), *(part["properties"].keys() - later)})
