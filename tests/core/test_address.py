"""Addresses: what may be shown of them, what is refused, and the way of their secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.address import (
    address_of,
    concealed,
    concealed_within,
    redacted,
)
from speclift.core.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://me:hunter22@h:8000/v1", "http://me:***@h:8000/v1"),
        ("http://me:p@ss@h", "http://me:***@h"),
        ("https://sk-4711@h", "https://***@h"),
        ("https://h/v1?key=abc&token=def", "https://h/v1?key=***&token=***"),
        ("https://h/v1?whatever=abc", "https://h/v1?whatever=***"),
        ("https://h/v1?abc", "https://h/v1?***"),
        ("https://h?api-version=2026-01-01&key=abc", "https://h?api-version=2026-01-01&key=***"),
    ],
)
def test_what_is_shown_of_an_address_has_no_secret(typed: str, shown: str) -> None:
    assert concealed(typed) == shown
    assert redacted(shown) == shown
    assert concealed_within(f"--baseline-url={typed}") == f"--baseline-url={shown}"


@given(st.text())
def test_any_text_is_an_address_or_wrong_usage(text: str) -> None:
    for url in (text, f"http://{text}", f"http://h/{text}"):
        try:
            address_of(concealed(url))
        except UsageError:
            continue
