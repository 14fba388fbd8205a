"""Servers under watch as the page shows them: calm, in alarm, without traffic, gone."""

from __future__ import annotations

import math

from msgspec.structs import replace

from speclift.core.answer import NextCommand
from speclift.core.live import (
    BreakEvenPoint,
    BreakEvenSource,
    Event,
    KeptLook,
    LiveEstimate,
    LivePercentiles,
    Payoff,
    Watched,
    instant,
    kept_look,
)
from speclift.core.results import Finding, Level
from speclift.live.server_watch import with_answer
from speclift.views.charts import Scale
from speclift.views.watch_page import Baseline, PageFrame, watch_page

NOW_S = 1_800_000_000.0
URL = "http://10.0.0.7:8000"
FRAME = PageFrame(nonce="n", every_s=15.0, version="0.2.0")
BASELINE = Baseline(
    ttft_p50_s=0.12, ttft_p95_s=0.31, tpot_p50_s=0.021, tpot_p95_s=0.034, load="8 requests under way"
)
AGAIN = NextCommand(command="speclift decide --study studies/mine-again --method ngram --k 4", seconds=540)
HOSTILE = "<script>alert(1)</script>\u202e\"'\\\n${x}"


def watched(**fields: object) -> Watched:
    """A server on which speculation pays, unless told otherwise."""
    calm = Watched(
        url=URL,
        at=instant(NOW_S),
        window_s=600.0,
        verdict=Payoff.PAYS,
        since=instant(NOW_S - 7200),
        engine="vllm",
        version="0.32.0",
        model="llama-3.1-8b-instruct",
        accepted_length=length(2.84),
        acceptance_rate=0.61,
        per_position=(0.82, 0.61, 0.41, 0.28),
        drafts=12000.0,
        break_even=BreakEvenPoint(
            accepted_length=1.74, low=1.74, high=1.74, source=BreakEvenSource.STUDY, running=8
        ),
        ttft_s=LivePercentiles(p50=0.11, p95=0.29, p99=0.42),
        tpot_s=LivePercentiles(p50=0.012, p95=0.022, p99=0.04),
        tokens_s=812.0,
        requests_s=3.1,
        running=8.0,
        waiting=0.0,
        kv_used=0.43,
        prefix_hit_rate=0.22,
    )
    return with_answer(replace(calm, **fields), following=AGAIN)


def length(value: float, *, spread: float = 0.08) -> LiveEstimate:
    return LiveEstimate(
        value=value, low=value * (1 - spread), high=value * (1 + spread), level=0.9995, scrapes=40
    )


LOST = Finding(
    check="changed-acceptance",
    level=Level.INFO,
    message="drafts are accepted as far as position 1 in 31% of steps, 82% when it paid",
)
CHANGED = Finding(
    check="changed-accepted-length",
    level=Level.WARN,
    message="the accepted length changed from 2.84 to 1.38 around 2027-01-15 07:40 UTC",
)


def alarm() -> Watched:
    return watched(
        verdict=Payoff.DOES_NOT_PAY,
        since=instant(NOW_S - 1200),
        accepted_length=length(1.38),
        acceptance_rate=0.17,
        per_position=(0.31, 0.05, 0.01, 0.01),
        findings=(CHANGED, LOST),
    )


def no_traffic() -> Watched:
    return watched(
        verdict=Payoff.NO_TRAFFIC,
        since=instant(NOW_S - 900),
        accepted_length=None,
        acceptance_rate=None,
        per_position=(),
        ttft_s=LivePercentiles(),
        tpot_s=LivePercentiles(),
        tokens_s=0.0,
        running=0.0,
        prefix_hit_rate=None,
    )


def unreachable() -> Watched:
    gone = Watched(
        url=URL,
        at=instant(NOW_S),
        window_s=0.0,
        verdict=Payoff.UNSURE,
        since=instant(NOW_S - 300),
        engine="vllm",
        version="0.32.0",
        events=(Event.UNREACHABLE,),
        unreachable=f"{URL}/metrics did not answer: Connection refused",
    )
    return with_answer(gone, following=AGAIN)


STATES = {"calm": watched, "alarm": alarm, "no-traffic": no_traffic, "unreachable": unreachable}


def looks(last: Watched, *, hours: float = 1.0) -> list[KeptLook]:
    """How it came to `last`: calm, then as it is now since when it says so; a restart on the way."""
    found: list[KeptLook] = []
    before: KeptLook | None = None
    count = 240
    for index in range(count + 1):
        at_s = NOW_S - hours * 3600 * (1 - index / count)
        wave = math.sin(index / 9) * 0.07 + math.sin(index / 2.3) * 0.03
        now = last if at_s >= last.since_s else watched()
        estimate = now.accepted_length
        look = replace(
            now,
            at=instant(at_s),
            accepted_length=None if estimate is None else length(estimate.value * (1 + wave)),
            events=(Event.RESTART,) if index == 70 else now.events,
            ttft_s=replace(now.ttft_s, p50=times(now.ttft_s.p50, wave), p95=times(now.ttft_s.p95, 2 * wave)),
            tpot_s=replace(now.tpot_s, p50=times(now.tpot_s.p50, wave), p95=times(now.tpot_s.p95, 2 * wave)),
            tokens_s=times(now.tokens_s, 3 * wave),
            running=times(now.running, 4 * wave),
        )
        before = kept_look(look, before)
        found.append(before)
    return found


def times(value: float | None, more: float) -> float | None:
    return None if value is None else value * (1 + more)


def one_page(of: Watched, *, is_of_several: bool = False) -> str:
    return watch_page(
        of,
        looks(of),
        FRAME,
        span=Scale(low=NOW_S - 3600, high=NOW_S),
        hours=1,
        baseline=BASELINE,
        is_of_several=is_of_several,
    )
