"""What is known of every server now: counted, kept, and told on where nothing can be kept."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from speclift.core.errors import OperatingError
from speclift.core.live import Event, Payoff, instant
from speclift.live.board import Board, History
from watch_samples import NOW_S, URL, alarm, unreachable, watched


class Full(History):
    """On a disk without room."""

    def write(self) -> None:
        raise OperatingError("database or disk is full")


def test_marks_are_kept_where_something_happened(tmp_path: Path) -> None:
    board = Board(History(tmp_path / "h"), recent_s=600, say=lambda _: None)
    course = [
        watched(),
        alarm(),
        unreachable(),
        unreachable(),
        watched(events=(Event.RESTART, Event.UPGRADE)),
    ]
    for place, each in enumerate(course):
        board.take(replace(each, at=instant(NOW_S + place)))
    found = board.looks(URL, from_s=0, to_s=NOW_S + 100, points=100)
    assert [look.marks for look in found] == [
        (),
        ("does-not-pay",),
        ("unreachable",),
        (),
        ("restart", "upgrade", "reachable again", "pays"),
    ]
    board.close()


def test_a_full_disk_ends_no_watch_and_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    history = Full(tmp_path / "h")
    board = Board(history, recent_s=600, say=said.append)
    for _ in range(3):
        assert board.take(watched())[0].verdict is Payoff.PAYS
        assert board.looks(URL, from_s=0, to_s=NOW_S, points=10) == []
    board.close()
    assert said == ["database or disk is full; the watch goes on without it"]
