from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from samples import record
from simulated import (
    ARM,
    DRAFTING,
    LOADS,
    ONE_STREAM,
    OTHER,
    SEGMENTS,
    by_segment,
    comparer,
    constant,
    drawn,
    quiet_truth,
    study_places,
)
from speclift.core.arm import BASELINE
from speclift.core.goals import Goals
from speclift.core.records import Outcome, Phase, Record, Refused
from speclift.core.results import (
    ALL_TRAFFIC,
    RAW_E2E,
    SPEEDUP_METRICS,
    Comparison,
    Conditions,
    Evidence,
    Part,
)
from speclift.core.traffic import Concurrency, Rate
from speclift.statistics.compare import PARTS_ALONE, admits, idle_tax
from speclift.statistics.pairs import pairs
from speclift.statistics.stats import bonferroni
from speclift.testing.simulated_study import StudyTruth

FOUR, SIXTEEN = Concurrency(streams=4), Concurrency(streams=16)


def on_all(records: tuple[Record, ...] | list[Record], **settings: Any) -> Evidence:
    return comparer(records, **settings).evidence(ARM, ALL_TRAFFIC)


def overall(records: tuple[Record, ...] | list[Record], **settings: Any) -> Comparison:
    found = on_all(records, **settings).overall
    assert found is not None
    return found


def both(tpot_s: float, arm_tpot_s: float, **place: Any) -> list[Record]:
    return [record(tpot_s=tpot_s, arm=BASELINE, **place), record(tpot_s=arm_tpot_s, arm=ARM.name, **place)]


class TestPairs:
    def test_are_the_same_request_in_the_same_round_at_the_same_setting(self) -> None:
        records = [
            *both(0.02, 0.01, request_id="p1"),
            *both(0.03, 0.01, request_id="p1", round=1),
            *both(0.04, 0.01, request_id="p1", load=FOUR),
            *both(0.05, 0.01, request_id="p1", temperature=0.7),
            *both(0.06, 0.01, request_id="p2"),
        ]
        found = pairs(records, ARM.name, "tpot")
        assert [math.exp(pair.log_speedup) for pair in found] == pytest.approx([2, 3, 4, 5, 6])

    @pytest.mark.parametrize(
        "spoilt",
        [
            {"outcome": Outcome.TIMEOUT},
            {"phase": Phase.WARMUP},
            {"phase": Phase.FILLER},
            {"request_id": "p2"},
            {"round": 2},
            {"arm": OTHER.name},
        ],
        ids=lambda spoilt: next(iter(spoilt)),
    )
    def test_need_a_measured_success_on_both_sides(self, spoilt: dict[str, Any]) -> None:
        assert len(pairs(both(0.02, 0.01), ARM.name, "tpot")) == 1
        records = [record(arm=BASELINE), record(**{"arm": ARM.name, **spoilt})]
        assert pairs(records, ARM.name, "tpot") == []

    @pytest.mark.parametrize(("metric", "speedup"), [("tpot", 2.0), ("e2e", 0.4 / 0.3), ("ttft", 1.0)])
    def test_above_one_is_faster_for_every_time(self, metric: str, speedup: float) -> None:
        (pair,) = pairs(both(0.02, 0.01), ARM.name, metric)
        assert math.exp(pair.log_speedup) == pytest.approx(speedup)

    def test_above_one_is_faster_for_throughput(self) -> None:
        (pair,) = pairs(both(0.02, 0.01), ARM.name, "throughput")
        assert math.exp(pair.log_speedup) == pytest.approx(0.4 / 0.3)

    def test_a_time_that_is_unknown_or_zero_forms_no_pair(self) -> None:
        no_count = [replace(r, output_tokens=None) for r in both(0.02, 0.01)]
        assert pairs(no_count, ARM.name, "tpot") == []
        assert pairs(both(0.02, 0.0), ARM.name, "tpot") == []


