from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulated import ARM, LOADS, ONE_STREAM, by_streams, comparer, drawn, quiet_truth, study_places
from speclift.core.goals import Goals
from speclift.core.records import Place, Record
from speclift.core.results import ALL_TRAFFIC, Comparison
from speclift.core.traffic import Concurrency

FOUR, SIXTEEN = Concurrency(streams=4), Concurrency(streams=16)


def overall(records: tuple[Record, ...], **settings: Any) -> Comparison:
    found = comparer(records, **settings).evidence(ARM, ALL_TRAFFIC).overall
    assert found is not None
    return found


class TestEqualWeights:
    """Measured loads and temperatures weigh the same, however much of each was measured."""

    truth = quiet_truth(by_streams({1: 2.0, 4: 1.2, 16: 0.6}))
    expected = (2.0 * 1.2 * 0.6) ** (1 / 3)

    def test_of_loads_all_prompts_met(self) -> None:
        found = overall(drawn(study_places(loads=LOADS), self.truth))
        assert found.speedup.value == pytest.approx(self.expected, rel=0.01)

    @pytest.mark.parametrize(
        "is_kept",
        [
            lambda place: place.load != FOUR or int(place.request_id[1:]) < 9,
            lambda place: place.load != SIXTEEN or place.segment == "copy",
            lambda place: int(place.request_id[1:]) % 3 == LOADS.index(place.load),
            lambda place: place.load != FOUR or place.round == 0,
        ],
        ids=["a budget cut one short", "one segment only", "no prompt in common", "one round only"],
    )
    def test_of_loads_that_met_only_some_prompts(self, is_kept: Callable[[Place], bool]) -> None:
        places = [place for place in study_places(loads=LOADS) if is_kept(place)]
        found = overall(drawn(places, self.truth))
        assert found.speedup.value == pytest.approx(self.expected, rel=0.03)
        assert found.speedup.low < self.expected < found.speedup.high

    @pytest.mark.parametrize("rounds", [(0,), (0, 1)])
    def test_whatever_a_fast_or_slow_round_missed(self, rounds: tuple[int, ...]) -> None:
        truth = replace(self.truth, launch_sd=0.3, residual_sd=0.0)
        whole = drawn(study_places(loads=LOADS), truth)
        cut = tuple(r for r in whole if r.place.load != FOUR or r.place.round in rounds)
        assert overall(cut).speedup.value == pytest.approx(overall(whole).speedup.value)

    def test_of_temperatures(self) -> None:
        truth = quiet_truth(lambda _segment, _load, temperature: 2.0 if temperature == 0.0 else 0.5)
        places = study_places(temperatures=(0.0, 1.0))
        kept = [p for p in places if p.temperature == 0.0 or int(p.request_id[1:]) < 9]
        found = overall(drawn(kept, truth), by_temperature=True)
        assert found.speedup.value == pytest.approx(1.0, rel=0.02)

    def test_of_loads_by_throughput_however_many_blocks_each_has(self) -> None:
        goals = Goals(metric="throughput")
        places = [
            replace(place, block=place.block if place.load == ONE_STREAM[0] else 1000 + place.load.streams)
            for place in study_places(loads=LOADS)
            if isinstance(place.load, Concurrency)
        ]
        # Turn by turn: all requests of one arm's block together.
        places.sort(key=lambda p: (p.round, p.block, p.arm))
        truth = replace(self.truth, ttft_s=1e-6)
        found = overall(drawn(places, truth), goals=goals)
        assert found.speedup.value == pytest.approx(self.expected, rel=0.05)
        assert (found.prompts, found.launches) == (36, 3)
