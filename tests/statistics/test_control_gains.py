"""Where a gain comes from, on records of known speed: which launches stand beside the control's."""

from __future__ import annotations

import pytest

from samples import NGRAM, record
from speclift.core.arm import BASELINE, CONTROL
from speclift.core.records import Record
from speclift.core.results import Finding
from speclift.statistics.control import explained_gains

# Time per token of an arm in one round.
Speeds = dict[tuple[str, int], float]


def study(speeds: Speeds, *, prompts: int = 3) -> list[Record]:
    return [
        record(tpot_s=tpot_s, arm=arm, round=index, launch=number, request_id=f"p{prompt}")
        for number, ((arm, index), tpot_s) in enumerate(speeds.items())
        for prompt in range(prompts)
    ]


def gains(speeds: Speeds, *, prompts: int = 3) -> list[Finding]:
    return list(explained_gains(study(speeds, prompts=prompts), [NGRAM], [], metric="tpot"))


@pytest.mark.parametrize(("control_round", "whole"), [(0, "1.20x"), (1, "1.50x"), (2, "2.00x"), (5, "2.00x")])
def test_the_launches_nearest_before_the_control_stand_beside_it(control_round: int, whole: str) -> None:
    speeds = {(BASELINE, index): 0.012 for index in range(3)}
    speeds |= {(NGRAM.name, index): tpot_s for index, tpot_s in enumerate((0.010, 0.008, 0.006))}
    (found,) = gains(speeds | {(CONTROL, control_round): 0.012})
    assert f": {whole} in the launch" in found.message
    assert "scheduling alone gives 1.00x" in found.message


def test_a_round_that_only_one_of_the_two_ran_in_is_passed_over() -> None:
    speeds = {(BASELINE, 0): 0.012, (NGRAM.name, 0): 0.010, (BASELINE, 1): 0.030, (CONTROL, 1): 0.012}
    (found,) = gains(speeds)
    assert ": 1.20x in the launch" in found.message
