from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from samples import NGRAM, plan, request
from speclift.core.arm import BASELINE, Arm, baseline_arm
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.workload.experiment import TURN_REQUESTS_PER_STREAM, StudyPlan, Turn, turns

ONE = Concurrency(streams=1)


@st.composite
def plans(draw: st.DrawFn, /, **fixed: Any) -> StudyPlan:
    arms = [Arm(name=f"ngram-k{k}", speculation=NGram(k=k)) for k in range(1, draw(st.integers(1, 4)))]
    values = {
        "arms": (baseline_arm(), *arms),
        "loads": tuple(
            draw(
                st.lists(
                    st.sampled_from([ONE, Concurrency(streams=2), Concurrency(streams=4), Rate(per_s=2.0)]),
                    min_size=1,
                    max_size=3,
                    unique=True,
                )
            )
        ),
        "requests": tuple(request(f"p{i}") for i in range(draw(st.integers(1, 40)))),
        "temperatures": draw(st.sampled_from([(None,), (0.0, 0.7)])),
        "together": draw(st.booleans()),
        "rounds": draw(st.integers(1, 4)),
    }
    return plan(**{**values, **fixed})


def order_of_arms(taken: tuple[Turn, ...], block: int) -> list[str]:
    return [turn.arm for turn in taken if turn.block == block]


class TestARound:
    @given(plans(), st.integers(0, 3))
    def test_every_arm_meets_every_item_exactly_once_at_every_load(self, plan: StudyPlan, index: int) -> None:
        met = Counter((turn.arm, turn.load, item) for turn in turns(plan, index) for item in turn.items)

        assert met == Counter(
            (arm.name, load, item) for arm in plan.arms for load in plan.loads for item in plan.items
        )

    @given(plans(), st.integers(0, 3))
    def test_a_block_is_the_same_for_every_arm_and_the_baseline_is_in_each(
        self, plan: StudyPlan, index: int
    ) -> None:
        blocks = defaultdict(list)
        for turn in turns(plan, index):
            assert turn.round == index
            blocks[turn.block].append(turn)

        for members in blocks.values():
            assert sorted(turn.arm for turn in members) == sorted(arm.name for arm in plan.arms)
            assert BASELINE in {turn.arm for turn in members}
            assert len({(turn.load, turn.items) for turn in members}) == 1
        assert sorted(blocks) == list(range(len(blocks)))

    @given(plans())
    def test_blocks_are_cut_alike_in_every_round_so_that_rounds_pair(self, plan: StudyPlan) -> None:
        cuts = [
            {(turn.block, turn.load, turn.items) for turn in turns(plan, index)}
            for index in range(plan.rounds)
        ]

        assert all(cut == cuts[0] for cut in cuts)


class TestMirroring:
    @given(plans(together=True), st.integers(0, 3))
    def test_each_block_runs_the_arms_in_the_opposite_order_of_the_one_before(
        self, plan: StudyPlan, index: int
    ) -> None:
        taken = turns(plan, index)
        orders = [order_of_arms(taken, block) for block in range(taken[-1].block + 1)]

        assert all(later == earlier[::-1] for earlier, later in pairwise(orders))

    @given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 3), st.integers(-3, 3))
    def test_a_linear_drift_cancels_exactly_over_an_even_number_of_blocks(
        self, half: int, arm_count: int, index: int, slope: int
    ) -> None:
        arms = tuple(Arm(name=f"a{i}", speculation=NGram(k=i + 1)) for i in range(arm_count))
        drifting = plan(
            arms=(baseline_arm(), *arms), requests=tuple(request(f"p{i}") for i in range(2 * half))
        )

        drift: dict[str, int] = defaultdict(int)
        for time, turn in enumerate(turns(drifting, index)):
            drift[turn.arm] += slope * time

        assert len(set(drift.values())) == 1


def sizes(
    load: Load, items: int, *, together: bool = True, arms: tuple[Arm, ...] = (baseline_arm(), NGRAM)
) -> list[int]:
    small = plan(
        arms=arms,
        loads=(load,),
        requests=tuple(request(f"p{i}") for i in range(items)),
        together=together,
    )
    return [len(turn.items) for turn in turns(small, 0) if turn.arm == arms[0].name]


class TestTurnSizes:
    @given(st.integers(2, 6), st.integers(1, 200))
    def test_no_turn_of_a_closed_loop_is_shorter_than_half_or_longer_than_one_and_a_half(
        self, streams: int, items: int
    ) -> None:
        whole = streams * TURN_REQUESTS_PER_STREAM
        found = sizes(Concurrency(streams=streams), items)

        if len(found) > 1:
            assert all(whole / 2 <= size < whole * 1.5 for size in found)

    def test_an_open_loop_is_never_cut(self) -> None:
        assert sizes(Rate(per_s=3.0), 100) == [100]
