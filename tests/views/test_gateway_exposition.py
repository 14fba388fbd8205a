"""A gateway's metrics, as Prometheus reads them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest

from routed import PLAIN_URL, SPEC_URL, routed
from speclift.core.results import Estimate
from speclift.core.routing import (
    PoolStates,
    RequestEnd,
    RequestFeatures,
    RoutedRequest,
    ServerPool,
    ServerState,
)
from speclift.routing.learning import LiveSegment
from speclift.routing.tallies import Tallies
from speclift.views.exposition import gateway_exposition
from speclift.views.gateway_page import GatewayBoard

POOLS = PoolStates(
    spec=(ServerState(url=SPEC_URL, running=3),), plain=(ServerState(url=PLAIN_URL, is_up=False),)
)

ESTIMATE = Estimate(value=1.3, low=1.2, high=1.4, n=9, method="m")


def metrics_of(*requests: RoutedRequest) -> GatewayBoard:
    tallies = Tallies()
    for request in requests:
        tallies.note(request, now_s=1.0)
    return GatewayBoard(
        version="0.1",
        at_s=2.0,
        since_s=1.0,
        now_s=1.0,
        tallies=tallies,
        pools=POOLS,
        segments=(LiveSegment(segment="chat", spec_share=0.95, e2e=ESTIMATE, compared=9),),
        shift_counts={ServerPool.PLAIN: 1},
    )


def lines_of(*requests: RoutedRequest) -> list[str]:
    return gateway_exposition(metrics_of(*requests)).splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'speclift_gateway_requests_total{pool="spec",segment="chat",end="ok"} 2',
        'speclift_gateway_requests_total{pool="none",segment="chat",end="unanswered"} 1',
        'speclift_gateway_e2e_seconds_bucket{pool="spec",segment="chat",temperature="0",le="0.8"} 0',
        'speclift_gateway_e2e_seconds_bucket{pool="spec",segment="chat",temperature="0",le="1"} 1',
        'speclift_gateway_e2e_seconds_bucket{pool="spec",segment="chat",temperature="0",le="+Inf"} 2',
        'speclift_gateway_e2e_seconds_sum{pool="spec",segment="chat",temperature="0"} 4',
        'speclift_gateway_e2e_seconds_count{pool="spec",segment="chat",temperature="0"} 2',
        'speclift_gateway_drafted_tokens_total{pool="spec",segment="chat",temperature="0"} 80',
        'speclift_gateway_accepted_tokens_total{pool="spec",segment="chat",temperature="0"} 60',
        f'speclift_gateway_server_running{{pool="spec",server="{SPEC_URL}"}} 3',
        f'speclift_gateway_server_up{{pool="plain",server="{PLAIN_URL}"}} 0',
        "speclift_gateway_plain_only 0",
        "speclift_gateway_retries_total 0",
        'speclift_gateway_routes_total{reason="policy"} 3',
        'speclift_gateway_spec_share{segment="chat"} 0.95',
        'speclift_gateway_speedup_low{segment="chat"} 1.2',
        'speclift_gateway_shifts_total{to="plain"} 1',
    ],
)
def test_what_was_counted_stands_there(line: str) -> None:
    unanswered = replace(
        routed(end=RequestEnd.UNANSWERED), pool=None, server=None, drafted=None, accepted=None
    )
    assert line in lines_of(routed(), routed(e2e_s=3.0), unanswered)


def hostile() -> RoutedRequest:
    text = 'a"b\\c\nd\re\x00 🦊 \ud800 {le="1"} # HELP'
    features = RequestFeatures(
        path=text, fields={"authorization": "Bearer sk-1"}, is_generation=True, model=text
    )
    request = replace(
        routed(segment=text, features=features), request_body=b"my diagnosis", answer_text="flu"
    )
    return replace(request, request_id=text, server="http://user:pass@host/?key=abcd")


def test_neither_prompts_nor_keys_stand_there() -> None:
    text = "\n".join(lines_of(hostile()))
    assert all(secret not in text for secret in ("sk-1", "diagnosis", "flu", "pass@", "abcd"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine")
def test_promtool_finds_nothing_wrong() -> None:
    text = gateway_exposition(
        metrics_of(routed(), routed(pool=ServerPool.PLAIN, temperature=None), hostile())
    )
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
