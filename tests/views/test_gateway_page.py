"""The gateway's page and its JSON, in every state."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway_samples import (
    BOARDS,
    HOSTILE,
    POOLS,
    hostile,
    untouched,
)
from speclift.core.document import plain, read
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
