"""The gateway's page and its JSON, in every state."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway_samples import (
    BOARDS,
    HOSTILE,
    POOLS,
    all_down,
    board_of,
    calm,
    hostile,
    paying,
    unmeasured,
    untouched,
)
from routed import routed
from speclift.core.document import plain, read
from speclift.core.routing import RequestEnd, ServerPool
from speclift.views.gateway_page import (
    GatewayBoard,
    GatewayDocument,
    gateway_document,
    gateway_page,
    gateway_tone,
)
from watch_samples import FRAME


def page_of(board: GatewayBoard) -> str:
    return gateway_page(gateway_document(board), FRAME, up_s=7200.0)


@pytest.mark.parametrize("name", BOARDS)
def test_every_state_is_a_document_of_its_type(name: str) -> None:
    document = gateway_document(BOARDS[name]())
    assert read(GatewayDocument, json.loads(json.dumps(plain(document)))) == document


@pytest.mark.parametrize(
    ("name", "tone", "sentence"),
    [
        ("calm", "unsure", "49% of requests went to the speculative pool."),
        ("paying", "pays", "49% of requests went to the speculative pool."),
        ("unmeasured", "unsure", "49% of requests went to the speculative pool."),
        ("untouched", "no-traffic", "No request was answered yet."),
        ("switched", "does-not-pay", "Everything goes to plain: the switch is on."),
        ("held_back", "does-not-pay", "Everything goes to plain: speculation does not pay at present."),
        ("all_down", "unreachable", "No server answers."),
    ],
)
def test_the_answer_stands_first(name: str, tone: str, sentence: str) -> None:
    document = gateway_document(BOARDS[name]())
    assert (gateway_tone(document), document.answer.sentence) == (tone, sentence)
    page = page_of(BOARDS[name]())
    assert f'<div class="banner {tone}">\n<p class="sentence">{sentence}</p>' in page


def test_it_says_what_is_gained_the_surest_first() -> None:
    because = list(gateway_document(calm()).answer.because)
    assert because == [
        "rewrite: spec is faster end to end, 1.42x [1.35, 1.50] on live traffic",
        "chat: spec is slower end to end, 0.90x [0.82, 0.98] on live traffic",
    ]
    assert gateway_document(unmeasured()).answer.because[0].endswith("(--canary 5%)")
    undecided = replace(paying(), segments=())
    assert gateway_document(undecided).answer.because == (
        "On live traffic no segment is shown faster or slower yet",
    )


def test_segments_and_pools_have_their_rows() -> None:
    cut = routed(segment="chat", pool=ServerPool.PLAIN, end=RequestEnd.CUT)
    document = gateway_document(board_of(routed(), routed(e2e_s=3.0), cut))
    spec, plain = document.by_pool
    assert (spec.segment, spec.pool, spec.requests, spec.failed) == ("chat", "spec", 2, 0)
    assert (spec.acceptance_rate, spec.e2e_s.p50) == (0.75, 2.0)
    assert (plain.requests, plain.failed, plain.e2e_s.p50) == (1, 1, None)
    assert document.servers[0].requests == 2


def test_the_newest_shift_stands_first() -> None:
    assert [shift.segment for shift in gateway_document(calm()).shifts] == ["rewrite", "chat"]


def test_what_callers_and_servers_say_is_text() -> None:
    page = page_of(hostile())
    assert HOSTILE not in page
    assert "<script>alert" not in page
    assert page.count("<script") == 1


def test_addresses_are_shown_without_their_secrets() -> None:
    state = replace(POOLS.spec[0], url="http://user:hunter2@host:1/?key=abcd")
    board = replace(untouched(), pools=replace(POOLS, spec=(state,)))
    text = json.dumps(plain(gateway_document(board))) + page_of(board)
    assert "hunter2" not in text
    assert "abcd" not in text


def test_a_gateway_whose_servers_are_gone_still_shows_what_was() -> None:
    assert "Latency, by segment and pool" in page_of(all_down())


def test_a_unit_that_two_times_share_is_said_once() -> None:
    assert "<td>1.90 / 4.84 s</td>" in page_of(calm())


def test_before_anything_is_compared_it_says_when_that_is() -> None:
    assert "every 10 minutes or 2,000 requests" in page_of(untouched())
