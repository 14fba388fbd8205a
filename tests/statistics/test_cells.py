from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from samples import NGRAM, record
from speclift.core.records import Phase, Record
from speclift.core.results import Cell
from speclift.core.traffic import Concurrency, Rate
from speclift.statistics.cells import (
    ALL,
    acceptance_histogram,
    accepted_length,
    cells,
    loads_of,
    percentiles,
)

FOUR_STREAMS = Concurrency(streams=4)


def the_cell(found: tuple[Cell, ...], **wanted: Any) -> Cell:
    matching = [cell for cell in found if all(getattr(cell, key) == value for key, value in wanted.items())]
    assert len(matching) == 1, f"{len(matching)} cells are {wanted}"
    return matching[0]


def with_counts(drafted: int | None, accepted: int | None, tokens: int | None = 11) -> Record:
    return replace(record(), drafted=drafted, accepted=accepted, output_tokens=tokens)


def served(start_s: float, end_s: float, *, tokens: int | None = 10, **place: Any) -> Record:
    return replace(record(**place), intended_s=start_s, sent_s=start_s, end_s=end_s, output_tokens=tokens)


class TestCells:
    def test_temperatures_are_told_apart_only_where_the_study_swept_them(self) -> None:
        records = [record(temperature=temperature) for temperature in (0.0, 0.7, 0.7)]
        assert [cell.temperature for cell in cells(records, by_temperature=False, by_segment=False)] == [None]
        swept = cells(records, by_temperature=True, by_segment=False)
        assert {cell.temperature: cell.requests for cell in swept} == {None: 3, 0.0: 1, 0.7: 2}

    def test_requests_that_only_held_the_load_are_not_measured(self) -> None:
        records = [record(), record(phase=Phase.FILLER, tpot_s=9.0)]
        cell = the_cell(cells(records, by_temperature=False), segment=ALL)
        assert cell.requests == 1
        assert cell.tpot_s is not None
        assert cell.tpot_s.p95 == pytest.approx(0.01)

    def test_a_segment_that_is_called_all_is_not_counted_twice(self) -> None:
        cell = the_cell(cells([record(segment=ALL)], by_temperature=False), segment=ALL)
        assert cell.requests == 1


class TestPercentiles:
    def test_intervals_are_order_statistics(self) -> None:
        found = percentiles(
            [record(tpot_s=0.001 * rank, request_id=f"p{rank}") for rank in range(1, 101)], "tpot"
        )
        assert found is not None
        # Ranks 40 and 61 of 100 are binomial bounds of a median.
        assert found.intervals["p50"] == pytest.approx((0.040, 0.061))
        assert found.intervals["p99"][1] is None

    def test_intervals_do_not_narrow_by_sending_the_same_prompts_again(self) -> None:
        once = [record(tpot_s=0.001 * rank, request_id=f"p{rank}") for rank in range(1, 41)]
        again = [replace(r, place=replace(r.place, round=number)) for r in once for number in range(5)]
        widths = []
        for records in (once, again):
            found = percentiles(records, "tpot")
            assert found is not None
            low, high = found.intervals["p50"]
            assert low is not None
            assert high is not None
            widths.append(high - low)
        assert widths[1] >= 0.9 * widths[0]

    def test_ttft_and_e2e_run_from_the_intended_send_time(self) -> None:
        late = replace(record(), intended_s=99.0)
        ttft, e2e = percentiles([late], "ttft"), percentiles([late], "e2e")
        assert ttft is not None
        assert e2e is not None
        assert (ttft.p50, e2e.p50) == pytest.approx((1.2, 1.3))


class TestAcceptance:
    def test_histogram_has_ten_bins_and_closes_the_last(self) -> None:
        records = [with_counts(10, accepted) for accepted in (0, 0, 5, 10)]
        assert acceptance_histogram([*records, with_counts(0, 0)]) == (2, 0, 0, 0, 0, 1, 0, 0, 0, 1)


def of_prompt(request_id: str, made: Record) -> Record:
    return replace(made, place=replace(made.place, request_id=request_id))