class TestEndToEnd:
    """0.2 s to the first token, then 10 ms per token or 20."""

    def ratio(self, baseline: dict[str, Any], arm: dict[str, Any], metric: str = "e2e") -> float | None:
        first, second = both(0.02, 0.01)
        found = pairs([_longer(first, **baseline), _longer(second, **arm)], ARM.name, metric)
        return math.exp(found[0].log_speedup) if found else None

    @pytest.mark.parametrize("tokens", [2, 6, 11, 51])
    def test_is_at_the_baselines_length_whatever_the_arm_wrote(self, tokens: int) -> None:
        assert self.ratio({}, {"output_tokens": tokens}) == pytest.approx(0.4 / 0.3)

    @pytest.mark.parametrize("tokens", [6, 51])
    def test_the_raw_one_is_as_it_came(self, tokens: int) -> None:
        raw = self.ratio({}, {"output_tokens": tokens}, RAW_E2E)
        assert raw == pytest.approx(0.4 / (0.2 + 0.01 * (tokens - 1)))

    @pytest.mark.parametrize("tokens", [1, 11])
    def test_a_baseline_of_one_token_is_its_first_token(self, tokens: int) -> None:
        assert self.ratio({"output_tokens": 1}, {"output_tokens": tokens}) == pytest.approx(1.0)

    def test_an_arm_of_one_token_has_no_time_per_token_to_compare_with(self) -> None:
        assert self.ratio({}, {"output_tokens": 1}) is None

    @pytest.mark.parametrize(
        ("arm", "is_compared"),
        [
            ({"is_in_one_burst": True}, True),
            ({"is_in_one_burst": True, "output_tokens": 20}, False),
            ({"output_tokens": None}, True),
            ({"output_tokens": None, "text": "another answer"}, False),
            ({"output_tokens": None, "text": ""}, False),
            ({"output_tokens": None, "refused": (Refused(rule="hidden", said="900"),)}, False),
            ({"output_tokens": 0}, False),
        ],
    )
    def test_without_a_time_per_token_it_is_as_it_came_if_the_answers_are_as_long(
        self, arm: dict[str, Any], is_compared: bool
    ) -> None:
        found = self.ratio({}, arm)
        assert found == (pytest.approx(0.4 / 0.3) if is_compared else None)

    @pytest.mark.parametrize("prompts", [1, 2, 3, 12])
    def test_a_shift_of_lengths_moves_the_raw_ratio_alone(self, prompts: int) -> None:
        truth = replace(quiet_truth(constant(2.0), prompt_sd=0.0), residual_sd=0.0, launch_sd=0.0)
        made = drawn(study_places(prompts=prompts), truth)
        evidence = on_all([_longer(r, output_tokens=127) if r.place.arm == ARM.name else r for r in made])
        value = {found.metric: found.speedup.value for found in evidence.by_metric}
        assert value["e2e"] == pytest.approx(2.0)
        assert value["tpot"] == pytest.approx(2.0)
        assert value[RAW_E2E] == pytest.approx(1.04, rel=0.02)

    def test_every_metric_has_its_interval_beside_the_headline(self) -> None:
        evidence = on_all(drawn(study_places(), quiet_truth(constant(2.0))))
        assert [found.metric for found in evidence.by_metric] == list(SPEEDUP_METRICS)
        for found in evidence.by_metric:
            assert found.simultaneous.low < 2.0 < found.simultaneous.high < 2.2
        assert evidence.overall is not None
        assert evidence.overall.simultaneous == evidence.by_metric[0].simultaneous

    def test_a_part_that_misses_the_bar_has_the_headline_alone(self) -> None:
        source = comparer(drawn(study_places(), quiet_truth(by_segment(copy=2.0, chat=0.9, code=0.9))))
        assert source.evidence(ARM, Conditions(segments=("chat",))).by_metric == ()
        assert len(source.evidence(ARM, Conditions(segments=("copy",))).by_metric) == len(SPEEDUP_METRICS)


def _longer(record: Record, **changes: Any) -> Record:
    """With other tokens, at the same time per token."""
    tokens, tpot_s = changes.get("output_tokens"), record.tpot_s
    if tokens and tpot_s is not None and record.first_token_s is not None:
        end_s = record.first_token_s + tpot_s * (tokens - 1)
        changes |= {"last_token_s": end_s, "end_s": end_s}
    return replace(record, **changes)


