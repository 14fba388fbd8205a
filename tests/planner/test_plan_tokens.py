from __future__ import annotations

from speclift.engines.llamacpp.pairing import rule_breaks
from speclift.planner.tokens import compare_tokens, identical

TOKENS = ("<s>", "</s>", "a", "b", "c", "d", "e", "f")


def test_equal_tokens_are_the_same() -> None:
    found = compare_tokens(TOKENS, TOKENS)
    assert found.same
    assert not found.padding_only
    assert found == identical(len(TOKENS))


def test_llama_does_not_look_at_the_first_five_ids() -> None:
    found = compare_tokens(TOKENS, ("<bos>", *TOKENS[1:]))
    assert found.differing_count == 1
    assert rule_breaks(found) == ""


def test_sizes_too_far_apart_break_llamas_rule() -> None:
    long = (*TOKENS, *(f"t{number}" for number in range(200)))
    assert "differ by 200 tokens" in rule_breaks(compare_tokens(long, TOKENS))
