"""Where marks and ticks lie, and which colour an interval has."""

from __future__ import annotations

import pytest

from speclift.core.results import Bounds
from speclift.views.charts import (
    judged,
)


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
