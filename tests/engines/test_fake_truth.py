"""The fake server's truth: parsing it, what it does to a request, and the figures a study must find."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.errors import UsageError
from speclift.testing.fake_truth import (
    FakeAnswer,
    FakeRequest,
    Fault,
    Truth,
    launch_factor,
    parse_truth,
    script_for,
    true_speedup,
    true_tpot_s,
    true_ttft_s,
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


@pytest.mark.parametrize(
    ("pair", "name", "value"),
    [
        ("tpot_s=0.004", "tpot_s", 0.004),
        ("k=5", "k", 5),
        ("flavour=vllm", "flavour", "vllm"),
        ("tokens_per_chunk=3", "tokens_per_chunk", 3),
        ("tokens_per_chunk=step", "tokens_per_chunk", "step"),
        ("never_ready=true", "never_ready", True),
        ("silent_fallback=0", "silent_fallback", False),
        ("acceptance.code=0.9", "segment_acceptance", (("code", 0.9),)),
    ],
)
def test_a_pair_sets_its_field_in_the_field_s_own_type(pair: str, name: str, value: object) -> None:
    seen = getattr(parse_truth([pair]), name)
    assert (seen, type(seen)) == (value, type(value))


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("tpot=0.1", "unknown truth 'tpot'. Did you mean 'tpot_s'?"),
        ("acceptance.=0.1", "unknown truth 'acceptance.'. Did you mean 'acceptance'?"),
        ("segment_acceptance=1", "unknown truth 'segment_acceptance'"),
        ("k", "key=value, saw 'k'"),
        ("k=two", "k must be a whole number, saw 'two'"),
        ("k=1.5", "k must be a whole number, saw '1.5'"),
        ("k=-1", "k is out of range, saw -1"),
        ("k=100000", "k is out of range"),
        ("tpot_s=fast", "tpot_s must be a number, saw 'fast'"),
        ("tpot_s=0", "tpot_s is out of range, saw 0"),
        ("ttft_s=nan", "ttft_s is out of range, saw nan"),
        ("ttft_s=inf", "ttft_s is out of range, saw inf"),
        ("acceptance=1.2", "acceptance is out of range, saw 1.2"),
        ("acceptance.code=-0.1", "acceptance.code is out of range, saw -0.1"),
        ("cut_share=2", "cut_share is out of range, saw 2"),
        ("never_ready=maybe", "never_ready is a switch, saw 'maybe'"),
        ("flavour=vlm", "unknown flavour 'vlm'. Did you mean 'vllm'?"),
        ("tokens_per_chunk=0", "tokens_per_chunk is out of range"),
        ("tokens_per_chunk=burst", "a whole number or 'step', saw 'burst'"),
    ],
)
def test_a_wrong_pair_says_what_was_seen(pair: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_truth([pair])
    assert said in str(caught.value)


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


def test_the_same_request_gets_the_same_script_and_another_seed_another() -> None:
    truth = Truth(k=4)
    assert script_for(truth, ask()) == script_for(truth, ask())
    assert script_for(truth, ask()).steps != script_for(truth, ask(seed=1)).steps
    assert script_for(truth, ask()).steps != script_for(replace(truth, seed=1), ask()).steps


def test_another_k_meets_the_same_easy_and_hard_tokens() -> None:
    """A run with k = 64 reveals which positions are easy; a run with k = 1 must agree wherever it drafts."""
    longest = script_for(Truth(k=64, acceptance=0.6), ask())
    easy = {position for burst in longest.bursts[1:] for position in range(burst.start, burst.end - 1)}
    hard = {burst.end - 1 for burst in longest.bursts[1:-1]}
    for burst in script_for(Truth(k=1, acceptance=0.6), ask()).bursts[1:-1]:
        accepted = burst.end - burst.start == 2
        assert burst.start in easy if accepted else burst.start in hard


def test_greedy_text_depends_on_the_prompt_alone() -> None:
    plain = script_for(Truth(), ask()).token_ids
    assert script_for(Truth(k=5, seed=9), ask(seed=3)).token_ids == plain
    assert script_for(Truth(), ask("another prompt")).token_ids != plain


def test_sampled_text_depends_on_the_request_seed_but_not_on_speculation() -> None:
    sampled = script_for(Truth(), ask(temperature=0.8, seed=1)).token_ids
    assert script_for(Truth(k=5), ask(temperature=0.8, seed=1)).token_ids == sampled
    assert script_for(Truth(), ask(temperature=0.8, seed=2)).token_ids != sampled


def test_wrong_tokens_come_at_their_share_and_only_with_speculation() -> None:
    request = ask(max_tokens=2000)
    right = script_for(Truth(), request).token_ids
    corrupting = Truth(k=3, wrong_token_share=0.1)

    def wrong(truth: Truth) -> int:
        return sum(a != b for a, b in zip(script_for(truth, request).token_ids, right, strict=True))

    assert_binomial(wrong(corrupting), 2000, 0.1)
    assert wrong(replace(corrupting, k=0)) == 0
    assert wrong(replace(corrupting, silent_fallback=True)) == 0


@pytest.mark.parametrize(
    ("share", "fault"),
    [
        ("http_500_share", Fault.HTTP_500),
        ("cut_share", Fault.CUT),
        ("garbage_share", Fault.GARBAGE),
        ("stall_share", Fault.STALL),
    ],
)
def test_a_fault_strikes_its_share_of_requests_and_no_other_fault_does(share: str, fault: Fault) -> None:
    truth = parse_truth([f"{share}=0.3"])
    struck = [script_for(truth, ask(f"prompt {i}", max_tokens=1)).faults for i in range(1000)]
    assert_binomial(struck.count(frozenset({fault})), 1000, 0.3)
    assert set(struck) == {frozenset(), frozenset({fault})}


@pytest.mark.parametrize(("temperature", "expected"), [(0.0, 0.6), (1.0, 0.4), (5.0, 0.0)])
def test_acceptance_falls_with_temperature_down_to_zero(temperature: float, expected: float) -> None:
    truth = Truth(acceptance=0.6, temperature_slope=0.2)
    assert truth.acceptance_for(segment=None, temperature=temperature) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("drafted", "in_flight", "expected_s"),
    [(0, 1, 0.01), (4, 1, 0.014), (0, 3, 0.02), (4, 3, 0.06), (4, 0, 0.014)],
)
def test_a_step_costs_more_per_drafted_token_and_per_other_request(
    drafted: int, in_flight: int, expected_s: float
) -> None:
    truth = Truth(tpot_s=0.01, step_cost=0.1, load_cost=0.5, batch_verify_cost=0.2)
    assert truth.step_s(drafted=drafted, in_flight=in_flight) == pytest.approx(expected_s)


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


def test_the_launch_factor_is_drawn_from_the_seed() -> None:
    truth = Truth(launch_sd=0.2)
    logs = [math.log(launch_factor(replace(truth, seed=seed))) for seed in range(2000)]
    assert_near(logs, 0.0)
    assert statistics.stdev(logs) == pytest.approx(0.2, rel=0.1)
    assert launch_factor(truth) == launch_factor(replace(truth, k=3))
    assert launch_factor(Truth(seed=5)) == 1.0


def test_time_to_first_token_grows_with_the_prompt_and_the_drafter() -> None:
    truth = Truth(ttft_s=0.1, prefill_s_per_token=0.01, draft_prefill_s=0.05)
    assert true_ttft_s(truth, prompt_tokens=10) == pytest.approx(0.2)
    assert true_ttft_s(replace(truth, k=1), prompt_tokens=10) == pytest.approx(0.25)
