"""Which bytes are whole chunks, and what they carry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speclift.http.message import ResponseReader
from speclift.live.gateway.observed import are_whole_chunks, body_of, passing

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def framed(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@given(st.lists(st.binary(min_size=1, max_size=600), min_size=1, max_size=5))
def test_whole_chunks_are_told_and_carry_their_bodies(bodies: list[bytes]) -> None:
    chunks = b"".join(map(framed, bodies))
    assert are_whole_chunks(chunks)
    assert body_of(chunks) == b"".join(bodies)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=3), st.data())
def test_a_part_of_a_chunk_is_none(bodies: list[bytes], data: st.DataObject) -> None:
    chunks = b"".join(map(framed, bodies))
    edges = {len(b"".join(map(framed, bodies[:count]))) for count in range(len(bodies) + 1)}
    cut = data.draw(st.integers(1, len(chunks) - 1).filter(lambda place: place not in edges))
    assert not are_whole_chunks(chunks[:cut])


@given(st.binary(max_size=40) | st.text("0123456789abcdef\r\n;x", max_size=24).map(str.encode))
def test_whatever_is_called_whole_is_so_to_the_careful_reader_too(data: bytes) -> None:
    if data and are_whole_chunks(data):
        reader = ResponseReader(passes_on=True)
        reader.feed(HEAD)
        assert reader.feed(data) == body_of(data)
        assert reader.is_between_chunks


def test_whole_chunks_are_written_as_they_came_and_noted_with_their_time() -> None:
    written: list[bytes] = []
    times: list[float] = []
    kept: list[bytes] = []
    pass_on = passing(written.append, (times, kept), kept.clear, kept_max=3, clock=lambda: 5.0)
    two = framed(EVENT) + framed(EVENT)
    assert pass_on(framed(EVENT))
    assert pass_on(two)
    assert not pass_on(two[:-1])
    assert not pass_on(b"0\r\n\r\n")
    assert written == [framed(EVENT), two]
    assert (times, kept) == ([5.0, 5.0], [framed(EVENT), two])
    assert pass_on(framed(EVENT))
    assert kept == []
