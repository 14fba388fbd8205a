"""Servers whose own counters speak against speculation: off for a while, then tried again, later after each failure."""

from __future__ import annotations

from speclift.core.live import BreakEvenPoint, BreakEvenSource, LiveEstimate, Payoff, Watched
from speclift.live.gateway.health import FORGOTTEN_S, HOLD_MAX_S, HOLD_S, TurnedAway

ONE, OTHER = "http://one", "http://other"


def look(payoff: Payoff, url: str = ONE, *, unreachable: str | None = None) -> Watched:
    return Watched(
        url=url,
        at="2026-11-19T20:00:00.000Z",
        window_s=600.0,
        verdict=payoff,
        since="2026-11-19T20:00:00.000Z",
        accepted_length=LiveEstimate(value=1.2, low=1.1, high=1.3, level=0.95, scrapes=9),
        break_even=BreakEvenPoint(accepted_length=1.5, low=1.5, high=1.5, source=BreakEvenSource.STUDY),
        unreachable=unreachable,
    )


def test_it_is_off_for_as_long_as_a_verdict_looks_back_and_says_why() -> None:
    turned = TurnedAway([ONE])
    assert turned.against(now_s=0) == ""
    turned.take(look(Payoff.DOES_NOT_PAY), now_s=0)
    assert turned.against(now_s=1) == (
        "accepted length 1.20 [1.10, 1.30] is under the break-even 1.50; off for 10 min 00 s"
    )
    assert turned.against(now_s=HOLD_S - 1)
    assert turned.against(now_s=HOLD_S) == ""
    # What was seen before is no longer held against it.
    turned.take(look(Payoff.NO_TRAFFIC), now_s=HOLD_S + 1)
    assert turned.against(now_s=HOLD_S + 2) == ""


def test_each_time_in_vain_it_waits_twice_as_long_up_to_a_bound() -> None:
    turned, now_s, waited = TurnedAway([ONE]), 0.0, []
    for _ in range(6):
        turned.take(look(Payoff.DOES_NOT_PAY), now_s=now_s)
        began_s = now_s
        while turned.against(now_s=now_s):
            now_s += 30
        waited.append(now_s - began_s)
    assert waited == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S, HOLD_MAX_S, HOLD_MAX_S, HOLD_MAX_S]
    now_s += FORGOTTEN_S + 60
    turned.take(look(Payoff.DOES_NOT_PAY), now_s=now_s)
    assert turned.against(now_s=now_s + HOLD_S - 1)
    assert turned.against(now_s=now_s + HOLD_S) == ""


def test_one_server_that_still_pays_keeps_the_pool() -> None:
    turned = TurnedAway([ONE, OTHER])
    turned.take(look(Payoff.PAYS, OTHER), now_s=0)
    turned.take(look(Payoff.DOES_NOT_PAY), now_s=1)
    assert turned.against(now_s=2) == ""
    turned.take(look(Payoff.UNSURE, OTHER), now_s=3)
    assert turned.against(now_s=4) == ""
    turned.take(look(Payoff.NO_TRAFFIC, OTHER), now_s=5)
    assert turned.against(now_s=6)
