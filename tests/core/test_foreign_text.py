"""What a failed server says, for people, and that no size or shape of it takes long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.foreign_text import error_text
from speclift.http.message import ResponseReader

RECORDED = Path(__file__).parent.parent / "recorded"


class TestErrorText:
    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b'{"error":{"message":"out of memory","code":500}}', "out of memory"),
            (b'{"object":"error","message":"model not found"}', "model not found"),
            (b'{"detail":"Not Found"}', "Not Found"),
            (b'{"error":"busy"}', "busy"),
            (b'{"error":{"code":7}}', '{"error":{"code":7}}'),
            (b'{"broken', '{"broken'),
            (
                b"<html>\r\n<head><title>502 Bad Gateway</title><style>b {}</style></head>\n<body>"
                b"<h1>502&nbsp;Bad</h1><hr>nginx</body></html>",
                "502 Bad Gateway 502 Bad nginx",
            ),
            (b"plain words\n", "plain words"),
            (b"\xff\xfe", "\ufffd\ufffd"),
            (b"", ""),
            (b"x" * 1000, "x" * 500),
        ],
    )
    def test_is_what_people_would_read(self, body: bytes, text: str) -> None:
        assert error_text(body, limit=500) == text

    def test_of_real_servers_is_their_message(self) -> None:
        for name, words in (
            ("llamacpp-b11549", "Field 'max_tokens'"),
            ("vllm-0.32.0", "validation error"),
            ("sglang-0.5.23", "max_new_tokens must be at least 0"),
        ):
            response = ResponseReader()
            body = response.feed((RECORDED / f"{name}-bad-request.http").read_bytes())

            assert (response.status, response.is_done) == (400, True)
            assert words in error_text(body, limit=500)
            assert "{" not in error_text(body, limit=500)[:12]


PIECES = [
    "<script",
    "<script>",
    "<style ",
    "<",
    "<p>",
    "&#",
    "&amp",
    "&#" + "9" * 5000 + ";",
    "</script",
    '{"a":',
    "[" * 99,
    "<!--",
]


@pytest.mark.parametrize("piece", PIECES)
def test_megabytes_of_it_are_read_in_a_moment(piece: str) -> None:
    began_s = time.thread_time()
    for start in ("", "<", '{"error":'):
        error_text((start + piece * (4_000_000 // len(piece))).encode(), limit=500)
    assert time.thread_time() - began_s < 2.0


@given(st.text(alphabet=st.sampled_from('<>/&#;x9script style{}[]":')), st.binary(max_size=50))
def test_whatever_it_is_it_is_text_within_the_limit(text: str, data: bytes) -> None:
    for body in (b"<" + text.encode(), b"{" + data, data):
        assert len(error_text(body, limit=40)) <= 40
