"""Loops and word salad are seen, ordinary answers are not."""

from __future__ import annotations

import pytest

from speclift.lossless.text_faults import is_garbled, is_looping, text_faults
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
    found = text_faults(texts)
    assert found.garbled == ()
    assert len(found.looping) <= 0.02 * len(texts)
