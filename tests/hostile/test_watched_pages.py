"""Whatever a server shows as its metrics: named, bounded in time and memory, and never a verdict that is not there."""

from __future__ import annotations

import json
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server import (
    METRICS,
    Behaviour,
    HostileServer,
    answers,
    drips,
    endless,
    hangs,
    head,
    many,
    raw,
    redirects,
    resets,
    zipped,
)
from watched import watch

from live_pages import Served, reading, text_of
from running import Cli
from speclift.core.errors import EngineError
from speclift.core.live import Payoff
from speclift.engines.metrics import read_page
from speclift.live.server_watch import ServerWatch, WatchSettings, given_break_even

LOOK = ("--once", "--interval", "0.3s", "--break-even", "2")
MEMORY_MAX_BYTES = 400 << 20
PAGE = text_of(Served().interval(accepted=2))
# An address that names a page is asked for that page alone.
pytestmark = pytest.mark.timeout(110)

BROKEN: dict[str, Behaviour] = {
    "HTML": answers("<!doctype html><html><body>Please sign in</body></html>", kind="text/html"),
    "nothing": answers(""),
    "another exporter's page": answers("node_cpu_seconds_total 5\n"),
    "JSON": answers({"detail": "Not Found"}),
    "an error": answers("no", status=500),
    "a key is wanted": answers("no", status=401),
    "a page elsewhere": redirects("http://127.0.0.2:9/metrics"),
    "itself for ever": redirects("/metrics"),
    "compressed": zipped(PAGE),
    "no HTTP": raw(b"\x00\x01\x02" * 100),
    "a reset": resets,
    "bytes that are no text": answers(b"\xff\xfe" * 1000),
}
ENDLESS: dict[str, Behaviour] = {
    "says nothing": hangs,
    "drips a page": drips(PAGE.encode(), every_s=0.02),
    "drips a head": drips(b"X-More: 1\r\n", every_s=0.02, start=b"HTTP/1.1 200 OK\r\n"),
    "one line for ever": endless(b'vllm:generation_tokens_total{a="', start=head(kind="text/plain")),
    "200 MB": many(repeat(b'vllm:generation_tokens_total{engine="0"} 1\n', 5_000_000)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_page_that_is_none_is_named(cli: Cli, name: str) -> None:
    with HostileServer({METRICS: BROKEN[name]}) as server:
        result = cli("watch", f"{server.url}/metrics", *LOOK, "--json")

    assert result.code == 1
    document = json.loads(result.stdout)
    assert (document["verdict"], document["events"]) == ("unsure", ["unreachable"])
    assert 10 < len(document["unreachable"]) < 500
    assert document["accepted_length"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_a_page_that_never_ends_costs_a_bounded_time_and_memory(tmp_path: Path, name: str) -> None:
    with HostileServer({METRICS: ENDLESS[name]}) as server:
        seen = watch("watch", f"{server.url}/metrics", *LOOK, "--json", cwd=tmp_path)

    assert seen.result.code == 1
    assert seen.memory_bytes < MEMORY_MAX_BYTES
    assert seen.wall_s < 30


def test_a_page_that_is_odd_once_is_left_out() -> None:
    """Counters that fall, jump, vanish or cannot be, in the midst of pages that are right."""
    odd: list[dict[str, Any]] = [
        {"tokens": 0.0},
        {"tokens": 1e15},
        {"accepted": None},
        {"drafted": None, "drafts": None, "accepted": None},
        {"accepted_at": ()},
        {"accepted_at": (5.0, 9.0, 1.0, 2.0)},
        {"tokens": None},
        {"running": None},
    ]
    for change in odd:
        served, watch_one = Served(), ServerWatch("http://a", WatchSettings(break_even=given_break_even(2.0)))
        for page in served.intervals(20, accepted=2.2):
            watch_one.read(page)
        page = served.interval(accepted=2.2)
        fields = {
            name: getattr(page.totals, name)
            for name in ("tokens", "requests", "drafts", "drafted", "accepted", "accepted_at")
        }
        watch_one.read(reading(page.at_s, **{**fields, "running": 8.0, **change}))
        seen = [watch_one.read(page) for page in served.intervals(40, accepted=2.2)]
        assert not any(each.verdict is Payoff.DOES_NOT_PAY for each in seen), change
        assert seen[-1].verdict is Payoff.PAYS, change


@given(st.text(max_size=300), st.integers(0, len(PAGE)), st.integers(0, 80))
def test_no_text_makes_a_page_fall_over(noise: str, place: int, cut: int) -> None:
    text = PAGE[:place] + noise + PAGE[place + cut :]
    try:
        page = read_page(text, at_s=1.0, wall_s=1.0)
    except EngineError:
        return
    seen = ServerWatch(
        "http://a", WatchSettings(break_even=given_break_even(2.0), is_single_look=True)
    ).read_alone(page)
    length = seen.accepted_length
    assert length is None or 1 <= length.low <= length.value <= length.high


NUMBERS = st.one_of(st.none(), st.floats(0, 2.0**53, allow_nan=False), st.just(0.0))


@given(
    st.lists(
        st.fixed_dictionaries(
            dict.fromkeys(
                ("tokens", "requests", "drafts", "drafted", "accepted", "steps", "running"), NUMBERS
            )
        ),
        max_size=8,
    )
)
def test_no_counters_make_an_answer_fall_over(pages: list[dict[str, float | None]]) -> None:
    watch_one = ServerWatch("http://a", WatchSettings(break_even=given_break_even(2.0)))
    for place, fields in enumerate(pages):
        seen = watch_one.read(reading(15.0 * place, **fields))
        assert seen.verdict in Payoff
