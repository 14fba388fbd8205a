"""Messages between the client and its sending processes, however the socket cuts them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from speclift.client.frames import Begin, End, FrameReader, Orders, ProcessHealth, Results, frame

MESSAGES = (
    Begin(1, 64),
    Orders([(1, None, b"POST", 9, None, None), (2, 1.5, b"x" * 300, 9, 64, 8)]),
    End(),
    Results(
        [(1, 0.1, 0.2, 0.3, "ok", "", None, None, 5, 3, "stop", "lone \ud800", 4, 2, [(2, 1)], [("a", "b")])]
    ),
    ProcessHealth(1, 0.001, 0.0, 0.5),
)


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_they_come_out_whole_and_in_order(places: list[int]) -> None:
    data = b"".join(frame(message) for message in MESSAGES)
    edges = [0, *sorted(place % len(data) for place in places), len(data)]
    reader, seen = FrameReader(), []
    for start, end in pairwise(edges):
        seen += reader.feed(data[start:end])

    assert tuple(seen) == MESSAGES