class TestAcceptedLength:
    def test_its_interval_holds_no_length_that_a_step_cannot_have(self) -> None:
        # 20 tokens in 20 steps and in 4; two prompts' t quantile is 12.7.
        counted = [with_counts(80, 0, tokens=21), of_prompt("p2", with_counts(16, 16, tokens=21))]
        free, held = (accepted_length(counted, limit=limit) for limit in (None, 4))
        assert free is not None
        assert held is not None
        assert free.high is not None
        assert (free.low, free.high > 5.0) == (1.0, True)
        assert (held.value, held.low, held.high) == (free.value, 1.0, 5.0)

    def test_of_one_prompt_it_is_all_that_a_step_can_give(self) -> None:
        one = with_counts(30, 15, tokens=21)
        arm = replace(NGRAM, name=one.place.arm)
        (cell,) = cells([one], by_temperature=False, by_segment=False, arms=[arm])
        found = cell.accepted_length
        assert found is not None
        assert (found.low, found.high) == (1.0, NGRAM.k + 1.0)

    @pytest.mark.parametrize("launches", [3, 10])
    def test_a_prompt_launched_again_is_no_second_prompt(self, launches: int) -> None:
        once = [with_counts(30, 15, tokens=21), of_prompt("p2", with_counts(30, 3, tokens=21))]
        again = [replace(r, place=replace(r.place, launch=n)) for r in once for n in range(launches)]
        first, more = (accepted_length(records, limit=None) for records in (once, again))
        assert first is not None
        assert more is not None
        assert (more.n, more.low, more.high) == pytest.approx((2, first.low, first.high))


class TestThroughput:
    def test_warm_up_does_not_count_and_requests_that_held_the_load_do(self) -> None:
        records = [
            served(-50.0, -40.0, phase=Phase.WARMUP, load=FOUR_STREAMS),
            served(0.0, 4.0, load=FOUR_STREAMS),
            served(0.0, 5.0, load=FOUR_STREAMS, phase=Phase.FILLER),
        ]
        assert the_cell(cells(records, by_temperature=False), segment=ALL).throughput_tok_s == pytest.approx(
            4.0
        )

    @pytest.mark.parametrize("load", [FOUR_STREAMS, Rate(per_s=2.0)])
    def test_a_segments_share_of_a_mixed_turn_is_unknown(self, load: Concurrency | Rate) -> None:
        records = [served(0.0, 4.0, load=load, segment=segment) for segment in ("chat", "code")]
        found = cells(records, by_temperature=False)
        assert the_cell(found, segment="chat").throughput_tok_s is None
        assert the_cell(found, segment=ALL).throughput_tok_s == pytest.approx(5.0)

    def test_a_temperatures_share_of_a_mixed_turn_is_unknown(self) -> None:
        records = [served(0.0, 4.0, load=FOUR_STREAMS, temperature=t) for t in (0.0, 0.7)]
        found = cells(records, by_temperature=True)
        assert [cell.throughput_tok_s for cell in found if cell.temperature is not None] == [None] * 4

    def test_a_segment_that_had_the_turn_to_itself_is_known(self) -> None:
        records = [served(0.0, 4.0, load=FOUR_STREAMS), served(0.0, 5.0, load=FOUR_STREAMS)]
        assert the_cell(
            cells(records, by_temperature=False), segment="chat"
        ).throughput_tok_s == pytest.approx(4.0)

    def test_one_request_at_a_time_has_a_window_of_its_own(self) -> None:
        records = [served(0.0, 4.0, segment="chat"), served(4.0, 5.0, segment="code")]
        found = cells(records, by_temperature=False)
        assert the_cell(found, segment="chat").throughput_tok_s == pytest.approx(2.5)
        assert the_cell(found, segment="code").throughput_tok_s == pytest.approx(10.0)


def test_loads_come_lightest_first() -> None:
    loads = (Concurrency(streams=16), Concurrency(streams=2), Concurrency(streams=4))
    assert loads_of([record(load=load) for load in (*loads, *loads)]) == tuple(sorted(loads))
