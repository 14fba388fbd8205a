"""Accepted length at a k that did not run: replay, truncation, correction, brackets, intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_samples import extract, length_of, runs_ahead, text_only, walked

from speclift.core.records import Step
from speclift.core.speculation import DraftModel, Head, NGram, Suffix
from speclift.search.counts import request_counts, step_s
from speclift.search.predictor import (
    AcceptanceCurve,
    AcceptanceRun,
    Basis,
    accepted_lengths,
    chain_steps,
    is_prefix_only,
)

KS = tuple(range(1, 11))


def run_at(texts: Mapping[str, Sequence[int]], k: int) -> AcceptanceRun:
    return AcceptanceRun(k=k, requests=tuple(walked(name, text, k) for name, text in texts.items()))


def truth(texts: Mapping[str, Sequence[int]], k: int) -> float:
    return length_of(run_at(texts, k).requests)


@pytest.mark.parametrize("k", KS)
def test_replay_of_a_drafter_that_sees_the_text_alone_is_exact_below_half_a_percent(k: int) -> None:
    random = np.random.default_rng(1)
    texts = {f"r{number}": text_only(random) for number in range(150)}
    curve = accepted_lengths([run_at(texts, 10)], KS, prefix_only=True)
    assert curve.at(k).length.value == pytest.approx(truth(texts, k), rel=0.005)


def test_truncation_of_the_same_run_is_too_low_where_replay_is_right() -> None:
    random = np.random.default_rng(2)
    texts = {f"r{number}": text_only(random) for number in range(150)}
    truncated = accepted_lengths([run_at(texts, 10)], KS, prefix_only=False)
    assert truncated.at(2).basis is Basis.TRUNCATION
    assert truncated.at(2).length.value < 0.97 * truth(texts, 2)


def test_replay_without_a_full_draft_has_nothing_left_to_guess() -> None:
    texts = {
        "a": runs_ahead([True, True, False] * 20),
        "b": runs_ahead([True, False, False, True, False] * 9),
    }
    curve = accepted_lengths([run_at(texts, 8)], KS, prefix_only=True)
    for k in range(1, 9):
        assert curve.at(k).length.value == pytest.approx(truth(texts, k), rel=1e-12)


@pytest.mark.parametrize("drafter", ["eagle", "ngram"])
def test_recorded_acceptance_is_predicted_within_two_percent(drafter: str) -> None:
    texts = extract(drafter)
    alone = drafter == "ngram"
    runs = [run_at(texts, 10)] if alone else [run_at(texts, 10), run_at(texts, 3)]
    curve = accepted_lengths(runs, KS, prefix_only=alone)
    errors = [abs(curve.at(k).length.value / truth(texts, k) - 1) for k in KS]
    assert max(errors) < 0.02


def test_a_second_run_of_a_head_mends_most_of_what_truncation_misses() -> None:
    texts = extract("eagle")
    alone = accepted_lengths([run_at(texts, 10)], KS, prefix_only=False)
    mended = accepted_lengths([run_at(texts, 10), run_at(texts, 2)], KS, prefix_only=False)
    unseen = [k for k in KS if k not in (2, 10)]

    def error(curve: AcceptanceCurve) -> float:
        return float(np.mean([abs(curve.at(k).length.value / truth(texts, k) - 1) for k in unseen]))

    assert error(mended) < error(alone) / 2
    assert mended.at(4).basis is Basis.TWO_RUN
    assert mended.at(2).basis is Basis.MEASURED


def test_a_correction_from_few_unlike_requests_is_hardly_believed() -> None:
    random = np.random.default_rng(3)
    texts = {f"r{number}": text_only(random) for number in range(60)}
    strangers = {"s1": runs_ahead([False] * 30), "s2": runs_ahead([True] * 30)}
    plain = accepted_lengths([run_at(texts, 10)], KS, prefix_only=True).at(3).length.value
    mended = accepted_lengths([run_at(texts, 10), run_at(strangers, 3)], KS, prefix_only=True)
    assert mended.at(3).length.value == pytest.approx(plain, rel=0.005)


def test_a_dozen_requests_at_one_k_do_not_outweigh_hundreds_at_the_k_around_it() -> None:
    random = np.random.default_rng(7)
    texts = {f"r{number}": text_only(random) for number in range(200)}
    few = dict(list(texts.items())[:12])
    runs = [run_at(texts, 10), run_at(texts, 3)]
    without = accepted_lengths(runs, KS, prefix_only=False)
    with_few = accepted_lengths([*runs, run_at(few, 8)], KS, prefix_only=False)
    alone = truth(few, 8) / length_of(run_at(few, 10).requests) * truth(texts, 10)
    moved = abs(math.log(with_few.at(8).length.value / without.at(8).length.value))
    assert with_few.at(8).basis is Basis.MEASURED
    assert moved < 0.5 * abs(math.log(alone / without.at(8).length.value))


def test_a_run_of_many_requests_at_one_k_is_believed_there() -> None:
    random = np.random.default_rng(8)
    texts = {f"r{number}": text_only(random) for number in range(400)}
    mended = accepted_lengths([run_at(texts, 10), run_at(texts, 4)], KS, prefix_only=False)
    assert mended.at(4).length.value == pytest.approx(truth(texts, 4), rel=0.002)


@pytest.mark.parametrize("prefix_only", [True, False])
def test_a_request_that_every_load_sends_counts_as_much_as_one_that_a_single_load_sends(
    prefix_only: bool,
) -> None:
    random = np.random.default_rng(9)
    texts = {f"r{number}": text_only(random) for number in range(40)}
    often = run_at(dict(list(texts.items())[:4]), 10)
    once = accepted_lengths([run_at(texts, 10)], KS, prefix_only=prefix_only)
    many = accepted_lengths([run_at(texts, 10), *[often] * 9], KS, prefix_only=prefix_only)
    for k in KS:
        assert many.at(k).length.value == pytest.approx(once.at(k).length.value, rel=1e-12)
        assert many.at(k).drafted == pytest.approx(once.at(k).drafted, rel=1e-12)


def test_steps_without_a_draft_that_the_engine_left_out_are_recovered_and_stay_plain() -> None:
    listed = [Step(drafted=4, accepted=4), Step(drafted=4, accepted=1)]
    request = request_counts("a", output_tokens=1 + 5 + 2 + 10, steps=listed)
    assert (request.without_draft, request.steps, request.tokens) == (10, 12, 17)
    curve = accepted_lengths([AcceptanceRun(k=4, requests=(request, request))], (1, 4), prefix_only=True)
    assert curve.at(4).length.value == pytest.approx(17 / 12)
    assert curve.at(4).drafted == pytest.approx(4 * 2 / 12)


def test_steps_without_a_draft_that_the_engine_lists_are_not_counted_twice() -> None:
    listed = [Step(drafted=0, accepted=0), Step(drafted=3, accepted=2), Step(drafted=0, accepted=0)]
    request = request_counts("a", output_tokens=6, steps=listed)
    assert (request.without_draft, request.steps, request.tokens) == (2, 3, 5)


def test_totals_alone_give_the_measured_length_and_one_geometric_rate() -> None:
    requests = tuple(request_counts(f"r{place}", output_tokens=201, accepted=120) for place in range(5))
    curve = accepted_lengths([AcceptanceRun(k=5, requests=requests)], (2, 5), prefix_only=True)
    assert curve.at(5).length.value == pytest.approx(200 / 80)
    assert curve.at(2).basis is Basis.GEOMETRIC
    assert 1 < curve.at(2).length.value < 2.5


@pytest.mark.parametrize("prefix_only", [True, False])
def test_beyond_the_longest_run_the_bracket_holds_the_truth(prefix_only: bool) -> None:
    random = np.random.default_rng(4)
    texts = {f"r{number}": text_only(random) for number in range(80)}
    curve = accepted_lengths([run_at(texts, 5)], (5, 8, 12), prefix_only=prefix_only)
    assert not curve.at(5).is_censored
    for k in (8, 12):
        at = curve.at(k)
        assert at.is_censored
        assert at.length.low <= truth(texts, k) <= at.length.high


@pytest.mark.slow
def test_intervals_treat_a_request_as_one_unit_and_cover_about_95_percent() -> None:
    random = np.random.default_rng(5)
    everything = [text_only(random, tokens=120) for _ in range(1500)]
    expected = {k: truth({str(place): text for place, text in enumerate(everything)}, k) for k in (2, 8)}
    covered = []
    for _ in range(120):
        chosen = random.integers(len(everything), size=30)
        texts = {f"r{place}": everything[row] for place, row in enumerate(chosen)}
        curve = accepted_lengths([run_at(texts, 8)], (2, 8), prefix_only=True)
        covered += [curve.at(k).length.low <= expected[k] <= curve.at(k).length.high for k in (2, 8)]
    assert 0.88 <= float(np.mean(covered)) <= 0.995


def test_the_same_request_at_two_loads_makes_no_interval_narrower() -> None:
    random = np.random.default_rng(6)
    texts = {f"r{number}": text_only(random) for number in range(20)}
    once = accepted_lengths([run_at(texts, 8)], (4,), prefix_only=True).at(4).length
    twice = accepted_lengths([run_at(texts, 8), run_at(texts, 8)], (4,), prefix_only=True).at(4).length
    assert twice.high - twice.low == pytest.approx(once.high - once.low)


def test_one_request_gives_a_value_but_no_finite_interval() -> None:
    curve = accepted_lengths([run_at({"a": runs_ahead([True, False] * 20)}, 4)], (2,), prefix_only=True)
    assert (curve.at(2).length.low, curve.at(2).length.high) == (1.0, 3.0)


right_tokens = st.lists(st.booleans(), min_size=3, max_size=80)


@settings(max_examples=2 * settings().max_examples)
@given(texts=st.lists(right_tokens, min_size=1, max_size=4), k_max=st.integers(2, 9), alone=st.booleans())
def test_a_curve_rises_with_k_and_stays_between_one_and_k_plus_one(
    texts: list[list[bool]], k_max: int, alone: bool
) -> None:
    named = {f"r{place}": runs_ahead(text) for place, text in enumerate(texts)}
    ks = tuple(range(1, k_max + 3))
    curve = accepted_lengths([run_at(named, k_max)], ks, prefix_only=alone)
    lengths = [curve.at(k).length.value for k in ks]
    for k, length in zip(ks, lengths, strict=True):
        assert 1.0 <= length <= k + 1.0
        assert curve.at(k).length.low <= length <= curve.at(k).length.high
        assert 0.0 <= curve.at(k).drafted <= k
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(lengths))


@settings(max_examples=2 * settings().max_examples)
@given(full=st.integers(0, 6), last=st.integers(-1, 3), k=st.integers(1, 9), bonus=st.floats(0, 1))
def test_steps_of_a_chain_lie_between_all_bonuses_wrong_and_all_right(
    full: int, last: int, k: int, bonus: float
) -> None:
    if full == 0 and last < 0:
        return
    steps = chain_steps(full, last, 4, k, bonus)
    bounds = sorted([chain_steps(full, last, 4, k, 0.0), chain_steps(full, last, 4, k, 1.0)])
    assert bounds[0] - 1e-9 <= steps <= bounds[1] + 1e-9


@pytest.mark.parametrize(
    ("drafter", "expected"),
    [
        (NGram(), True),
        (Suffix(), True),
        (DraftModel(model="tiny"), True),
        (DraftModel(model="tiny", extra=(("rejection_sample_method", '"block"'),)), False),
        (Head(kind="eagle"), False),
    ],
)
def test_only_drafters_of_the_text_with_token_by_token_verification_are_replayed(
    drafter: DraftModel | NGram | Suffix | Head, expected: bool
) -> None:
    assert is_prefix_only(drafter) is expected


def test_step_time_is_decode_time_over_steps_and_unknown_where_nothing_was_timed() -> None:
    timed = walked("a", [1, 0, 1, 0], 1, tpot_s=0.01)
    assert step_s([timed]) == pytest.approx(0.01 * 4 / 2)
    assert step_s([walked("a", [1, 0], 1)]) is None
    assert math.isclose(step_s([timed, walked("b", [1, 0], 1)]) or 0.0, 0.02)
