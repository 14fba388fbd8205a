from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulated import (
    ARM,
    LOADS,
    OTHER,
    cell,
    comparer,
    comparison,
    drawn,
    evidence,
    judged,
    quiet_truth,
    study_places,
)
from speclift.core.arm import Arm
from speclift.core.goals import Goals
from speclift.core.results import ALL_TRAFFIC, Conditions, Evidence, Part
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.verdict.verdict import best_part, ceilings

EIGHT = tuple(f"segment-{number}" for number in range(8))


def part(
    label: str, value: float, *, kind: Part = Part.SEGMENT, low: float | None = None, **changes: Any
) -> Any:
    made = comparison(value - 0.05 if low is None else low, value, value + 0.05, part=kind, label=label)
    return replace(made, prompts=12, **changes)


def clears_the_bar(each: Evidence) -> bool:
    return each.overall is not None and each.overall.simultaneous.low >= 1.3


def searched(
    speedup: Callable[[str, Load, float | None], float], **design: Any
) -> tuple[Conditions | None, list[Conditions]]:
    """The conditions found on a quiet study, and all that were looked at."""
    temperatures = design.get("temperatures", (None,))
    source = comparer(
        drawn(study_places(**design), quiet_truth(speedup)), by_temperature=temperatures != (None,)
    )
    asked: list[Conditions] = []

    def evidence_for(arm: Arm, conditions: Conditions) -> Evidence:
        asked.append(conditions)
        return source.evidence(arm, conditions)

    whole = source.evidence(ARM, ALL_TRAFFIC)
    found = best_part([whole], evidence_for, ships=clears_the_bar, bar=1.3)
    return (None if found is None else found.conditions), asked


class TestCeilings:
    def cells(self, *loads: Load) -> tuple[Any, ...]:
        return tuple(cell(load=load) for load in loads)

    def test_begin_with_none_and_leave_out_the_highest_load(self) -> None:
        made = evidence(cells=self.cells(*LOADS))
        assert list(ceilings(made)) == [
            ALL_TRAFFIC,
            Conditions(max_concurrency=4),
            Conditions(max_concurrency=1),
        ]

    def test_rates_have_ceilings_of_their_own(self) -> None:
        made = evidence(cells=self.cells(Rate(per_s=0.5), Rate(per_s=2.0), Concurrency(streams=1)))
        assert list(ceilings(made)) == [ALL_TRAFFIC, Conditions(max_qps=0.5)]

    def test_loads_and_temperatures_combine(self) -> None:
        parts = [part(label, 1.0, kind=Part.TEMPERATURE) for label in ("0", "0.7", "1")]
        made = evidence(cells=self.cells(*LOADS), parts=tuple(parts))
        found = list(ceilings(made))
        assert len(found) == len(set(found)) == 3 * 3
        assert Conditions(max_concurrency=1, max_temperature=0.7) in found
        assert not any(each.max_temperature == 1.0 for each in found)


class TestSearch:
    def test_leaves_out_the_segments_that_lose(self) -> None:
        found, _ = searched(lambda segment, _l, _t: 0.8 if segment == "chat" else 1.6)
        assert found is not None
        assert set(found.segments or ()) == {"copy", "code"}
        assert (found.max_concurrency, found.max_qps, found.max_temperature) == (None, None, None)

    def test_keeps_a_segment_under_the_bar_where_the_rest_carries_it(self) -> None:
        known = {"copy": 2.0, "chat": 1.1, "code": 0.7}
        found, _ = searched(lambda segment, _l, _t: known[segment])
        assert found is not None
        assert set(found.segments or ()) == {"copy", "chat"}

    def test_finds_the_largest_load_that_passes(self) -> None:
        known = {1: 1.8, 4: 1.6, 16: 0.7}
        found, _ = searched(lambda _s, load, _t: known[load.streams], loads=LOADS)  # type: ignore[union-attr]
        assert found == Conditions(max_concurrency=4)

    def test_finds_the_highest_temperature_that_passes(self) -> None:
        found, _ = searched(
            lambda _s, _l, temperature: 1.6 if (temperature or 0.0) <= 0.7 else 0.7,
            temperatures=(0.0, 0.7, 1.0),
        )
        assert found == Conditions(max_temperature=0.7)

    def test_finds_a_segment_that_pays_only_at_low_load(self) -> None:
        # Over all loads the segment's mean is under the bar, so it shows only under a ceiling.
        def speedup(segment: str, load: Load, _temperature: float | None) -> float:
            return 1.6 if segment == "copy" and load == Concurrency(streams=1) else 0.8

        found, _ = searched(speedup, loads=LOADS)
        assert found == Conditions(segments=("copy",), max_concurrency=1)

    def test_prefers_the_largest_share_of_the_traffic(self) -> None:
        # copy passes at every load, a third of the traffic; everything passes up to c=4, two thirds.
        def speedup(segment: str, load: Load, _temperature: float | None) -> float:
            return 1.6 if segment == "copy" or load != Concurrency(streams=16) else 0.4

        found, _ = searched(speedup, loads=LOADS)
        assert found == Conditions(max_concurrency=4)

    def test_finds_nothing_where_nothing_passes(self) -> None:
        assert searched(lambda _s, _l, _t: 1.1, loads=LOADS)[0] is None

    @pytest.mark.slow
    def test_eight_segments_five_loads_four_temperatures_stay_bounded(self) -> None:
        def speedup(segment: str, load: Load, temperature: float | None) -> float:
            rank = int(segment.removeprefix("segment-"))
            assert isinstance(load, Concurrency)
            return (1.9 - 0.15 * rank) * (1.0 - 0.02 * load.streams) * (1.0 - 0.2 * (temperature or 0.0))

        found, asked = searched(
            speedup,
            prompts=64,
            rounds=1,
            segments=EIGHT,
            loads=tuple(Concurrency(streams=streams) for streams in (1, 2, 4, 8, 16)),
            temperatures=(0.0, 0.3, 0.7, 1.0),
        )
        assert found is not None
        assert len(asked) == len(set(asked)) <= 5 * 4 * 8

    @pytest.mark.parametrize(("prompts", "is_found"), [(21, False), (24, True)])
    def test_a_condition_rests_on_at_least_eight_prompts(self, prompts: int, is_found: bool) -> None:
        truth = quiet_truth(lambda segment, _l, _t: 1.6 if segment == "copy" else 0.8)
        verdict = judged(drawn(study_places(prompts=prompts), truth))
        assert (verdict.conditions is not None) is is_found

    def test_a_segment_of_loops_is_in_no_condition_however_fast(self) -> None:
        speedups = {"copy": 1.9, "chat": 0.8, "code": 1.6}
        records = tuple(
            replace(r, text="again and " * 40 if r.place.segment == "copy" else "an answer")
            for r in drawn(study_places(), quiet_truth(lambda segment, _l, _t: speedups[segment]))
        )
        verdict = judged(records)
        assert verdict.conditions == Conditions(segments=("code",))

    def test_a_condition_names_what_each_of_its_segments_gains(self) -> None:
        speedups = {"copy": 1.9, "chat": 0.8, "code": 1.2}
        verdict = judged(drawn(study_places(), quiet_truth(lambda segment, _l, _t: speedups[segment])))
        assert verdict.conditions == Conditions(segments=("copy", "code"))
        (told,) = [reason.message for reason in verdict.reasons if reason.rule == "conditions"]
        assert "copy 1.9" in told
        assert "code 1.18x [1.16, 1.20]" in told


