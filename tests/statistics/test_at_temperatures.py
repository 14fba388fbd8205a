"""Speedup and acceptance by temperature, where the prompts bring their own and where the study swept them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from simulated import ARM, comparer, drawn, quiet_truth, study_places
from speclift.core.records import Place, Record
from speclift.core.results import ALL_TRAFFIC, AtTemperature
from speclift.statistics.temperatures import at_temperatures

TemperatureOf = Callable[[int, str], float | None]


def by_own(temperature_of: TemperatureOf, **design: int) -> list[Place]:
    """Each prompt at one temperature, by its number and segment."""
    return [
        replace(place, temperature=temperature_of(int(place.request_id[1:]), place.segment))
        for place in study_places(**design)  # type: ignore[arg-type]
    ]


def rows(records: list[Record] | tuple[Record, ...], *, swept: bool = False) -> tuple[AtTemperature, ...]:
    whole = comparer(records, by_temperature=swept).evidence(ARM, ALL_TRAFFIC)
    return at_temperatures(records, [whole])


COOLER_IS_FASTER = quiet_truth(lambda _s, _l, temperature: 2.0 if (temperature or 0.0) <= 0.5 else 0.8)


def test_many_are_buckets_named_by_their_ends() -> None:
    found = rows(drawn(by_own(lambda number, _: number / 30), COOLER_IS_FASTER))
    assert [row.temperature.split("–")[0][:4] for row in found] == ["0", "0.03", "0.53", "0.73", "1.03"]
    assert sum(row.prompts for row in found) == 36
    assert all(row.speedup is not None and row.acceptance_rate is not None for row in found)


def test_where_each_segment_has_its_own_the_speedup_is_the_segments() -> None:
    """Not asked twice, but told."""
    of_segment = {"copy": 0.0, "chat": 0.7, "code": 0.3}
    found = rows(drawn(by_own(lambda _, segment: of_segment[segment]), COOLER_IS_FASTER))
    assert [row.temperature for row in found] == ["0", "0.3", "0.7"]
    assert [round(row.speedup.value, 1) for row in found if row.speedup is not None] == [2.0, 2.0, 0.8]


@pytest.mark.parametrize("prompts", [2, 3])
def test_one_prompt_each_has_a_row_and_no_interval(prompts: int) -> None:
    found = rows(drawn(by_own(lambda number, _: 0.1 * number, prompts=prompts), COOLER_IS_FASTER))
    assert [row.prompts for row in found] == [1] * prompts
