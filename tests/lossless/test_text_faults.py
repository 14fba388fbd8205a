"""Loops and word salad are seen, ordinary answers are not."""

from __future__ import annotations

import pytest

from speclift.lossless.answers import is_garbled, is_looping
from speclift.studies.prompt_files import bundled_workload

SALAD = (
    "overse spi Rh conversion div door unravelingEnoutheasternried\ufffdrasing conject EX manifold café|'\\ "
    "свет \u4e2d\u6587 taxpayphans neuron MB \ufffd\ufffd suffering th3ll0ims QA "
    "Gothic \u0939\u093f Alfred Comt#eemeteries"
)
LOOP = "I am sorry, I cannot help with that. " * 12
POEM = "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream."


def test_word_salad_is_garbled() -> None:
    assert is_garbled(SALAD)


def test_a_loop_is_a_loop() -> None:
    assert is_looping(LOOP)


@pytest.mark.parametrize("text", ["", "Yes.", POEM, "x = foo_bar[3] + b*2\nprint(x)", "Привет, как дела?"])
def test_ordinary_text_is_neither(text: str) -> None:
    assert not is_garbled(text)
    assert not is_looping(text)


def test_no_bundled_prompt_looks_like_a_fault() -> None:
    texts = [(r.id, m.content) for r in bundled_workload().requests for m in r.messages]
    assert not any(is_garbled(text) for _, text in texts)
    assert sum(is_looping(text) for _, text in texts) <= 0.02 * len(texts)


def words(count: int, start: int = 0) -> str:
    return " ".join(f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(start, start + count))


@pytest.mark.parametrize(
    ("repeats", "others", "loops"),
    [
        pytest.param(7, 8, True, id="25 of 33 runs of four words come round"),
        pytest.param(7, 20, False, id="25 of 45"),
        pytest.param(4, 3, False, id="too few words"),
        pytest.param(5, 0, True, id="as many words as it takes"),
    ],
)
def test_a_loop_is_a_share_of_the_answer(repeats: int, others: int, loops: bool) -> None:
    text = " ".join(["again and once more"] * repeats + [words(others)])
    assert is_looping(text) is loops


def test_the_last_words_count() -> None:
    """Of 18 runs of four words the last eleven are the same; without two of them it would be no loop."""
    assert is_looping(f"{words(7)} {'na ' * 14}")
    assert not is_looping(f"{words(8)} {'na ' * 13}")


@pytest.mark.parametrize(("broken", "garbled"), [(1, False), (2, True)])
def test_bytes_that_are_no_text_are_garbled_where_there_are_no_letters(broken: int, garbled: bool) -> None:
    assert is_garbled("1234567890"[broken:] + "\ufffd" * broken) is garbled


@pytest.mark.parametrize("word", ["x" * 200_000, "a1" + "1" * 200_000, "é" * 200_000 + "#"])
def test_one_endless_word_is_looked_at_once(word: str) -> None:
    """A quadratic look at it would take minutes, with Python's lock held: no deadline and no signal ends that."""
    assert not is_garbled(f"{word} and {word}")


@pytest.mark.parametrize("word", ["th3ll0ims", "Comt#eemeteries", "a=b", "x" * 5_000 + "9y"])
def test_a_word_with_signs_inside_is_broken(word: str) -> None:
    assert is_garbled(" ".join([word] * 3))
