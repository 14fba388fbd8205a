"""A method, written down again: what --method would have to say."""

from __future__ import annotations

import pytest

from speclift.core.speculation import Attached, DraftModel, NGram, Off, method_text
from speclift.planner.methods import parse_method

METHODS = (
    "ngram",
    "ngram,n=4,k=15",
    "ngram:map-k,k=8,min_hits=2",
    "draft,model=/models/tiny.gguf,k=3,p_min=0.5",
    "draft,model=d,quantization=fp8",
    "ngram,n=4+draft,model=d,k=5",
    "synthetic:draft,model=d,rates=0.8/0.6",
    "suffix,k=9",
    "eagle3,model=head,k=2",
    "mtp",
)


@pytest.mark.parametrize("text", METHODS)
def test_what_it_says_is_read_back_as_the_same_method(text: str) -> None:
    speculation = parse_method(text)
    again = method_text(speculation)
    assert again is not None
    assert parse_method(again) == speculation


@pytest.mark.parametrize(
    "speculation",
    [
        Off(),
        Attached(),
        DraftModel(model="a,b.gguf"),
        DraftModel(model="a+b.gguf"),
        NGram(extra=(("schedule", "[[1, 8, 5]]"),)),
    ],
)
def test_what_the_language_cannot_say_is_not_said(speculation: Off | Attached | DraftModel | NGram) -> None:
    assert method_text(speculation) is None