class TestSpeedup:
    def test_is_the_geometric_mean_over_prompts(self) -> None:
        records = [
            *both(0.02, 0.01, request_id="p1"),
            *both(0.08, 0.01, request_id="p2"),
        ]
        assert overall(records, goals=Goals(metric="tpot")).speedup.value == pytest.approx(4.0)
        assert overall(records).speedup.value == pytest.approx(math.sqrt(0.4 / 0.3 * 1.0 / 0.3))

    def test_is_found_within_its_interval_at_every_part(self) -> None:
        truth = quiet_truth(by_segment(copy=1.6, chat=0.95, code=1.2))
        evidence = on_all(drawn(study_places(), truth))
        assert evidence.overall is not None
        known = {"all": (1.6 * 0.95 * 1.2) ** (1 / 3), "copy": 1.6, "chat": 0.95, "code": 1.2}
        for comparison in (evidence.overall, *evidence.parts):
            assert comparison.speedup.low < known[comparison.label] < comparison.speedup.high
            assert comparison.speedup.high / comparison.speedup.low < 1.06
        assert [part.label for part in evidence.parts] == ["copy", "chat", "code"]

    def test_a_drift_of_the_machine_cancels(self) -> None:
        truth = replace(quiet_truth(constant(1.5), prompt_sd=0.0), residual_sd=0.0, launch_sd=0.0, drift=0.3)
        assert overall(drawn(study_places(prompts=40), truth)).speedup.value == pytest.approx(1.5, rel=1e-3)

    def test_end_to_end_it_is_less_where_the_first_token_gains_nothing(self) -> None:
        truth = replace(quiet_truth(constant(2.0)), gains_first_token=False)
        evidence = on_all(drawn(study_places(), truth))
        assert evidence.overall is not None
        # 50 ms to the first token and 63 more of 10 or 5 ms.
        assert evidence.overall.speedup.value == pytest.approx(0.68 / 0.365, rel=0.02)

    def test_without_a_pair_there_is_no_comparison(self) -> None:
        evidence = on_all([record(arm=BASELINE), record(arm=ARM.name, outcome=Outcome.CUT)])
        assert (evidence.overall, evidence.by_metric, evidence.parts, evidence.tails) == (None, (), (), ())
        assert [cell.failed for cell in evidence.cells] == [1]

    @pytest.mark.parametrize(("prompts", "rounds"), [(1, 1), (1, 3), (3, 1)])
    def test_too_little_to_tell_gives_a_wide_or_unknown_interval_and_no_error(
        self, prompts: int, rounds: int
    ) -> None:
        records = drawn(study_places(prompts=prompts, rounds=rounds), quiet_truth(constant(1.5)))
        found = overall(records)
        assert found.speedup.low < found.speedup.value < found.speedup.high
        assert (found.prompts, found.launches) == (prompts, rounds)


