"""Where the geometric mean of pairs and the ratio of medians are the same number, and where they are not."""

from __future__ import annotations

import numpy as np
import pytest

from medians import cases, drawn, geometric_mean, ratio_of_medians

CASES = {case.name: case for case in cases()}


@pytest.mark.parametrize(
    ("name", "mean", "medians"),
    [
        ("1.5x on every request, the first token too", 1.5, 1.5),
        ("3x on the shortest 30 %, 1x on the others", 1.27, 1.0),
        ("1.5x, but six times slower on 6 %", 1.30, 1.37),
    ],
)
def test_the_table_of_the_method(name: str, mean: float, medians: float) -> None:
    before, after = drawn(CASES[name], 40_000, np.random.default_rng(2))
    assert geometric_mean(before, after) == pytest.approx(mean, rel=0.02)
    assert ratio_of_medians(before, after) == pytest.approx(medians, rel=0.03)
