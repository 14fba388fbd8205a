"""What was seen of servers, on disk: within its bound, for the user alone, and there after a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from speclift.core.errors import OperatingError, UsageError
from speclift.core.live import KeptLook, Payoff, instant
from speclift.live import board as module
from speclift.live.board import FULL_S, KEPT_S, THINNED_S, History

NOW_S = 1_800_000_000.0
URL = "http://127.0.0.1:8000"


def look(at_s: float, **fields: object) -> KeptLook:
    usual = {
        "verdict": Payoff.PAYS,
        "since": instant(NOW_S - 60),
        "unreachable": False,
        "accepted_length": 2.5,
    }
    return KeptLook(at=instant(at_s), **{**usual, **fields})  # type: ignore[arg-type]


def kept(history: History, url: str = URL) -> list[KeptLook]:
    return history.looks(url, from_s=0.0, to_s=NOW_S + 1e6, points=100_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "watch.db"


class TestLooks:
    def test_come_back_as_they_were(self, path: Path) -> None:
        first = look(NOW_S, marks=("restart", "pays"), low=2.1, high=2.9, ttft_p95_s=0.3)
        second = look(NOW_S + 15, verdict=Payoff.UNSURE, unreachable=True, accepted_length=None)
        history = History(path)
        history.add(URL, first)
        history.add(URL, second)
        history.add("http://other", look(NOW_S))
        history.close()

        again = History(path)
        assert again.looks(URL, from_s=NOW_S - 1, to_s=NOW_S + 60) == [first, second]
        assert again.last(URL) == second
        assert again.last_settled(URL) == first
        assert again.last("http://nobody") is None
        again.close()

    def test_figures_that_are_none_are_not_kept(self, path: Path) -> None:
        history = History(path)
        history.add(URL, look(NOW_S, accepted_length=float("nan"), break_even=float("inf")))
        (found,) = history.looks(URL, from_s=0, to_s=NOW_S)
        assert (found.accepted_length, found.break_even) == (None, None)
        history.close()

    def test_an_answer_has_no_more_points_than_asked_for_and_keeps_the_marks(self, path: Path) -> None:
        history = History(path)
        for index in range(1000):
            history.add(URL, look(NOW_S + index, marks=("restart",) if index == 500 else ()))
        found = history.looks(URL, from_s=NOW_S, to_s=NOW_S + 1000, points=100)
        assert 45 <= len(found) <= 100
        assert [each.marks for each in found if each.marks] == [("restart",)]
        assert found == sorted(found, key=lambda each: each.at_s)
        history.close()


class TestBounds:
    def test_old_looks_become_fewer_and_very_old_ones_go(self, path: Path) -> None:
        history = History(path)
        old_s = NOW_S - FULL_S - 10 * THINNED_S
        for index in range(100):
            history.add(URL, look(old_s + index * 15, marks=("restart",) if index == 7 else ()))
            history.add(URL, look(NOW_S - index * 15))
        history.add(URL, look(NOW_S - KEPT_S - 1))
        history.write()
        history.tidy(now_s=NOW_S)

        found = kept(history)
        recent = [each for each in found if each.at_s >= NOW_S - FULL_S]
        older = [each for each in found if each.at_s < NOW_S - FULL_S]
        assert len(recent) == 100
        assert 5 <= len(older) <= 7 + 1
        assert ("restart",) in [each.marks for each in older]
        assert min(each.at_s for each in found) >= NOW_S - KEPT_S
        history.close()

    def test_a_second_tidying_takes_nothing_more(self, path: Path) -> None:
        history = History(path)
        for index in range(200):
            history.add(URL, look(NOW_S - FULL_S - 3000 + index * 15))
        history.write()
        history.tidy(now_s=NOW_S)
        once = kept(history)
        history.tidy(now_s=NOW_S)
        assert kept(history) == once
        history.close()

    def test_of_too_many_the_oldest_go(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "ROWS_MAX", 100)
        history = History(path)
        for index in range(150):
            history.add(URL, look(NOW_S + index))
        history.write()
        history.tidy(now_s=NOW_S)
        found = kept(history)
        assert 90 <= len(found) <= 95
        assert found[-1].at_s == NOW_S + 149
        history.close()


class TestTheFile:
    def test_what_comes_beside_it_is_for_the_user_alone(self, path: Path) -> None:
        path.touch(mode=0o600)
        history = History(path)
        history.add(URL, look(NOW_S))
        history.write()
        for each in path.parent.iterdir():
            assert stat.S_IMODE(each.stat().st_mode) == 0o600, each
        history.close()

    def test_a_second_process_is_refused_until_the_first_ends(self, path: Path) -> None:
        first = History(path)
        with pytest.raises(OperatingError, match=r"another speclift watch writes .*watch\.db"):
            History(path)
        first.close()
        History(path).close()

    @pytest.mark.parametrize(
        "content", [b"not a database at all, but long enough to be read" * 30, b"SQLite format 3\0x"]
    )
    def test_something_else_is_said_and_left_alone(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(OperatingError, match=r"watch\.db cannot be used"):
            History(path)
        assert path.read_bytes() == content

    def test_somebody_elses_database_is_left_alone(self, path: Path) -> None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE mine (x)")
        other.close()
        before = path.read_bytes()
        with pytest.raises(UsageError, match="is no history"):
            History(path)
        assert path.read_bytes() == before

    @pytest.mark.slow
    @pytest.mark.parametrize("kill_after", [40, 400])
    def test_a_kill_in_the_middle_loses_nothing_that_was_written(self, path: Path, kill_after: int) -> None:
        program = f"""
import sys
from pathlib import Path
from speclift.core.live import KeptLook, Payoff, instant
from speclift.live.board import History
history, index = History(Path({str(path)!r})), 0
while True:
    look = KeptLook(
        at=instant({NOW_S} + index), verdict=Payoff.PAYS, since=instant(0.0), unreachable=False
    )
    history.add({URL!r}, look)
    history.write()
    print(index, flush=True)
    index += 1
"""
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        written = [int(process.stdout.readline()) for _ in range(kill_after)]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()

        again = History(path)
        found = [each.at_s - NOW_S for each in kept(again)]
        assert found[: len(written)] == written
        again.add(URL, look(NOW_S + 1e5))
        assert kept(again)[-1].at_s == NOW_S + 1e5
        again.close()
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