class TestThroughput:
    goals = Goals(metric="throughput")

    def test_blocks_of_one_request_are_that_prompts_and_know_their_segment(self) -> None:
        truth = replace(quiet_truth(by_segment(copy=2.0, chat=1.0, code=1.0)), ttft_s=1e-6)
        evidence = on_all(drawn(study_places(temperatures=(0.0, 0.7)), truth), goals=self.goals)
        assert evidence.overall is not None
        assert evidence.overall.prompts == 36  # not 72: the same prompt at two temperatures is one
        values = {p.label: p.speedup.value for p in evidence.parts if p.part is Part.SEGMENT}
        assert values == pytest.approx({"copy": 2.0, "chat": 1.0, "code": 1.0}, rel=0.02)

    def test_a_block_of_several_segments_cannot_be_cut_by_segment(self) -> None:
        places = [replace(p, load=FOUR, block=int(p.request_id[1:]) // 18) for p in study_places()]
        places.sort(key=lambda p: (p.round, p.block, p.arm))
        evidence = on_all(drawn(places, quiet_truth(constant(1.5))), goals=self.goals)
        assert evidence.parts == ()
        assert evidence.overall is not None
        assert evidence.overall.prompts == 36
        assert evidence.overall.speedup.low < 1.5 < evidence.overall.speedup.high * 1.1

    def test_the_requests_of_a_block_share_its_rate_and_show_how_unlike_they_are(self) -> None:
        alike, unlike = (
            [*both(0.02, 0.01, load=FOUR), *both(0.02, second, load=FOUR, request_id="p2")]
            for second in (0.01, 0.04)
        )
        logs = [
            [pair.log_speedup for pair in pairs(found, ARM.name, "throughput")] for found in (alike, unlike)
        ]
        assert logs[0] == pytest.approx([math.log(0.4 / 0.3)] * 2)
        assert logs[1][0] - logs[1][1] > 0.3
        # 22 tokens in 0.4 + 0.4 s of two streams, and in 0.3 + 0.6.
        assert sum(logs[1]) / 2 == pytest.approx(math.log(0.8 / 0.9))

    def test_a_request_that_one_arm_alone_served_counts_in_its_rate(self) -> None:
        lost = {r.place.arm: r for r in both(0.04, 0.03, load=FOUR, request_id="p2")}
        only = {r.place.arm: r for r in both(0.04, 0.03, load=FOUR, request_id="p3")}
        records = [
            *both(0.02, 0.01, load=FOUR),
            *(lost[BASELINE], replace(lost[ARM.name], outcome=Outcome.CUT)),
            *(replace(only[BASELINE], outcome=Outcome.CUT), only[ARM.name]),
        ]
        logs = [pair.log_speedup for pair in pairs(records, ARM.name, "throughput")]
        # 22 tokens in 0.4 + 0.6 s, and in 0.3 + 0.5.
        assert sum(logs) / len(logs) == pytest.approx(math.log(1.0 / 0.8))

    def test_a_block_of_which_nothing_was_served_forms_no_pair(self) -> None:
        sides = both(0.02, 0.01, load=FOUR)
        failed = [replace(r, outcome=Outcome.CUT) if r.place.arm == ARM.name else r for r in sides]
        assert pairs(failed, ARM.name, "throughput") == []

    def test_the_time_between_the_two_launches_of_an_interrupted_turn_does_not_count(self) -> None:
        whole = both(0.02, 0.01, load=FOUR)
        resumed = [
            replace(
                r,
                sent_s=r.sent_s + 9e4,
                end_s=r.end_s + 9e4,
                place=replace(r.place, launch=7, request_id="p2"),
            )
            for r in whole
        ]
        found = pairs([*whole, *resumed], ARM.name, "throughput")
        assert [math.exp(pair.log_speedup) for pair in found] == pytest.approx([0.4 / 0.3] * 2)

    def test_warm_up_is_no_block(self) -> None:
        assert pairs(both(0.02, 0.01, phase=Phase.WARMUP, block=-1), ARM.name, "throughput") == []


class TestParts:
    def labels(self, evidence: Evidence) -> dict[Part, list[str]]:
        found: dict[Part, list[str]] = {}
        for part in evidence.parts:
            found.setdefault(part.part, []).append(part.label)
        return found

    def test_are_segments_loads_lightest_first_and_temperatures(self) -> None:
        places = study_places(loads=LOADS[::-1], temperatures=(0.0, 0.7))
        evidence = on_all(drawn(places, quiet_truth(constant(1.5))), by_temperature=True)
        assert self.labels(evidence) == {
            Part.SEGMENT: ["copy", "chat", "code"],
            Part.LOAD: ["c=1", "c=4", "c=16"],
            Part.TEMPERATURE: ["0", "0.7"],
        }

    def test_a_cut_with_one_piece_is_no_cut(self) -> None:
        records = drawn(study_places(segments=("chat",)), quiet_truth(constant(1.5)))
        assert on_all(records).parts == ()

    @pytest.mark.parametrize(
        ("temperatures", "is_cut"),
        [((0.0, 0.5, 1.0), False), ((0.0, 0.5, 0.5), True), ((None, 0.5, 0.5), False)],
    )
    def test_temperatures_that_only_repeat_the_segments_are_not_asked_twice(
        self, temperatures: tuple[float | None, ...], is_cut: bool
    ) -> None:
        places = [
            replace(place, temperature=temperatures[int(place.request_id[1:]) % 3])
            for place in study_places()
        ]
        assert (Part.TEMPERATURE in self.labels(on_all(drawn(places, quiet_truth(constant(1.5)))))) is is_cut

    def test_a_temperature_is_labelled_so_that_it_can_be_read_back(self) -> None:
        third = 1 / 3
        places = study_places(temperatures=(0.0, third))
        evidence = on_all(drawn(places, quiet_truth(constant(1.5))), by_temperature=True)
        assert float(self.labels(evidence)[Part.TEMPERATURE][1]) == third


class TestAdmits:
    @pytest.mark.parametrize(
        ("conditions", "place", "admitted"),
        [
            (Conditions(), {}, True),
            (Conditions(segments=("chat", "code")), {"segment": "code"}, True),
            (Conditions(segments=("chat",)), {"segment": "code"}, False),
            (Conditions(segments=()), {}, False),
            (Conditions(max_concurrency=4), {"load": FOUR}, True),
            (Conditions(max_concurrency=4), {"load": SIXTEEN}, False),
            (Conditions(max_concurrency=4), {"load": Rate(per_s=99.0)}, True),
            (Conditions(max_qps=2.5), {"load": Rate(per_s=2.5)}, True),
            (Conditions(max_qps=2.5), {"load": Rate(per_s=3.0)}, False),
            (Conditions(max_qps=2.5), {"load": SIXTEEN}, True),
            (Conditions(max_temperature=0.7), {"temperature": 0.7}, True),
            (Conditions(max_temperature=0.7), {"temperature": 0.71}, False),
            (Conditions(max_temperature=0.7), {"temperature": None}, False),
            (Conditions(segments=("chat",), max_concurrency=4), {"load": SIXTEEN}, False),
            (Conditions(segments=("code",), max_concurrency=4), {"load": FOUR}, False),
            (Conditions(segments=("chat",), max_concurrency=4), {"load": FOUR}, True),
        ],
    )
    def test_conditions_are_anded_and_inclusive(
        self, conditions: Conditions, place: dict[str, Any], admitted: bool
    ) -> None:
        assert admits(conditions, record(**place).place) is admitted


class TestWithinConditions:
    truth = quiet_truth(lambda segment, load, _t: 1.8 if segment == "copy" and load == ONE_STREAM[0] else 0.9)

    def test_only_what_they_admit_is_compared(self) -> None:
        source = comparer(drawn(study_places(loads=LOADS), self.truth))
        evidence = source.evidence(ARM, Conditions(segments=("copy",), max_concurrency=1))
        assert evidence.overall is not None
        assert evidence.overall.speedup.value == pytest.approx(1.8, rel=0.02)
        assert evidence.overall.prompts == 12
        assert evidence.traffic_share == pytest.approx(1 / 9)
        assert [cell.requests for cell in (*evidence.cells, *evidence.baseline_cells)] == [36, 36]

    def test_a_part_that_misses_the_bar_has_no_cells(self) -> None:
        source = comparer(drawn(study_places(loads=LOADS), self.truth))
        missed = source.evidence(ARM, Conditions(max_concurrency=4))
        assert (missed.cells, missed.baseline_cells, missed.tails) == ((), (), ())
        assert source.evidence(ARM, ALL_TRAFFIC).cells != ()

    def test_segments_have_cells_of_their_own_on_all_traffic_alone(self) -> None:
        source = comparer(drawn(study_places(), self.truth))
        whole, part = source.evidence(ARM, ALL_TRAFFIC), source.evidence(ARM, Conditions(segments=("copy",)))
        assert [(cell.arm, cell.segment) for cell in (*whole.cells, *whole.baseline_cells)] == [
            (ARM.name, "all"),
            (BASELINE, "all"),
        ]
        own = {(cell.arm, cell.segment) for cell in whole.segment_cells}
        assert own == {(arm, segment) for arm in (ARM.name, BASELINE) for segment in SEGMENTS}
        assert part.cells != ()
        assert part.segment_cells == ()

    def test_conditions_that_admit_nothing_compare_nothing(self) -> None:
        evidence = comparer(drawn(study_places(), self.truth)).evidence(ARM, Conditions(segments=("none",)))
        assert (evidence.overall, evidence.traffic_share) == (None, 0.0)


class TestManyComparisons:
    records = drawn(study_places(arms=(ARM, OTHER)), quiet_truth(by_segment(copy=1.5, chat=1.0, code=1.0)))

    def test_the_headline_is_widened_for_the_arms_that_compete(self) -> None:
        alone, of_two = overall(self.records), overall(self.records, arm_count=2)
        assert alone.simultaneous.level == pytest.approx(1 - 0.05 * 0.6)
        assert of_two.speedup == alone.speedup
        assert of_two.simultaneous.level == pytest.approx(1 - 0.05 * 0.6 / 2)
        assert of_two.simultaneous.low < alone.simultaneous.low

    def test_a_part_is_widened_for_all_parts_of_all_arms(self) -> None:
        evidence = on_all(self.records, arm_count=2)
        assert evidence.overall is not None
        assert evidence.overall.simultaneous.excludes(1.0)
        assert {part.simultaneous.level for part in evidence.parts} == {bonferroni(0.95, 6)}
        assert {part.speedup.level for part in evidence.parts} == {0.95}

    def test_and_further_where_the_whole_shows_no_difference(self) -> None:
        even = drawn(study_places(), quiet_truth(by_segment(copy=1.2, chat=1.0, code=1 / 1.2)))
        evidence = on_all(even)
        assert evidence.overall is not None
        assert not evidence.overall.simultaneous.excludes(1.0)
        level = bonferroni(0.95, 3 * PARTS_ALONE)
        assert {part.simultaneous.level for part in evidence.parts} == {level}

    def test_a_part_that_was_searched_for_is_widened_for_the_search(self) -> None:
        found = comparer(self.records).evidence(ARM, Conditions(segments=("copy",))).overall
        assert found is not None
        assert found.simultaneous.level == pytest.approx(bonferroni(0.95, 3 / 0.4))


class TestPlanning:
    def noisy(self, speedup: float, *, seed: int) -> Evidence:
        truth = StudyTruth(arms={ARM.name: replace(DRAFTING, speedup=constant(speedup), prompt_sd=0.15)})
        return on_all(drawn(study_places(), truth, seed=seed))

    @pytest.mark.slow
    @pytest.mark.parametrize("speedup", [1.4, 1.21], ids=["above the bar", "below it"])
    def test_says_how_many_more_would_bring_an_open_comparison_clear_of_the_bar(self, speedup: float) -> None:
        planned = 0
        for seed in range(13):
            found = self.noisy(speedup, seed=seed).overall
            assert found is not None
            is_open = found.simultaneous.low < 1.3 <= found.speedup.high
            needed = [count for count in (found.prompts_needed, found.launches_needed) if count is not None]
            assert is_open or not needed
            assert found.prompts_needed is None or found.prompts_needed > 36
            assert found.launches_needed is None or found.launches_needed > 3
            planned += bool(needed)
        assert planned >= 2

    def test_a_settled_comparison_needs_nothing(self) -> None:
        found = overall(drawn(study_places(), quiet_truth(constant(1.5))))
        assert (found.prompts_needed, found.launches_needed) == (None, None)


class TestIdleTax:
    def test_is_over_the_requests_for_which_nothing_was_drafted(self) -> None:
        truth = quiet_truth(by_segment(copy=2.0, chat=0.9, code=0.9))
        records = [
            replace(r, drafted=0, accepted=0) if r.place.segment != "copy" else r
            for r in drawn(study_places(), truth)
        ]
        tax = idle_tax(records, ARM.name)
        assert tax is not None
        assert tax.prompts == 24
        assert tax.speedup.value == pytest.approx(0.9, rel=0.01)

    def test_is_none_where_every_request_drafted(self) -> None:
        assert idle_tax(drawn(study_places(), quiet_truth(constant(1.5))), ARM.name) is None
