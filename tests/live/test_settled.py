"""Which looks are news, and since when an answer holds that an earlier watch knew already."""

from __future__ import annotations

import pytest

from speclift.core.live import KeptLook, Payoff, Watched
from speclift.live.settled import SettledAnswer, TakenUp

PAYS, LOSES, UNSURE, NONE = Payoff.PAYS, Payoff.DOES_NOT_PAY, Payoff.UNSURE, Payoff.NO_TRAFFIC
GONE = "gone"


def looked(what: Payoff | str, at_s: float = 0.0) -> Watched:
    is_gone = what == GONE
    return Watched(
        url="u",
        at_s=at_s,
        window_s=1.0,
        payoff=UNSURE if is_gone else Payoff(what),
        since_s=at_s,
        unreachable="refused" if is_gone else "",
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
    settled = SettledAnswer()
    assert [place for place, what in enumerate(course) if settled.changes(looked(what))] == news


def test_an_earlier_watchs_answer_is_no_news() -> None:
    assert not SettledAnswer(LOSES).changes(looked(LOSES))
    assert SettledAnswer(LOSES).changes(looked(PAYS))
    assert SettledAnswer(PAYS, is_unreachable=True).changes(looked(PAYS))


def kept(payoff: Payoff, at_s: float, since_s: float) -> KeptLook:
    return KeptLook(at_s=at_s, payoff=payoff, since_s=since_s, is_unreachable=False)


class TestTakenUp:
    def test_an_answer_that_goes_on_began_when_it_began(self) -> None:
        taken = TakenUp(kept(PAYS, at_s=990, since_s=100), recent_s=600)
        course = [UNSURE, UNSURE, PAYS, PAYS]
        since = [taken.since_s(looked(what, 1000 + place)) for place, what in enumerate(course)]
        assert since == [1000, 1001, 100, 100]

    def test_it_goes_on_for_as_long_as_it_holds(self) -> None:
        taken = TakenUp(kept(PAYS, at_s=990, since_s=100), recent_s=600)
        assert [taken.since_s(looked(PAYS, at_s)) for at_s in (1000, 5000, 90000)] == [100, 100, 100]
        assert taken.since_s(looked(UNSURE, 90001)) == 90001
        assert taken.since_s(looked(PAYS, 90002)) == 90002

    @pytest.mark.parametrize("other", [LOSES, NONE])
    def test_another_answer_ends_it(self, other: Payoff) -> None:
        taken = TakenUp(kept(PAYS, at_s=990, since_s=100), recent_s=600)
        assert taken.since_s(looked(other, 1000)) == 1000
        assert taken.since_s(looked(PAYS, 1001)) == 1001

    def test_an_old_look_says_nothing_about_now(self) -> None:
        taken = TakenUp(kept(PAYS, at_s=100, since_s=50), recent_s=600)
        assert taken.since_s(looked(PAYS, 1000)) == 1000

    def test_without_a_history(self) -> None:
        assert TakenUp(None, recent_s=600).since_s(looked(PAYS, 7)) == 7
