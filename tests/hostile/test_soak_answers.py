"""Whatever a server under fire answers, the soak reads it: no text, no JSON and no call makes a detector fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soaked import NONCE, OTHER, asked, said, shown
from speclift.core.records import AnswerChoice, ToolCall
from speclift.lossless.recorded import calls_misfit
from speclift.lossless.soak.faults import HeldAgainst, looked_at
from speclift.lossless.soak.prompts import SoakDialect, answer_schema, session_tools
from speclift.lossless.soak.schemas import misfit
from speclift.lossless.soak.traffic import SoakKind, soak_traffic
from speclift.lossless.soak.values import Promise

TRAFFIC = soak_traffic(seed=2, dialect=SoakDialect.VLLM, banned=((1, "7"),))
REQUESTS = [
    next(TRAFFIC.opening(slot) for slot in range(2000) if TRAFFIC.kind_of(slot) is kind)
    for kind in sorted(TRAFFIC.kinds)
]
TEXTS = st.one_of(
    st.text(),
    st.sampled_from(["", "\ud800", "\x00", "\ufffd" * 9, "<|im_end|>", OTHER, "NaN", "[" * 3000, "{}" * 50]),
    st.builds(lambda piece, count: piece * count, st.text(min_size=1, max_size=9), st.integers(1, 400)),
)
CALLS = st.builds(ToolCall, name=st.one_of(st.just("find_order"), TEXTS), arguments=TEXTS)
CHOICES = st.builds(
    AnswerChoice,
    text=TEXTS,
    finish_reason=st.sampled_from([None, "stop", "length", "tool_calls", "\ud800"]),
    thoughts=TEXTS,
    calls=st.lists(CALLS, max_size=3).map(tuple),
)


@given(
    choices=st.lists(CHOICES, max_size=4).map(tuple),
    tokens=st.one_of(st.none(), st.integers(-5, 10**9)),
    alone=st.lists(CHOICES, max_size=2).map(tuple),
)
def test_no_answer_makes_a_detector_fail(
    choices: tuple[AnswerChoice, ...], tokens: int | None, alone: tuple[AnswerChoice, ...]
) -> None:
    held = HeldAgainst(nonces={NONCE, OTHER}, alone=said(choices=alone))
    answer = said(choices=choices, tokens=tokens)
    for each in REQUESTS:
        looked_at(each, answer, held)


@given(TEXTS)
def test_no_text_makes_a_schema_fail(text: str) -> None:
    schema = json.dumps(answer_schema(NONCE))

    assert misfit(text, schema) != ""
    assert calls_misfit(f"find{text}", {"find": schema}) != ""


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_only_python_reads_are_no_json(word: str) -> None:
    assert misfit(f'{{"a": {word}}}', "{}") != ""


def test_megabytes_that_loop_are_read_in_no_time() -> None:
    """Quadratic work on a million characters would not end within the test's time."""
    request = next(each for each in REQUESTS if each.kind == SoakKind.COPY)
    for piece in ("loop and loop again ", "\ufffd", "{", f"{OTHER} ", "<|im_end|>", "漢字 abc "):
        looked_at(
            request, said(piece * (1_000_000 // len(piece))), HeldAgainst(nonces={OTHER, request.nonce})
        )


def test_a_session_that_calls_ten_thousand_tools_ends() -> None:
    request = asked(promise=Promise(tools=tuple((n, json.dumps(s)) for n, s in session_tools(NONCE))))
    calls = tuple(ToolCall(name="find_order", arguments="{") for _ in range(10_000))

    assert shown(request, said(choices=(AnswerChoice(text="", finish_reason="stop", calls=calls),)))
