"""The fake server's truth: parsing it, what it does to a request, and the figures a study must find."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.testing.fake_truth import (
    FakeAnswer,
    FakeRequest,
    Truth,
    script_for,
    true_speedup,
    true_tpot_s,
)

STANDARD_ERRORS = 4.5  # false alarm under 1 in 100 000 per check


def ask(prompt: str = "a prompt", **changes: object) -> FakeRequest:
    return replace(FakeRequest(prompt=prompt, max_tokens=64), **changes)  # type: ignore[arg-type]


def decode_s(truth: Truth, script: FakeAnswer, *, in_flight: int = 1) -> float:
    return sum(script.burst_s(truth, burst, in_flight=in_flight) for burst in script.bursts[1:])


def assert_near(sample: list[float], expected: float) -> None:
    error = statistics.stdev(sample) / math.sqrt(len(sample))
    assert abs(statistics.fmean(sample) - expected) < STANDARD_ERRORS * error


def assert_binomial(hits: int, trials: int, share: float) -> None:
    assert trials > 0
    assert abs(hits - trials * share) < STANDARD_ERRORS * math.sqrt(trials * share * (1 - share))


@given(
    max_tokens=st.integers(1, 80),
    k=st.integers(0, 9),
    acceptance=st.floats(0, 1),
    stop_after=st.integers(0, 80),
    prompt=st.text(max_size=8),
)
def test_a_script_emits_exactly_its_tokens_and_drafts_within_what_is_left(
    max_tokens: int, k: int, acceptance: float, stop_after: int, prompt: str
) -> None:
    truth = Truth(k=k, acceptance=acceptance, stop_after=stop_after)
    script = script_for(truth, ask(prompt, max_tokens=max_tokens))
    count = min(max_tokens, stop_after or max_tokens)
    assert [token for burst in script.bursts for token in range(burst.start, burst.end)] == list(range(count))
    assert len(script.token_ids) == count
    assert len(script.token_ids) == 1 + len(script.steps) + script.bursts[-1].accepted
    for burst in script.bursts[1:]:
        assert burst.step is not None
        assert burst.step.drafted == min(k, count - burst.start - 1)
        assert burst.end - burst.start == burst.step.accepted + 1
        assert 0 <= burst.step.accepted <= burst.step.drafted


def test_wrong_tokens_come_at_their_share_and_only_with_speculation() -> None:
    request = ask(max_tokens=2000)
    right = script_for(Truth(), request).token_ids
    corrupting = Truth(k=3, wrong_token_share=0.1)

    def wrong(truth: Truth) -> int:
        return sum(a != b for a, b in zip(script_for(truth, request).token_ids, right, strict=True))

    assert_binomial(wrong(corrupting), 2000, 0.1)
    assert wrong(replace(corrupting, k=0)) == 0
    assert wrong(replace(corrupting, silent_fallback=True)) == 0


@pytest.mark.parametrize(("temperature", "expected"), [(0.0, 0.6), (1.0, 0.4), (5.0, 0.0)])
def test_acceptance_falls_with_temperature_down_to_zero(temperature: float, expected: float) -> None:
    truth = Truth(acceptance=0.6, temperature_slope=0.2)
    assert truth.acceptance_for(segment=None, temperature=temperature) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 1, 3, 7])
@pytest.mark.parametrize("in_flight", [1, 6])
def test_true_tpot_agrees_with_playing_many_requests(k: int, in_flight: int) -> None:
    truth = Truth(k=k, acceptance=0.6, load_cost=0.05, batch_verify_cost=0.02, tail_share=0.1, tail_factor=3)
    sample = [
        decode_s(truth, script_for(truth, ask(f"prompt {i}", max_tokens=24)), in_flight=in_flight) / 23
        for i in range(500)
    ]
    assert_near(sample, true_tpot_s(truth, in_flight=in_flight, tokens=24))


@pytest.mark.slow
def test_true_speedup_agrees_with_playing_the_same_requests_on_both_arms() -> None:
    baseline, spec = Truth(seed=1), Truth(seed=2, k=4, acceptance=0.5, temperature_slope=0.1)
    segment_spec = replace(spec, segment_acceptance=(("code", 0.9),))
    scripts = [
        script_for(segment_spec, ask(f"p {i}", max_tokens=400, segment="code", temperature=1.0))
        for i in range(300)
    ]
    plain_s = baseline.tpot_s * 399
    sample = [decode_s(segment_spec, script) / plain_s for script in scripts]
    expected = true_speedup(baseline, segment_spec, segment="code", temperature=1.0, tokens=400)
    assert_near(sample, 1 / expected)


def test_noise_has_median_one_and_its_mean_is_in_the_true_times() -> None:
    truth = Truth(noise_sd=0.5)
    factors = [script_for(truth, ask(f"p {i}", max_tokens=1)).noise_factor for i in range(2000)]
    assert_near([math.log(factor) for factor in factors], 0.0)
    assert_near(factors, true_tpot_s(truth) / Truth().tpot_s)
    assert true_speedup(Truth(), truth) == 1.0
