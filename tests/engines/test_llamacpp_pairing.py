from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.engines.llamacpp.pairing import (
    FIRST_COMPARED_ID,
    SIZE_DIFFERENCE_MAX,
    compare_vocabularies,
)
from speclift.planner.tokens import Vocabulary


def _vocabulary(size: int = 40) -> Vocabulary:
    return Vocabulary(
        tokens=tuple(f"t{number}" for number in range(size)),
        type="bpe",
        bos_id=1,
        eos_id=2,
        add_bos=False,
        add_eos=False,
    )


def _with_token(vocabulary: Vocabulary, token_id: int, text: str | bytes) -> Vocabulary:
    tokens = list(vocabulary.tokens)
    tokens[token_id] = text
    return replace(vocabulary, tokens=tuple(tokens))


vocabularies = st.builds(
    Vocabulary,
    tokens=st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=60).map(tuple),
    type=st.sampled_from(["bpe", "spm", "ugm"]),
    bos_id=st.none() | st.integers(0, 60),
    eos_id=st.none() | st.integers(0, 60),
    add_bos=st.booleans(),
    add_eos=st.booleans(),
)


@given(vocabularies.filter(lambda v: len(v.tokens) > FIRST_COMPARED_ID), st.data())
def test_one_changed_token_from_id_5_on_is_enough_to_refuse(
    vocabulary: Vocabulary, data: st.DataObject
) -> None:
    token_id = data.draw(st.integers(FIRST_COMPARED_ID, len(vocabulary.tokens) - 1))
    draft = _with_token(vocabulary, token_id, "a text longer than any drawn")

    report = compare_vocabularies(vocabulary, draft)

    assert not report.compatible
    assert report.differing_count == 1
    assert [difference.token_id for difference in report.differences] == [token_id]


@given(vocabularies, st.lists(st.text(max_size=3), min_size=1, max_size=SIZE_DIFFERENCE_MAX), st.booleans())
def test_up_to_128_tokens_at_the_end_of_either_side_are_padding(
    vocabulary: Vocabulary, padding: list[str], is_target_larger: bool
) -> None:
    larger = replace(vocabulary, tokens=(*vocabulary.tokens, *padding))
    target, draft = (larger, vocabulary) if is_target_larger else (vocabulary, larger)

    report = compare_vocabularies(target, draft)

    assert report.compatible
    assert report.padding_only
    assert report.size_difference == len(padding)
    assert f"only the {'target' if is_target_larger else 'draft'} has at its end" in report.message


@pytest.mark.parametrize(
    ("target_changes", "draft_changes", "reason"),
    [
        ({"type": "bpe"}, {"type": "spm"}, "the vocabulary types differ (target bpe, draft spm)"),
        ({"add_bos": True}, {}, "the target adds the BOS token, the draft does not"),
        ({}, {"add_eos": True}, "the draft adds the EOS token, the target does not"),
        (
            {"add_bos": True, "bos_id": 1},
            {"add_bos": True, "bos_id": 7},
            "the BOS token ids differ (target 1, draft 7)",
        ),
        (
            {"add_eos": True, "eos_id": 2},
            {"add_eos": True, "eos_id": None},
            "the EOS token ids differ (target 2, draft None)",
        ),
    ],
)
def test_a_broken_rule_about_type_or_special_tokens_is_the_reason_given(
    target_changes: dict[str, object], draft_changes: dict[str, object], reason: str
) -> None:
    target = replace(_vocabulary(), **target_changes)  # type: ignore[arg-type]
    draft = replace(_vocabulary(), **draft_changes)  # type: ignore[arg-type]

    report = compare_vocabularies(target, draft)

    assert not report.compatible
    assert not report.padding_only
    assert report.message == f"The draft cannot be used with this target: {reason}."
