from __future__ import annotations

import json

import jsonschema

from samples import HOSTILE
from speclift.core.document import plain
from speclift.core.quantities import printable
from speclift.core.routing import RequestFeatures, Route, ServerPool
from speclift.views.gateway_route import explained, route_lines
from speclift.views.schema import published_schema

ROUTE = Route(
    pool=ServerPool.SPEC,
    servers=("http://a", "http://b"),
    segment="copy",
    reasons=("segment copy: temperature_max = 0", "copy goes to spec"),
)
FEATURES = RequestFeatures(
    path="/v1/chat/completions",
    is_generation=True,
    model="m",
    temperature=0.0,
    prompt_characters=120,
    turns=3,
    repetition=0.25,
    response_format="json_object",
    has_tools=True,
    session="secret",
)


def test_the_document_keeps_its_schema_and_says_no_session() -> None:
    for features in (FEATURES, RequestFeatures(path="/v1/models")):
        document = json.loads(json.dumps(plain(explained(features, ROUTE))))
        jsonschema.validate(document, published_schema("gateway-route"))
        assert "secret" not in json.dumps(document)
    assert document["pool"] == "spec"


def test_foreign_text_does_not_act() -> None:
    hostile = RequestFeatures(path=HOSTILE, is_generation=True, model=HOSTILE, response_format=HOSTILE)

    for line in route_lines(explained(hostile, ROUTE, policy=HOSTILE)):
        assert printable(line, limit=2000) == line
