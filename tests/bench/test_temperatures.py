from __future__ import annotations

import math

import pytest

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.prepare import prepare
from speclift.core.errors import UsageError


def planned(*temperatures: float) -> tuple[float | None, ...]:
    ask = Ask.of(engine="fake", segments=("chat",), requests=2, temperatures=temperatures)
    return prepare(ask, Observer()).plan.temperatures


@pytest.mark.parametrize(
    ("asked", "plan"), [((), (None,)), ((0.0, 0.7), (0.0, 0.7)), ((0.7, 0.0, 0.7), (0.7, 0.0))]
)
def test_each_temperature_is_measured_once(asked: tuple[float, ...], plan: tuple[float | None, ...]) -> None:
    assert planned(*asked) == plan


@pytest.mark.parametrize("wrong", [-0.1, 5.1, math.nan, math.inf])
def test_what_no_engine_takes_is_wrong_usage_before_any_launch(wrong: float) -> None:
    with pytest.raises(UsageError, match=r"--temperature must lie in 0\.\.5, saw"):
        planned(0.0, wrong)
