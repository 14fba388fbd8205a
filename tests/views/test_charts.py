"""Where marks and ticks lie, and which colour an interval has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.results import Bounds
from speclift.views.charts import (
    CHARACTER_PX,
    TRACK_PX,
    judged,
    judged_tail,
    mark_of,
    ratio_forest,
    ratio_scale,
    ratio_ticks,
)

ratios = st.floats(min_value=0.01, max_value=100)


@pytest.mark.parametrize(
    ("low", "high", "style"),
    [
        (1.4, 1.6, "pays"),
        (1.1, 1.6, "faster"),
        (0.9, 1.6, "unclear"),
        (0.5, 0.9, "loses"),
        (None, None, "unclear"),
    ],
)
def test_an_interval_is_coloured_by_where_its_ends_lie(
    low: float | None, high: float | None, style: str
) -> None:
    assert judged(Bounds(value=1.0, low=low, high=high), 1.3) == style


@pytest.mark.parametrize(
    ("low", "high", "style"),
    [(0.85, 0.95, "loses"), (0.85, 1.1, "pays"), (0.7, 1.1, "unclear"), (None, None, "unclear")],
)
def test_slowest_requests_that_are_shown_slower_lose_within_the_tolerance_too(
    low: float | None, high: float | None, style: str
) -> None:
    assert judged_tail(Bounds(value=0.9, low=low, high=high), 0.8) == style


@given(value=ratios, spread=st.floats(min_value=1, max_value=50), bar=st.floats(min_value=0.5, max_value=5))
def test_ticks_do_not_touch_and_marks_stay_inside(value: float, spread: float, bar: float) -> None:
    bounds = Bounds(value=value, low=value / spread, high=value * spread)
    scale = ratio_scale([bounds], bar)
    ticks = ratio_ticks(scale, bar, TRACK_PX)

    widths = [CHARACTER_PX * len(tick.text) for tick in ticks]
    places = [tick.at * TRACK_PX / 100 for tick in ticks]
    for index in range(len(ticks) - 1):
        assert places[index + 1] - places[index] >= (widths[index] + widths[index + 1]) / 2
    mark = mark_of(bounds, scale, "pays")
    assert 0 <= mark.left <= mark.at <= mark.right <= 100


def test_an_interval_that_is_not_known_reaches_from_edge_to_edge_and_has_no_ends() -> None:
    forest = ratio_forest([("chat", "", Bounds(value=1.5, low=None, high=None))], 1.3)

    assert forest is not None
    (row,) = forest.rows
    assert (row.mark.left, row.mark.right, row.mark.style) == (0, 100, "unclear open")
    assert ratio_forest([], 1.3) is None
