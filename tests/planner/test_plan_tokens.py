from __future__ import annotations

from speclift.engines.llamacpp.pairing import rule_breaks
from speclift.planner.tokens import compare_tokens, identical

TOKENS = ("<s>", "</s>", "a", "b", "c", "d", "e", "f")


def test_equal_tokens_are_the_same() -> None:
    found = compare_tokens(TOKENS, TOKENS)
    assert found.same
    assert not found.padding_only
    assert found == identical(len(TOKENS))


def test_a_difference_says_which_id_and_which_texts() -> None:
    found = compare_tokens(TOKENS, (*TOKENS[:6], "E", "f"))
    assert not found.same
    assert [(each.token_id, each.target, each.draft) for each in found.differences] == [(6, "e", "E")]
    assert rule_breaks(found) == "1 token texts differ"


def test_llama_does_not_look_at_the_first_five_ids() -> None:
    found = compare_tokens(TOKENS, ("<bos>", *TOKENS[1:]))
    assert found.differing_count == 1
    assert rule_breaks(found) == ""


def test_many_differences_are_counted_and_a_few_shown() -> None:
    found = compare_tokens(tuple("abcdefghijklmnop"), tuple("ABCDEFGHIJKLMNOP"))
    assert found.differing_count == 16
    assert len(found.differences) == 8
    assert rule_breaks(found) == "11 token texts differ"


def test_padding_at_the_end_is_no_difference() -> None:
    found = compare_tokens((*TOKENS, "[PAD8]", "<unused9>", None), TOKENS)
    assert found.padding_only
    assert found.only_target_count == 0


def test_padding_may_be_spelt_in_two_ways() -> None:
    assert compare_tokens((*TOKENS, "[PAD8]"), (*TOKENS, None)).same


def test_true_tokens_that_one_side_lacks_are_counted() -> None:
    found = compare_tokens(TOKENS, (*TOKENS, "<think>"))
    assert found.same
    assert not found.padding_only
    assert found.only_draft_count == 1


def test_equal_sizes_can_hide_other_tokens() -> None:
    found = compare_tokens(TOKENS, tuple(reversed(TOKENS)))
    assert found.target_size == found.draft_size
    assert not found.same


def test_sizes_too_far_apart_break_llamas_rule() -> None:
    long = (*TOKENS, *(f"t{number}" for number in range(200)))
    assert "differ by 200 tokens" in rule_breaks(compare_tokens(long, TOKENS))
