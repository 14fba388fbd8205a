from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from samples import record
from speclift.core.engine_totals import ACCEPTED, DRAFTED
from speclift.core.records import Counters, Outcome, Phase, Record
from speclift.core.results import Cell
from speclift.statistics.cells import ALL, cells, told_by_totals


def the_cell(found: tuple[Cell, ...], *, segment: str) -> Cell:
    (cell,) = (cell for cell in found if cell.segment == segment)
    return cell


def counted(drafted: float, accepted: float) -> Counters:
    return Counters(values={DRAFTED[0]: drafted, ACCEPTED[0]: accepted})


class TestAcceptanceFromTheEnginesTotals:
    """Where no answer tells what was drafted, the engine's counters of whole turns do."""

    def silent(self, *tokens: int, block: int = 0, **place: Any) -> list[Record]:
        return [
            replace(record(request_id=f"p{block}-{index}", block=block, **place), output_tokens=count)
            for index, count in enumerate(tokens)
        ]

    def test_pooled_over_the_cells_turns(self) -> None:
        records = [*self.silent(41, 41, block=0), *self.silent(21, 21, block=1)]
        totals = {(1, 0): counted(100, 60), (1, 1): counted(50, 20)}
        cell = the_cell(cells(records, by_temperature=False, totals=totals), segment=ALL)
        assert cell.acceptance_rate is not None
        assert cell.acceptance_rate.mean == pytest.approx(80 / 150)
        assert cell.acceptance_rate.p10 is None
        # 80 + 40 tokens after the first ones, of which 60 + 20 were drafts: 20 + 20 steps.
        assert cell.accepted_length is not None
        assert cell.accepted_length.value == pytest.approx(120 / 40)

    @pytest.mark.parametrize(
        "totals",
        [{}, {(1, 0): counted(0, 0)}, {(2, 0): counted(9, 3)}],
        ids=["no totals", "nothing drafted", "another launch"],
    )
    def test_unknown_stays_unknown(self, totals: dict[tuple[int, int], Counters]) -> None:
        cell = the_cell(cells(self.silent(41, 41), by_temperature=False, totals=totals), segment=ALL)
        assert (cell.acceptance_rate, cell.accepted_length) == (None, None)

    def test_a_share_of_a_turn_has_no_totals_of_its_own(self) -> None:
        records = [*self.silent(41, segment="chat"), *self.silent(31, segment="code")]
        found = cells(records, by_temperature=False, totals={(1, 0): counted(60, 30)})
        assert the_cell(found, segment="chat").acceptance_rate is None
        assert the_cell(found, segment=ALL).acceptance_rate is not None

    def test_a_failed_request_spoils_the_turn(self) -> None:
        records = [*self.silent(41), replace(record(request_id="x"), outcome=Outcome.CUT)]
        cell = the_cell(cells(records, by_temperature=False, totals={(1, 0): counted(60, 30)}), segment=ALL)
        assert cell.acceptance_rate is None

    def test_what_the_answers_say_comes_first(self) -> None:
        told = replace(record(), output_tokens=41, drafted=10, accepted=9)
        cell = the_cell(cells([told], by_temperature=False, totals={(1, 0): counted(60, 30)}), segment=ALL)
        assert cell.acceptance_rate is not None
        assert cell.acceptance_rate.mean == 0.9

    def test_a_turn_of_one_request_tells_of_that_request(self) -> None:
        alone, pair = self.silent(41, block=0), self.silent(41, 41, block=1)
        totals = {(1, 0): counted(60, 30), (1, 1): counted(60, 30)}
        told = told_by_totals([*alone, *pair], totals)
        assert [(r.drafted, r.accepted) for r in told] == [(60, 30), (None, None), (None, None)]

    def test_warm_up_and_engines_that_count_nothing_are_left_alone(self) -> None:
        warm = [replace(r, place=replace(r.place, phase=Phase.WARMUP)) for r in self.silent(41)]
        assert told_by_totals(warm, {(1, 0): counted(60, 30)}) == tuple(warm)
        bare = self.silent(41)
        assert told_by_totals(bare, {(1, 0): Counters(values={"other": 1.0})}) == tuple(bare)
