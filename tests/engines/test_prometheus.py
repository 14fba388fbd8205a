"""Prometheus text to totals."""

from __future__ import annotations

import pytest

from speclift.core.records import Counters
from speclift.engines.metrics import parse_counters


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("llamacpp:tokens_predicted_total 12\n", {"llamacpp:tokens_predicted_total": 12.0}),
        ("# HELP a Tokens.\n# TYPE a counter\na 1\n", {"a": 1.0}),
        ('a{position="0"} 3\na{position="1"} 2\n', {'a{position="0"}': 3.0, 'a{position="1"}': 2.0}),
        ("a 1.5e3 1700000000000\n", {"a": 1500.0}),
        ("a 1\r\nb 2\r\n", {"a": 1.0, "b": 2.0}),
        ("a NaN\nb +Inf\nc -Inf\nd 4\n", {"d": 4.0}),
        ("a\nb  \n{} 1\n9a 1\n<html>\na one\n", {}),
    ],
    ids=[
        *("nothing", "one sample", "comments", "labels", "a time stamp", "carriage returns"),
        *("values that are no totals", "broken lines"),
    ],
)
def test_samples_are_read_and_everything_else_is_skipped(text: str, values: dict[str, float]) -> None:
    assert parse_counters(text).values == values


def test_only_names_seen_both_times_have_a_difference() -> None:
    before, after = parse_counters("a 1\ngone 5\n"), parse_counters("a 4\nnew 2\n")
    assert after.since(before) == Counters(values={"a": 3.0})
