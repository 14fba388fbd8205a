"""Waiting for descriptors, and the clock that times them."""

from __future__ import annotations

import os
import select
import time

import pytest

from speclift.client.client import now_s
from speclift.client.connection import COARSE_WAIT_S, Poll


@pytest.mark.parametrize("patience_s", [0.0, COARSE_WAIT_S / 2, 4 * COARSE_WAIT_S])
def test_where_nothing_happens_the_wait_ends_with_nothing(patience_s: float) -> None:
    reader, writer = os.pipe()
    poll = Poll()
    poll.register(reader, select.POLLIN)
    try:
        assert poll.wait(patience_s) == []
    finally:
        poll.close()
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("patience_s", [None, 0.0, COARSE_WAIT_S / 2, 60.0])
def test_what_has_happened_already_is_told_at_once(patience_s: float | None) -> None:
    reader, writer = os.pipe()
    poll = Poll()
    poll.register(reader, select.POLLIN)
    os.write(writer, b"x")
    try:
        assert poll.wait(patience_s) == [(reader, select.POLLIN)]
    finally:
        poll.close()
        os.close(reader)
        os.close(writer)


def test_the_clock_goes_forward_and_tells_the_time_of_day() -> None:
    earlier = now_s()
    time.sleep(0.001)
    assert earlier < now_s()
    assert now_s() == pytest.approx(time.time(), abs=60.0)
