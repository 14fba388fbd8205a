from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import hostile_text
from speclift.core.quantities import (
    printable,
    printable_lines,
    ratio,
)
from speclift.core.results import Estimate

JOINER = "\u200d"


def hidden(text: str) -> list[str]:
    """Characters that move the cursor, reorder or break the line, or have no glyph of their own."""
    return [
        character
        for character in text
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        and character != JOINER
    ]


class TestPrintable:
    @given(hostile_text)
    def test_nothing_that_steers_a_terminal_comes_through(self, text: str) -> None:
        assert hidden(printable(text)) == []
        assert len(printable(text).splitlines()) <= 1

    @given(hostile_text, st.integers(1, 30))
    def test_a_long_text_is_cut_and_says_so(self, text: str, limit: int) -> None:
        shown = printable(text, limit=limit)

        assert hidden(shown) == []
        if len(text) > limit:
            assert shown.endswith("…")
            assert len(shown) <= limit + 1

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain words, ünïcödé, 漢字, עברית", "plain words, ünïcödé, 漢字, עברית"),
            ("\U0001f469\u200d\U0001f680", "\U0001f469\u200d\U0001f680"),
            ("\x1b[31mred", "\\x1b[31mred"),
            ("\x9b2J", "\\x9b2J"),
            ("a\nb\r\tc\0", "a\\nb\\r\\tc\\x00"),
            ("\u202eevil", "\\u202eevil"),
            ("\u2028", "\\u2028"),
            ("\ud800", "\\ud800"),
            ("[bold]x[/bold]", "[bold]x[/bold]"),
            ("", ""),
        ],
    )
    def test_shows_what_it_hides_as_escapes(self, text: str, shown: str) -> None:
        assert printable(text) == shown

    @given(hostile_text)
    def test_lines_stay_lines_and_nothing_else_comes_through(self, text: str) -> None:
        assert set(hidden(printable_lines(text))) <= {"\n"}


class TestQuantities:
    @pytest.mark.parametrize("high", [math.inf, math.exp(700)])
    def test_an_unbounded_interval_is_a_question_and_not_a_number(self, high: float) -> None:
        assert ratio(Estimate(value=1.4, low=0.0, high=high, n=2, method="t").bounds) == "1.40x (?)"
