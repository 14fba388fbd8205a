"""Which tokens an answer was drawn as, where llama.cpp does not list all of them."""

from __future__ import annotations

import asyncio

import pytest

from speclift.core.arm import Endpoint
from speclift.engines.llamacpp.scoring import LlamaScorer
from speclift.lossless.answers import Answer

END = 2
# Tokens of the texts below, as /tokenize gives them: the emoji is four tokens, of which the server lists the last.
TEXTS = {"a b": [10, 11], "a 👨 b": [10, 118, 126, 231, 236, 11], "a\ufffd": [10]}


class Listed(LlamaScorer):
    async def _ids(self, text: str, *, add_special: bool = True) -> list[int]:
        return TEXTS[text]


def drawn(text: str, ids: list[int], *, tokens: int | None, finish_reason: str = "length") -> list[int]:
    scorer = Listed(Endpoint(base_url="http://127.0.0.1:1", model="m"), end=END)
    answer = Answer(case="c", text=text, finish_reason=finish_reason, tokens=tokens, ids=tuple(ids))
    return asyncio.run(scorer._drawn(answer))


@pytest.mark.parametrize(
    ("text", "listed", "tokens", "finish_reason", "expected"),
    [
        ("a b", [10, 11], 2, "length", [10, 11]),
        ("a b", [10, 11], None, "stop", [10, 11]),
        ("a b", [10, 11, END], 3, "stop", [10, 11, END]),
        ("a b", [10, 11], 3, "stop", [10, 11, END]),
        ("a 👨 b", [10, 236, 11], 6, "length", TEXTS["a 👨 b"]),
        ("a 👨 b", [10, 236, 11, END], 7, "stop", [*TEXTS["a 👨 b"], END]),
        ("a 👨 b", [10, 236, 11], 7, "stop", [*TEXTS["a 👨 b"], END]),
    ],
    ids=[
        "all listed",
        "not counted",
        "end listed",
        "end not listed",
        "emoji",
        "emoji, end listed",
        "emoji, end not listed",
    ],
)
def test_every_token_is_scored_and_the_end_once(
    text: str, listed: list[int], tokens: int | None, finish_reason: str, expected: list[int]
) -> None:
    assert drawn(text, listed, tokens=tokens, finish_reason=finish_reason) == expected


@pytest.mark.parametrize(
    ("text", "listed", "tokens"),
    [("a 👨 b", [10, 999, 11], 6), ("a\ufffd", [10], 3), ("a 👨 b", [10, 236, 11, END], 5)],
    ids=["another token than the text has", "broken off within a character", "more tokens than counted"],
)
def test_tokens_that_do_not_follow_from_the_text_are_not_guessed(
    text: str, listed: list[int], tokens: int
) -> None:
    assert drawn(text, listed, tokens=tokens, finish_reason="stop") == []
