"""What the pages of a window say together."""

from __future__ import annotations

import math

import pytest

from live_pages import INTERVAL_S, Served, reading
from speclift.core.live import Buckets, Increment, LivePercentiles, LiveTotals, MetricsReading
from speclift.live.readings import (
    Pages,
    percentiles_of,
    position_shares,
    summed,
    time_per_token,
)


def increments_of(*pages: MetricsReading) -> list[Increment]:
    kept = Pages(interval_s=INTERVAL_S)
    return [increment for page in pages if (increment := kept.turn(page)[0]) is not None]


def buckets(*counts: float, total: float | None = None) -> Buckets:
    return Buckets(bounds=(0.1, 0.2, 0.4, math.inf), counts=counts, sum=total)


def test_sums_are_of_all_pages() -> None:
    served = Served(k=4)
    increments = increments_of(served.page(), *served.intervals(3, accepted=2))
    window = summed(increments)

    assert (window.seconds, window.totals.requests) == (45, 90)
    assert window.totals.accepted == pytest.approx(0.5 * (window.totals.drafted or 0), rel=0.02)
    assert position_shares(increments) == pytest.approx((0.5,) * 4, rel=0.02)


def test_the_load_is_the_mean_over_time_not_over_pages() -> None:
    pages = (
        reading(0, tokens=0.0, running=10.0),
        reading(15, tokens=1.0, running=10.0),
        reading(60, tokens=2.0, running=10.0),
    )
    busy = summed(increments_of(*pages, reading(75, tokens=3.0, running=90.0)))
    assert busy.running == pytest.approx((60 * 10 + 15 * 50) / 75)


def window_of(*histograms: Buckets) -> Buckets | None:
    """The histogram of a window with so many pages."""
    increments = [Increment(from_s=0, to_s=15, totals=LiveTotals(ttft=each)) for each in histograms]
    return summed(increments).totals.ttft


class TestPercentiles:
    def test_linear_within_a_bucket_as_prometheus_has_it(self) -> None:
        found = percentiles_of(window_of(buckets(0, 100, 200, 200)))
        assert found.p50 == pytest.approx(0.2)
        assert found.p95 == pytest.approx(0.2 + 0.2 * 0.9)

    def test_llamacpp_tells_a_mean(self) -> None:
        pages = [
            MetricsReading(
                at_s=at, wall_s=at, engine="llamacpp", totals=LiveTotals(tokens=tokens, decode_s=took)
            )
            for at, tokens, took in ((0.0, 0.0, 0.0), (15.0, 100.0, 2.5))
        ]
        assert time_per_token(summed(increments_of(*pages)).totals) == LivePercentiles(mean=0.025)
