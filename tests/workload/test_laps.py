"""Laps: which requests each sends, on which launch, and what is left out when less is wanted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from samples import NGRAM, plan, request
from speclift.core.interim import EVERYTHING, LAST_LOOK_SHARE, InterimPlan, Scope
from speclift.core.results import Part
from speclift.core.traffic import Concurrency, Rate, Request
from speclift.workload.experiment import StudyPlan
from speclift.workload.laps import interim_plan_for, lap_turns, laps

ONE, SIXTEEN = Concurrency(streams=1), Concurrency(streams=16)
WHOLE = {NGRAM.name: (EVERYTHING,)}


def traffic(**sizes: int) -> tuple[Request, ...]:
    return tuple(
        request(f"{segment}-{number}", segment=segment)
        for segment, size in sizes.items()
        for number in range(size)
    )


def in_laps(**changes: object) -> StudyPlan:
    looks = interim_plan_for(int(str(changes.get("rounds", 3))), together=bool(changes.get("together", True)))
    return plan(**{"requests": traffic(copy=12, chat=6), "looks": looks, **changes})


def error_of(looks: InterimPlan) -> float:
    """The chance that any look excludes the truth, exactly: the density of a mean of known variance that no look has
    excluded yet, carried on from look to look (Armitage, McPherson and Rowe 1969)."""
    times = np.cumsum(looks.sizes) / sum(looks.sizes)
    grid = np.linspace(-6.0, 6.0, 301)
    step = grid[1] - grid[0]
    density = np.zeros_like(grid)
    for number, (time, before) in enumerate(zip(times, (0.0, *times), strict=False)):
        spread = np.sqrt(time - before)
        density = (
            stats.norm.pdf(grid, scale=spread)
            if number == 0
            else step * stats.norm.pdf(grid[:, None] - grid, scale=spread) @ density
        )
        bound = stats.norm.isf((1 - looks.level(number)) / 2) * np.sqrt(time)
        # The part of a grid cell that lies within the bound.
        density *= np.clip((bound - np.abs(grid)) / step + 0.5, 0.0, 1.0)
    return float(1.0 - density.sum() * step)


class TestLooks:
    @pytest.mark.parametrize("launches", [1, 2, 3, 5, 12])
    def test_as_many_requests_as_passes_and_no_more_error_than_there_is(self, launches: int) -> None:
        looks = interim_plan_for(launches, together=True)
        assert looks is not None
        assert sum(looks.sizes) == pytest.approx(launches)
        assert sum(looks.shares) == pytest.approx(1.0)
        assert list(looks.shares) == sorted(looks.shares)
        assert looks.shares[-1] == LAST_LOOK_SHARE

    @pytest.mark.parametrize(
        "settings", [{"together": True}, {"together": False}, {"repeats": True}], ids=str
    )
    def test_however_many_launches_the_looks_together_err_no_more_than_one_fixed_look(
        self, settings: dict[str, bool]
    ) -> None:
        for launches in (*range(1, 41), 1000):
            looks = interim_plan_for(launches, **{"together": True, **settings})
            if looks is not None:
                assert sum(looks.shares) == pytest.approx(1.0)
                errs = error_of(looks) if launches <= 40 else 0.05
                assert 0.025 < errs <= 0.05, (launches, errs)

    @pytest.mark.parametrize("launches", [2, 3, 5])
    def test_repeats_are_asked_for_to_see_the_tail_so_no_lap_sends_fewer(self, launches: int) -> None:
        looks = interim_plan_for(launches, together=True, repeats=True)
        assert looks is not None
        assert looks.sizes == (1.0,) * launches
        assert sum(looks.shares) == pytest.approx(1.0)
        assert interim_plan_for(1, together=True, repeats=True) is None

    @pytest.mark.parametrize(
        ("sizes", "shares"),
        [
            ((0.5, 0.5), (0.5,)),
            ((0.0, 1.0), (0.1, 0.5)),
            ((1.5,), (0.5,)),
            ((0.5, 0.5), (0.6, 0.6)),
            ((0.5, 0.5, 1.0), (0.3, 0.1, 0.5)),
        ],
        ids=["lengths", "nothing", "more than all", "more than the error", "falling"],
    )
    def test_a_schedule_that_would_claim_too_much_is_refused(
        self, sizes: tuple[float, ...], shares: tuple[float, ...]
    ) -> None:
        with pytest.raises(ValueError, match="looks"):
            InterimPlan(sizes=sizes, shares=shares)


class TestLaps:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"requests": traffic(copy=1)},
            {"requests": traffic(copy=2, chat=1)},
            {"requests": traffic(copy=1, chat=1, code=1)},
            {"request_count": 50},
            {"temperatures": (0.0, 0.7)},
            {"loads": (ONE, SIXTEEN, Rate(per_s=4.0))},
            {"rounds": 1},
            {"rounds": 2},
            {"together": False},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("rounds", [(0,) * 8, (0, 0, 1, 1, 1, 2, 2, 3), tuple(range(8))], ids=str)
    def test_no_load_gets_more_than_the_fixed_design_nor_a_launch_the_same_twice(
        self, changes: dict[str, object], rounds: tuple[int, ...]
    ) -> None:
        asked = in_laps(**changes)
        sent = [
            (lap.round, block.load, item)
            for lap in laps(asked, rounds)
            for block in lap.blocks
            for item in block.items
        ]
        assert set(Counter(sent).values()) <= {1}
        for load in asked.loads:
            assert sum(where == load for _, where, _ in sent) <= 1.1 * asked.rounds * len(asked.items)


class TestWanted:
    def test_the_baseline_runs_what_any_arm_does_and_no_more(self) -> None:
        asked = in_laps()
        lap = next(laps(asked, (0,)))
        turns = lap_turns(asked, lap, {NGRAM.name: (Scope(part=Part.SEGMENT, label="chat"),)})
        sent = {name: [t.items for t in turns if t.arm == name] for name in ("baseline", NGRAM.name)}
        assert sent["baseline"] == sent[NGRAM.name] != []
        assert all(item.request_id.startswith("chat") for items in sent["baseline"] for item in items)

    def test_requests_that_overlap_keep_their_company(self) -> None:
        """A load of the open segment alone would be another load."""
        asked = in_laps(loads=(SIXTEEN,))
        lap = next(laps(asked, (0,)))
        by_segment = lap_turns(asked, lap, {NGRAM.name: (Scope(part=Part.SEGMENT, label="chat"),)})
        assert [turn.items for turn in by_segment] == [turn.items for turn in lap_turns(asked, lap, WHOLE)]
        assert lap_turns(asked, lap, {NGRAM.name: (Scope(part=Part.LOAD, label="c=1"),)}) == ()
