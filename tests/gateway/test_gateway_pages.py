"""What a gateway shows of itself, as its service asks for it."""

from __future__ import annotations

import json

from gateway_samples import POOLS
from routed import routed
from speclift.core.routing import ServerPool
from speclift.http.pages import WebRequest
from speclift.routing.learning import Learner
from speclift.verbs.gateway import GatewayPages

ASKED = WebRequest(path="/", query={}, nonce="n")


def test_page_json_and_metrics_say_the_same() -> None:
    learner = Learner(canary=0.05)
    pages = GatewayPages(
        pools=lambda: POOLS,
        policy=lambda: "mine.toml",
        learner=learner,
        wall_clock=lambda: 1e9,
        clock=lambda: 5.0,
    )
    for _ in range(3):
        learner.note(routed(), now_s=5.0)
        learner.share("chat", ServerPool.SPEC)
        pages.note(routed())
    page, now, metrics = (
        pages.routes()[path](ASKED).body for path in ("/speclift/", "/speclift/api/now", "/metrics")
    )
    document = json.loads(now)
    assert document["requests"] == 3
    assert (document["segments"][0]["spec_share"], document["policy"]) == (0.95, "mine.toml")
    assert b"100% of requests went to the speculative pool" in page
    assert b'speclift_gateway_requests_total{pool="spec",segment="chat",end="ok"} 3' in metrics
    assert b'speclift_gateway_spec_share{segment="chat"} 0.95' in metrics
