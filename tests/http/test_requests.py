"""A caller's bytes: what is a request, however it is cut up, and what is refused as it could be read in two ways."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.http.message import HEAD_BYTES_MAX, USUAL_BOUNDS, Bounds, HttpError, HttpRequest, RequestReader

HOST = b"Host: here\r\n"
WHOLE = b"POST /v1/completions?a=1 HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nX-One:  two \r\n\r\nhello"
CHUNKED = (
    b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n002;name=value\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
BARE = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"


def read_all(parts: list[bytes], reader: RequestReader | None = None) -> list[HttpRequest]:
    reader = reader or RequestReader()
    requests = []
    for part in parts:
        reader.feed(part)
        while (request := reader.next_request()) is not None:
            requests.append(request)
    return requests


class TestWhatIsARequest:
    @given(cuts=st.lists(st.integers(0, 400), max_size=12))
    def test_it_is_the_same_however_it_is_cut_up(self, cuts: list[int]) -> None:
        data = WHOLE + CHUNKED + b"\r\n" + BARE
        places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
        parts = [data[start:end] for start, end in pairwise(places)]

        one, two, three = read_all(parts)

        assert (one.method, one.target, one.path, one.body) == (
            "POST",
            "/v1/completions?a=1",
            "/v1/completions",
            b"hello",
        )
        assert (b"x-one", b"two") in one.fields
        assert (two.target, two.body) == ("/a", b"hello")
        assert (three.method, three.body) == ("GET", b"")

    @pytest.mark.parametrize(
        ("version", "connection", "keeps"),
        [
            (b"1.1", b"", True),
            (b"1.1", b"Connection: close\r\n", False),
            (b"1.1", b"Connection: x, CLOSE\r\n", False),
            (b"1.0", b"", False),
            (b"1.0", b"Connection: keep-alive\r\n", True),
        ],
    )
    def test_whether_another_may_follow(self, version: bytes, connection: bytes, keeps: bool) -> None:
        (request,) = read_all([b"GET / HTTP/" + version + b"\r\n" + HOST + connection + b"\r\n"])
        assert request.keeps_alive is keeps
        assert request.takes_chunks is (version == b"1.1")

    def test_a_caller_that_waits_for_leave_is_seen_before_its_body(self) -> None:
        reader = RequestReader()
        reader.feed(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert reader.next_request() is None
        assert reader.wants_leave
        reader.feed(b"hi")
        request = reader.next_request()
        assert request is not None
        assert request.body == b"hi"
        assert not reader.wants_leave


def head(*lines: bytes, first: bytes = b"POST / HTTP/1.1") -> bytes:
    return b"\r\n".join((first, b"Host: here", *lines)) + b"\r\n\r\n"


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("data", "status"),
        [
            # Two lengths, or a length and chunks: two programs would see two requests.
            (head(b"Content-Length: 5", b"Content-Length: 6"), 400),
            (head(b"Content-Length: 5", b"Content-Length: 5"), 400),
            (head(b"Content-Length: 5", b"Transfer-Encoding: chunked"), 400),
            (head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"), 400),
            (head(b"Transfer-Encoding: gzip, chunked"), 501),
            (head(b"Transfer-Encoding: xchunked"), 501),
            (head(b"Transfer-Encoding: \x0bchunked"), 400),
            (head(b"Transfer-Encoding : chunked"), 400),
            (head(b"Content-Length: +5"), 400),
            (head(b"Content-Length: -1"), 400),
            (head(b"Content-Length: 5_0"), 400),
            (head(b"Content-Length: 0x10"), 400),
            (head(b"Content-Length: \xb2"), 400),
            (head(b"Content-Length: " + b"9" * 17), 400),
            (head(b"Content-Length: 5, 5"), 400),
            # Lines that one program takes for two.
            (head(b"X-A: b\rC: d"), 400),
            (head(b"X-A: b\nContent-Length: 5"), 400),
            (head(b" folded: yes"), 400),
            (head(b"X-A: b\x00c"), 400),
            (head(b"no colon"), 400),
            (head(b": nameless"), 400),
            (head(b"X A: b"), 400),
            (head(b"Host: elsewhere"), 400),
            (head(b"Authorization: a", b"authorization: b"), 400),
            # Request lines.
            (head(first=b"GET http://elsewhere/ HTTP/1.1"), 400),
            (head(first=b"GET //\x01 HTTP/1.1"), 400),
            (head(first=b"GET /a b HTTP/1.1"), 400),
            (head(first=b"GET /#part HTTP/1.1"), 400),
            (head(first=b"GET / HTTP/2.0"), 505),
            (head(first=b"GET / HTTP/1.1 "), 400),
            (head(first=b"GET /"), 400),
            (head(first=b"GET /" + b"a" * 9000 + b" HTTP/1.1"), 414),
            (head(first=b"CONNECT host:1 HTTP/1.1"), 405),
            (head(first=b"TRACE / HTTP/1.1"), 405),
            (head(b"Expect: more"), 417),
            (b"GET / HTTP/1.1\r\n\r\n", 400),
            (b"POST / HTTP/1.0\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            # Too much.
            (head(b"Content-Length: %d" % (USUAL_BOUNDS.body_bytes + 1)), 413),
            (head(*(b"X-%d: y" % number for number in range(200))), 431),
            (head(b"X: " + b"a" * HEAD_BYTES_MAX), 431),
            (b"GET / HTTP/1.1\r\nX: " + b"a" * (HEAD_BYTES_MAX + 1), 431),
            # Other protocols are told at once.
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
            (b"EHLO mail\r\n", 400),
        ],
    )
    def test_by_its_status(self, data: bytes, status: int) -> None:
        with pytest.raises(HttpError) as refusal:
            read_all([data])
        assert refusal.value.status == status

    @pytest.mark.parametrize(
        "body",
        [
            b"5 \r\nhello\r\n",
            b"-5\r\nhello\r\n",
            b"+5\r\nhello\r\n",
            b"0x5\r\nhello\r\n",
            b"5_\r\nhello\r\n",
            b"g\r\n",
            b"\r\n",
            b"5\r\nhello!\r\n",
            b"5\nhello\r\n" + b"x" * 2000,
            b"f" * 17 + b"\r\n",
            b"5;" + b"x" * 2000 + b"\r\n",
            b"5;a\x00b\r\nhello\r\n",
            b"0\r\n" + b"X: y\r\n" * 3000,
        ],
    )
    def test_chunks_that_can_be_read_in_two_ways(self, body: bytes) -> None:
        with pytest.raises(HttpError):
            read_all([head(b"Transfer-Encoding: chunked") + body])

    def test_chunks_beyond_the_bound(self) -> None:
        reader = RequestReader(Bounds(body_bytes=1000))
        with pytest.raises(HttpError) as refusal:
            read_all([head(b"Transfer-Encoding: chunked"), *[b"64\r\n" + b"x" * 100 + b"\r\n"] * 11], reader)
        assert refusal.value.status == 413
        assert reader.held_bytes <= 1200

    @given(data=st.binary(max_size=300))
    def test_no_bytes_raise_anything_else(self, data: bytes) -> None:
        for start in (b"", b"POST / HTTP/1.1\r\nHost: x\r\n", head(b"Transfer-Encoding: chunked")):
            with suppress(HttpError):
                read_all([start + data])
