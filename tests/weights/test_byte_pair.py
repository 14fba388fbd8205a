"""Byte-level BPE on a vocabulary small enough to see through."""

from __future__ import annotations

import pytest

from speclift.weights import byte_pair
from speclift.weights.byte_pair import GGUF_PATTERNS, GPT2_PATTERNS, BytePair

BYTES = {character: index for index, character in enumerate(byte_pair._BYTE_CHARACTERS)}
MERGES = [("l", "o"), ("lo", "w"), ("e", "r"), ("Ġ", "low")]
WORDS = {left + right: 300 + index for index, (left, right) in enumerate(MERGES)}
SPECIAL = {"<|end|>": 400, "<|end|><|end|>": 401}


def tokenizer(**changes: object) -> BytePair:
    settings: dict[str, object] = {
        "vocabulary": BYTES | WORDS,
        "merges": MERGES,
        "patterns": GPT2_PATTERNS,
        "special": SPECIAL,
    }
    return BytePair(**(settings | changes))  # type: ignore[arg-type]


def ids(*texts: str) -> list[int]:
    return [(BYTES | WORDS)[text] for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lower", ids("low", "er")),
        (" low", ids("Ġlow")),
        ("wolo", ids("w", "o", "lo")),
        ("", []),
        ("é", ids("Ã", "©")),
        ("12", ids("1", "2")),
    ],
)
def test_merges_are_applied_in_their_order(text: str, expected: list[int]) -> None:
    assert tokenizer().encode(text, parse_special=False) == expected


def test_special_tokens_are_found_in_prompts_only_the_longest_first() -> None:
    assert tokenizer().encode("low<|end|><|end|>low", parse_special=True) == [*ids("low"), 401, *ids("low")]
    assert 400 not in tokenizer().encode("<|end|>", parse_special=False)


def test_a_lone_surrogate_does_not_stop_it() -> None:
    assert tokenizer().encode("\ud800", parse_special=False)


def test_a_very_long_word_takes_no_quadratic_time() -> None:
    # A minute with the naive rule, which looks at the whole word for every merge.
    assert len(tokenizer().encode("low" * 40_000, parse_special=False)) == 40_000


class TestPatterns:
    @pytest.mark.parametrize(
        ("pre", "text", "words"),
        [
            ("gpt-2", "it's 12  x", ["it", "'s", " 12", " ", " x"]),
            ("smollm", "a 12b", ["a", " ", "1", "2", "b"]),
            ("llama-bpe", "I'LL pay 12345!\n\nnow", ["I", "'LL", " pay", " ", "123", "45", "!\n\n", "now"]),
            ("qwen2", "x=12", ["x", "=", "1", "2"]),
            ("gpt-2", "½²é", ["½²", "é"]),
        ],
    )
    def test_text_is_cut_as_the_family_does_it(self, pre: str, text: str, words: list[str]) -> None:
        assert list(tokenizer(patterns=GGUF_PATTERNS[pre])._words(text)) == words
