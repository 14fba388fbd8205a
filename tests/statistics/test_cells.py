from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from samples import NGRAM, record
from speclift.core.records import Outcome, Phase, Record, Step
from speclift.core.results import Cell
from speclift.core.traffic import Concurrency, Rate
from speclift.statistics.cells import (
    ALL,
    acceptance,
    acceptance_histogram,
    accepted_length,
    cells,
    loads_of,
    per_position,
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
    def test_there_is_one_per_arm_load_and_segment_and_one_over_all_segments(self) -> None:
        records = [
            record(arm=arm, load=Concurrency(streams=streams), segment=segment)
            for arm in ("baseline", "arm")
            for streams in (1, 4)
            for segment in ("chat", "code")
        ]
        found = cells(records, by_temperature=False)
        assert len(found) == 2 * 2 * 3
        assert [cell.segment for cell in found[:4]] == [ALL] * 4
        assert the_cell(found, arm="arm", load=FOUR_STREAMS, segment=ALL).requests == 2
        assert the_cell(found, arm="arm", load=FOUR_STREAMS, segment="code").requests == 1

    def test_temperatures_are_told_apart_only_where_the_study_swept_them(self) -> None:
        records = [record(temperature=temperature) for temperature in (0.0, 0.7, 0.7)]
        assert [cell.temperature for cell in cells(records, by_temperature=False, by_segment=False)] == [None]
        swept = cells(records, by_temperature=True, by_segment=False)
        assert {cell.temperature: cell.requests for cell in swept} == {None: 3, 0.0: 1, 0.7: 2}

    def test_warm_up_is_left_out_and_alone_makes_no_cell(self) -> None:
        warm_up = record(phase=Phase.WARMUP, tpot_s=9.0)
        assert cells([warm_up], by_temperature=False) == ()
        cell = the_cell(cells([warm_up, record()], by_temperature=False), segment=ALL)
        assert cell.requests == 1
        assert cell.tpot_s is not None
        assert cell.tpot_s.p50 == pytest.approx(0.01)

    def test_requests_that_only_held_the_load_are_not_measured(self) -> None:
        records = [record(), record(phase=Phase.FILLER, tpot_s=9.0)]
        cell = the_cell(cells(records, by_temperature=False), segment=ALL)
        assert cell.requests == 1
        assert cell.tpot_s is not None
        assert cell.tpot_s.p95 == pytest.approx(0.01)

    def test_failed_requests_count_as_failed_and_give_no_times(self) -> None:
        records = [record(), record(outcome=Outcome.TIMEOUT, tpot_s=9.0)]
        cell = the_cell(cells(records, by_temperature=False), segment=ALL)
        assert (cell.requests, cell.failed) == (2, 1)
        assert cell.tpot_s is not None
        assert cell.tpot_s.p95 == pytest.approx(0.01)

    def test_what_is_not_known_is_none(self) -> None:
        bare = replace(record(), output_tokens=None, drafted=None, accepted=None)
        cell = the_cell(cells([bare], by_temperature=False), segment=ALL)
        unknown = (cell.tpot_s, cell.throughput_tok_s, cell.acceptance_rate, cell.accepted_length)
        assert unknown == (None, None, None, None)
        assert (cell.per_position, cell.output_tokens_mean) == (None, None)
        assert cell.ttft_s is not None

    def test_a_cell_of_failures_has_no_times_at_all(self) -> None:
        cell = the_cell(cells([record(outcome=Outcome.CUT)], by_temperature=False), segment=ALL)
        assert (cell.requests, cell.failed) == (1, 1)
        assert (cell.ttft_s, cell.tpot_s, cell.e2e_s, cell.throughput_tok_s) == (None, None, None, None)

    def test_a_segment_that_is_called_all_is_not_counted_twice(self) -> None:
        cell = the_cell(cells([record(segment=ALL)], by_temperature=False), segment=ALL)
        assert cell.requests == 1


class TestPercentiles:
    def test_are_numpys_linear_ones(self) -> None:
        times = np.random.default_rng(1).lognormal(-4, 0.5, 250).tolist()
        found = percentiles([record(tpot_s=time) for time in times], "tpot")
        assert found is not None
        assert (found.p50, found.p95, found.p99) == pytest.approx(tuple(np.percentile(times, (50, 95, 99))))

    @pytest.mark.parametrize(("requests", "is_known"), [(99, False), (100, True)])
    def test_p99_is_withheld_under_100_requests(self, requests: int, is_known: bool) -> None:
        found = percentiles([record()] * requests, "e2e")
        assert found is not None
        assert (found.p99 is not None, "p99" in found.intervals) == (is_known, is_known)

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
    def test_is_per_request_with_drafts_and_pooled_in_the_mean(self) -> None:
        counts = [(10, 9), (100, 10), (40, 20), (0, 0), (None, None)]
        found = acceptance([with_counts(drafted, accepted) for drafted, accepted in counts])
        assert found is not None
        assert (found.p10, found.p50, found.p90) == pytest.approx(
            tuple(np.percentile([0.9, 0.1, 0.5], (10, 50, 90)))
        )
        assert found.mean == pytest.approx(39 / 150)
        assert found.requests == 3

    @pytest.mark.parametrize(
        "counts", [[], [(0, 0)], [(None, None)]], ids=["no request", "no draft", "silent"]
    )
    def test_is_none_where_no_request_had_drafts(self, counts: list[tuple[int | None, int | None]]) -> None:
        assert acceptance([with_counts(*each) for each in counts]) is None

    def test_histogram_has_ten_bins_and_closes_the_last(self) -> None:
        records = [with_counts(10, accepted) for accepted in (0, 0, 5, 10)]
        assert acceptance_histogram([*records, with_counts(0, 0)]) == (2, 0, 0, 0, 0, 1, 0, 0, 0, 1)


def of_prompt(request_id: str, made: Record) -> Record:
    return replace(made, place=replace(made.place, request_id=request_id))


class TestAcceptedLength:
    def test_is_tokens_after_the_first_over_decode_steps_with_those_that_drafted_nothing(self) -> None:
        # 20 tokens after the first: 15 accepted in 5 steps; 20 more in 20 steps without a draft.
        counted = [with_counts(30, 15, tokens=21), of_prompt("p2", with_counts(0, 0, tokens=21))]
        found = accepted_length(counted, limit=None)
        assert found is not None
        assert found.value == pytest.approx(40 / 25)
        assert found.low is not None
        assert found.high is not None
        assert (found.n, found.low < found.value < found.high) == (2, True)

    def test_is_one_where_the_engine_says_that_nothing_was_drafted(self) -> None:
        found = accepted_length([with_counts(0, 0), of_prompt("p2", with_counts(0, 0))], limit=None)
        assert found is not None
        assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)

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

    @pytest.mark.parametrize(
        "unusable",
        [with_counts(None, None), with_counts(0, 0, tokens=1), with_counts(0, 0, tokens=None)],
        ids=["engine silent", "one token", "no token count"],
    )
    def test_is_none_where_steps_cannot_be_counted(self, unusable: Record) -> None:
        assert accepted_length([unusable], limit=None) is None


