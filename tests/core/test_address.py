"""Addresses: what may be shown of them, what is refused, and the way of their secrets."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.address import (
    address_of,
    base_of,
    concealed,
    concealed_within,
    joined,
    redacted,
    usable_key,
    without_secrets,
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


def test_whoever_connects_has_the_secret_back_at_every_page() -> None:
    shown = concealed("http://me:p%40ss@h:81/api/v1?key=a%20b&format=text")
    address = address_of(joined(base_of(shown), "/v1/models"))
    assert address.target() == "/api/v1/models?key=a%20b&format=text"
    assert address.authorization == f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    assert (address.host_field, address.has_secret) == ("h:81", True)


def test_addresses_that_differ_in_path_and_secret_alone_keep_their_own() -> None:
    plain, drafting = concealed("http://h/plain/v1?key=abcd"), concealed("http://h/plain/too?key=efgh")
    assert address_of(joined(base_of(plain), "/v1/models")).query == "key=abcd"
    assert address_of(joined(base_of(drafting), "/v1/models")).query == "key=efgh"


def test_a_secret_that_nobody_gave_is_asked_for() -> None:
    with pytest.raises(UsageError, match="is unknown: a study stores no secrets") as caught:
        address_of("http://nobody:***@never-seen/v1/models")
    assert "--resume" in caught.value.hint


def test_a_server_that_repeats_a_secret_does_not_get_it_shown() -> None:
    concealed("http://h/v1?key=very%20secret-4711")
    said = without_secrets("no such key: very secret-4711 (very%20secret-4711)")
    assert "4711" not in said


ODD = [
    "",
    "foo",
    "127.0.0.1:8000",
    "localhost:8000",
    "//h",
    "http:",
    "http://",
    "http://:80",
    "http:///v1",
    "ftp://h",
    "http://[::1",
    "http://h:port",
    "http://h:0",
    "http://h:65536",
    "http://h:-1",
    "http://h:８０",
    "http://a..b",
    f"http://{'a' * 64}.org",
    "http://h /v1",
    "http://h\r\nX: 1",
    "http://h/v1\x00",
    "http://h/#x",
    "http://h/caf\u00e9",
]


@pytest.mark.parametrize("url", ODD)
def test_what_is_no_address_is_wrong_usage_and_says_which_flag(url: str) -> None:
    with pytest.raises(UsageError, match="--spec-url is not a server's address") as caught:
        concealed(url, what="--spec-url")
    assert caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter/22@h",
        "http://me:hunter?22@h",
        "http://me:hunter#22@h",
        "http://me:12/hunter@h",
        "http://me:hunter22@h:port",
        "http://me:hunter22\r@h",
        "http://me:hunter22@[::1",
        "me:hunter22@h:8000",
        "http://h:x?key=hunter22",
    ],
)
def test_an_address_that_is_refused_keeps_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        concealed(url)
    assert "hunter" not in f"{caught.value} {caught.value.hint}"


@given(st.text())
def test_any_text_is_an_address_or_wrong_usage(text: str) -> None:
    for url in (text, f"http://{text}", f"http://h/{text}"):
        try:
            address_of(concealed(url))
        except UsageError:
            continue


@pytest.mark.parametrize(
    "key", ["secret-key\r", "secret-key\n", "secret-key ", "secret\x1b-key", "secret-k\u00e9y"]
)
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="the key in LLM_KEY has an invalid character") as caught:
        usable_key(key, where="LLM_KEY")
    assert "secret" not in f"{caught.value} {caught.value.hint}"
