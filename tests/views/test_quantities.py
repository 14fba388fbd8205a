from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import HOSTILE, hostile_text
from speclift.core.quantities import (
    duration,
    number,
    printable,
    printable_lines,
    ratio,
    seconds,
    share,
    size,
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

    def test_can_always_be_written_as_utf8(self) -> None:
        assert printable(HOSTILE, limit=10_000).encode()

    @given(hostile_text)
    def test_lines_stay_lines_and_nothing_else_comes_through(self, text: str) -> None:
        assert set(hidden(printable_lines(text))) <= {"\n"}

    def test_a_flood_of_lines_is_cut(self) -> None:
        assert len(printable_lines("x\n" * 100_000)) <= 2000


class TestQuantities:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (None, "–"),
            (0.0, "0.0 ms"),
            (0.00123, "1.2 ms"),
            (0.25, "250 ms"),
            (1.5, "1.50 s"),
            (75, "1 min 15 s"),
        ],
    )
    def test_seconds(self, value: float | None, shown: str) -> None:
        assert seconds(value) == shown

    @pytest.mark.parametrize(("value", "shown"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (3601, "60 min 01 s")])
    def test_durations(self, value: float, shown: str) -> None:
        assert duration(value) == shown

    @pytest.mark.parametrize(
        ("value", "shown"),
        [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (92e6, "92.0 MB"), (5e12, "5000.0 GB")],
    )
    def test_sizes(self, value: float, shown: str) -> None:
        assert size(value) == shown

    def test_a_ratio_carries_its_interval(self) -> None:
        estimate = Estimate(value=1.42, low=1.361, high=1.489, n=64, method="t")

        assert ratio(estimate.bounds) == "1.42x [1.36, 1.49]"

    @pytest.mark.parametrize("high", [math.inf, math.exp(700)])
    def test_an_unbounded_interval_is_a_question_and_not_a_number(self, high: float) -> None:
        assert ratio(Estimate(value=1.4, low=0.0, high=high, n=2, method="t").bounds) == "1.40x (?)"

    def test_the_unknown_is_a_dash(self) -> None:
        assert (share(None), number(None)) == ("–", "–")
        assert (share(0.416), number(3.14159)) == ("42%", "3.14")