class TestPerPosition:
    def test_is_survival_over_all_decode_steps(self) -> None:
        steps = [(3, 3), (3, 1), (3, 0), (0, 0)]
        stepped = replace(record(), steps=tuple(Step(drafted=d, accepted=a) for d, a in steps))
        assert per_position([stepped, record()]) == pytest.approx((2 / 4, 1 / 4, 1 / 4))

    def test_is_none_without_steps_or_without_drafts(self) -> None:
        idle = replace(record(), steps=(Step(drafted=0, accepted=0),))
        assert per_position([record()]) is None
        assert per_position([idle]) is None


class TestThroughput:
    def test_is_tokens_of_successes_over_first_send_to_last_byte(self) -> None:
        records = [
            served(0.0, 4.0, load=FOUR_STREAMS),
            served(1.0, 5.0, load=FOUR_STREAMS),
            served(1.0, 9.0, load=FOUR_STREAMS, outcome=Outcome.CUT),
        ]
        assert the_cell(cells(records, by_temperature=False), segment=ALL).throughput_tok_s == pytest.approx(
            20 / 9
        )

    def test_time_between_turns_does_not_count(self) -> None:
        records = [served(0.0, 2.0, block=0), served(100.0, 103.0, block=1), served(500.0, 505.0, launch=2)]
        assert the_cell(cells(records, by_temperature=False), segment=ALL).throughput_tok_s == pytest.approx(
            3.0
        )

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

    def test_is_unknown_where_one_success_has_no_token_count(self) -> None:
        records = [served(0.0, 4.0), served(4.0, 5.0, tokens=None)]
        assert the_cell(cells(records, by_temperature=False), segment=ALL).throughput_tok_s is None


def test_loads_come_lightest_first() -> None:
    loads = (Concurrency(streams=16), Concurrency(streams=2), Concurrency(streams=4))
    assert loads_of([record(load=load) for load in (*loads, *loads)]) == tuple(sorted(loads))
