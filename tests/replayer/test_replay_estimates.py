"""Accepted lengths and their intervals: the formula, its coverage, and what too little data gives."""

from __future__ import annotations

import numpy as np
import pytest

from speclift.replayer.counts import Counts, LoggedAnswer
from speclift.replayer.estimates import LengthEstimate, LogSums, LogTotals


def counts_of(decoded: list[int], steps: list[int], drafting: int = 0, drafted: int = 0) -> Counts:
    ones = np.ones(len(decoded), dtype=np.int64)
    return Counts(
        decoded=np.array(decoded),
        steps=np.array(steps),
        drafting=ones * drafting,
        drafted=ones * drafted,
        accepted=np.array(decoded) - np.array(steps),
    )


def estimate(decoded: list[int], steps: list[int], *, k: int = 8) -> LengthEstimate:
    sums = LogSums()
    sums.add(counts_of(decoded, steps), np.ones(len(decoded), dtype=np.bool_))
    return sums.estimate(k)


def test_the_length_is_the_ratio_of_sums_not_the_mean_of_ratios() -> None:
    found = estimate([100, 10], [50, 10])

    assert found.value == pytest.approx(110 / 60)
    assert found.per_request == pytest.approx(1.5)


def test_the_interval_is_the_delta_methods() -> None:
    decoded, steps = np.array([40, 60, 90, 20.0]), np.array([20, 50, 30, 15.0])
    found = estimate(decoded.astype(int).tolist(), steps.astype(int).tolist())

    ratio = decoded.sum() / steps.sum()
    error = np.sqrt(4 / 3 * ((decoded - ratio * steps) ** 2).sum()) / steps.sum()
    t_3_degrees = 3.182446
    assert found.high == pytest.approx(ratio + t_3_degrees * error)
    assert found.low == pytest.approx(max(1.0, ratio - t_3_degrees * error))


def test_the_interval_stays_within_what_a_step_can_yield() -> None:
    found = estimate([10, 90], [10, 20], k=4)

    assert (found.low, found.high) == (1.0, 5.0)


@pytest.mark.parametrize(
    ("decoded", "steps", "value"), [([30], [20], 1.5), ([30, 0], [20, 0], 1.5)], ids=["one", "one with steps"]
)
def test_a_single_answer_has_a_length_and_no_interval(
    decoded: list[int], steps: list[int], value: float
) -> None:
    found = estimate(decoded, steps)

    assert (found.value, found.low, found.high) == (value, None, None)


def test_coverage_is_near_its_level_when_steps_of_an_answer_resemble_each_other() -> None:
    random = np.random.default_rng(5)
    truth_decoded, truth_steps, inside, studies = 0, 0, 0, 600
    drawn = []
    for _ in range(studies):
        # Half of the requests copy, half do not: far more spread between requests than within.
        steps = random.integers(20, 80, size=40)
        per_step = random.choice([0.05, 1.5], size=40)
        decoded = steps + random.poisson(per_step * steps)
        truth_decoded, truth_steps = truth_decoded + decoded.sum(), truth_steps + steps.sum()
        drawn.append(estimate(decoded.tolist(), steps.tolist(), k=50))
    truth = truth_decoded / truth_steps
    for found in drawn:
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= truth <= found.high

    assert 0.92 <= inside / studies <= 0.98


# Designs that carry little


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize(("decoded", "steps"), [(40, 40), (60, 20), (180, 20)])
def test_a_few_answers_that_agree_have_no_interval_of_no_width(count: int, decoded: int, steps: int) -> None:
    found = estimate([decoded] * count, [steps] * count)
    assert found.value == decoded / steps
    assert (found.low, found.high) == (None, None)


def clustered(prompts: list[int]) -> LengthEstimate:
    """Two kinds of answers, one per prompt of even and of odd number."""
    totals = LogTotals((8,), all_name="all")
    decoded = [60 if prompt % 2 else 30 + prompt for prompt in prompts]
    numbers = np.array(prompts, dtype=np.int64)
    totals.add(
        [counts_of(decoded, [20] * len(prompts))], np.zeros(len(prompts), dtype=np.int64), ["a"], numbers
    )
    return totals.estimates()[0].lengths[0]


def test_answers_to_one_prompt_are_one_unit() -> None:
    once, often = clustered([0, 1, 2, 3]), clustered([0, 1, 2, 3] * 50)
    assert often.value == once.value
    assert once.low is not None
    assert often.low == pytest.approx(once.low)
    assert often.high == pytest.approx(once.high)
    only = clustered([1] * 100)
    assert (only.low, only.high) == (None, None)


def test_prompts_are_known_by_their_tokens_and_a_log_without_any_by_its_answers() -> None:
    def answer(prompt: list[int], response: list[int]) -> int:
        ids = [np.array(each, dtype=np.int64) for each in (prompt, response)]
        return LoggedAnswer(prompt=ids[0], response=ids[1], segment="a").prompt_hash

    assert answer([1, 2], [3]) == answer([1, 2], [4])
    assert answer([1, 2], [3]) != answer([2, 1], [3])
    assert answer([], [3]) != answer([], [4])