class TestTies:
    def test_of_two_arms_with_the_same_share_the_higher_lower_bound_wins(self) -> None:
        def whole(arm: Arm) -> Evidence:
            return evidence(arm=arm, parts=(part("copy", 1.6), part("chat", 0.8)))

        def evidence_for(arm: Arm, conditions: Conditions) -> Evidence:
            low = 1.4 if arm is ARM else 1.45
            overall = comparison(low, 1.6, 1.7, arm=arm.name)
            return evidence(arm=arm, conditions=conditions, overall=overall, traffic_share=0.5)

        for order in ((ARM, OTHER), (OTHER, ARM)):
            found = best_part(
                [whole(arm) for arm in order], evidence_for, ships=clears_the_bar, bar=Goals().min_speedup
            )
            assert found is not None
            assert found.arm is OTHER

    def test_a_wide_segment_does_not_hide_a_sure_one(self) -> None:
        # chat looks better, but only code alone can be shown to pay.
        parts = (part("chat", 1.7, low=0.9), part("code", 1.5), part("copy", 0.8))

        def evidence_for(arm: Arm, conditions: Conditions) -> Evidence:
            low = 1.4 if conditions.segments == ("code",) else 1.0
            return evidence(conditions=conditions, overall=comparison(low, 1.5, 1.7), traffic_share=0.3)

        found = best_part([evidence(parts=parts)], evidence_for, ships=clears_the_bar, bar=1.3)
        assert found is not None
        assert found.conditions.segments == ("code",)


class TestWhatIsWorthAsking:
    def asked_of(self, *parts: Any, **changes: Any) -> list[tuple[str, ...] | None]:
        """The sets of segments looked at on all traffic, where none of them ships."""
        asked: list[Conditions] = []

        def evidence_for(arm: Arm, conditions: Conditions) -> Evidence:
            asked.append(conditions)
            return evidence(conditions=conditions)

        best_part([evidence(parts=parts, **changes)], evidence_for, ships=lambda _: False, bar=1.3)
        return [conditions.segments for conditions in asked]

    def test_all_segments_together_are_no_part(self) -> None:
        assert self.asked_of(part("copy", 1.9), part("code", 1.8), part("chat", 1.7)) == [
            ("copy", "code"),
            ("copy",),
        ]

    def test_one_segment_has_no_part(self) -> None:
        assert self.asked_of(part("copy", 1.9)) == []

    def test_a_set_whose_mean_misses_the_bar_is_not_looked_at(self) -> None:
        assert self.asked_of(part("copy", 1.2), part("code", 1.1), part("chat", 1.0)) == []

    def test_a_set_whose_mean_reaches_the_bar_is_looked_at(self) -> None:
        assert self.asked_of(part("copy", 1.31), part("chat", 1.0)) == [("copy",)]

    def test_segments_count_by_their_prompts(self) -> None:
        many = replace(part("code", 1.0), prompts=1000)
        assert self.asked_of(part("copy", 3.0), many, part("chat", 0.5)) == [("copy",)]
