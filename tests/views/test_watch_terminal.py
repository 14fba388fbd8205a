"""watch on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from live_pages import WALL_S
from speclift.core.live import BreakEvenPoint, BreakEvenSource, LiveEstimate, Payoff, Watched, instant
from speclift.live.server_watch import with_answer
from speclift.views.watch_terminal import WatchScreen, plain_lines


def seen(
    url: str = "http://gpu-1.internal:8000", payoff: Payoff = Payoff.PAYS, *, unreachable: str | None = None
) -> Watched:
    watched = Watched(
        url=url,
        at=instant(WALL_S),
        window_s=600.0,
        verdict=payoff,
        since=instant(WALL_S),
        engine="vllm",
        accepted_length=LiveEstimate(value=2.9, low=2.7, high=3.1, level=0.95, scrapes=40),
        break_even=BreakEvenPoint(accepted_length=1.8, low=1.8, high=1.8, source=BreakEvenSource.STUDY),
        running=12.0,
        unreachable=unreachable,
    )
    return with_answer(watched, following=None)


def shown(what: RenderableType, *, width: int = 80) -> str:
    console = Console(width=width, height=20, file=io.StringIO(), color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def screen_of(*servers: Watched) -> WatchScreen:
    screen = WatchScreen()
    for watched in servers:
        screen.take(watched)
    return screen


@pytest.mark.parametrize("width", [80, 120])
def test_several_are_a_table_with_the_worst_first_and_nothing_cut(width: int) -> None:
    servers = (
        seen("http://a:1"),
        seen("http://b:2", Payoff.DOES_NOT_PAY),
        seen("http://c:3", Payoff.UNSURE, unreachable="refused"),
        seen("http://d:4", Payoff.NO_TRAFFIC),
    )
    lines = shown(screen_of(*servers), width=width).splitlines()
    assert lines[0].split("  ") == ["1 unreachable", "1 does-not-pay", "1 no-traffic", "1 pays"]
    assert [line.split()[0] for line in lines[3:7]] == ["unreachable", "does-not-pay", "no-traffic", "pays"]
    assert all("2.90 [2.70, 3.10]" in line and "1.80" in line for line in lines[3:7])


def test_what_a_server_is_called_cannot_move_the_cursor() -> None:
    text = shown(screen_of(seen("http://a:1/\x1b[2J"))) + shown(plain_lines(seen("http://a\x1b[31m")))
    assert "\x1b" not in text
