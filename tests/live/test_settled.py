"""Which looks are news, and since when an answer holds that an earlier watch knew already."""

from __future__ import annotations

import pytest

from speclift.core.live import KeptLook, Payoff, Watched, instant
from speclift.live.board import BoardEntry

PAYS, LOSES, UNSURE, NONE = Payoff.PAYS, Payoff.DOES_NOT_PAY, Payoff.UNSURE, Payoff.NO_TRAFFIC
GONE = "gone"


def looked(what: Payoff | str, at_s: float = 0.0) -> Watched:
    is_gone = what == GONE
    return Watched(
        url="u",
        at=instant(at_s),
        window_s=1.0,
        verdict=UNSURE if is_gone else Payoff(what),
        since=instant(at_s),
        unreachable="refused" if is_gone else None,
    )


@pytest.mark.parametrize(
    ("course", "news"),
    [
        ([PAYS, PAYS], []),
        ([PAYS, LOSES, LOSES], [1]),
        ([PAYS, LOSES, PAYS], [1, 2]),
        ([PAYS, UNSURE, PAYS, NONE, PAYS], []),
        ([PAYS, UNSURE, LOSES], [2]),
        ([LOSES], [0]),
        ([UNSURE, NONE, UNSURE], []),
        ([PAYS, GONE, GONE, PAYS], []),
        ([PAYS, GONE, GONE, GONE, GONE, PAYS], [3, 5]),
        ([PAYS, GONE, GONE, GONE, UNSURE, PAYS], [3, 4]),
        ([PAYS, GONE, GONE, GONE, LOSES], [3, 4]),
        ([GONE, GONE, GONE], [2]),
    ],
)
def test_what_is_news(course: list[Payoff | str], news: list[int]) -> None:
    server = BoardEntry(recent_s=600)
    assert [place for place, what in enumerate(course) if server.take(looked(what))[1]] == news


def kept(payoff: Payoff, at_s: float, since_s: float) -> KeptLook:
    return KeptLook(at=instant(at_s), verdict=payoff, since=instant(since_s), unreachable=False)


class TestTakenUp:
    def test_an_answer_that_goes_on_began_when_it_began(self) -> None:
        taken = BoardEntry(kept(PAYS, at_s=990, since_s=100), recent_s=600)
        course = [UNSURE, UNSURE, PAYS, PAYS]
        since = [taken.take(looked(what, 1000 + place))[0].since_s for place, what in enumerate(course)]
        assert since == [1000, 1001, 100, 100]

    def test_it_goes_on_for_as_long_as_it_holds(self) -> None:
        taken = BoardEntry(kept(PAYS, at_s=990, since_s=100), recent_s=600)
        assert [taken.take(looked(PAYS, at_s))[0].since_s for at_s in (1000, 5000, 90000)] == [100, 100, 100]
        assert taken.take(looked(UNSURE, 90001))[0].since_s == 90001
        assert taken.take(looked(PAYS, 90002))[0].since_s == 90002

    def test_an_old_look_says_nothing_about_now(self) -> None:
        taken = BoardEntry(kept(PAYS, at_s=100, since_s=50), recent_s=600)
        assert taken.take(looked(PAYS, 1000))[0].since_s == 1000
