from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.arithmetic.cost import (
    IDEAL,
    DraftPasses,
    EngineLosses,
    ForwardModel,
    Hardware,
    LookUp,
    draft_pass_s,
    experts_touched,
    first_loss,
    forward_s,
    step_s,
)

HARDWARE = Hardware(bandwidth_bytes_s=1e12, flops_s=1e14)
DENSE = ForwardModel(
    dense_bytes=10**10, expert_bytes=0, experts=0, experts_per_token=0, active_parameters=5 * 10**9,
    kv=((1e5, None),), layers=32, hidden=4096, math_bits=16, hardware=HARDWARE,
)  # fmt: skip
MOE = replace(DENSE, dense_bytes=10**9, expert_bytes=9 * 10**9, experts=8, experts_per_token=2)


def test_one_token_costs_the_time_to_read_the_weights_and_its_keys() -> None:
    assert forward_s(DENSE, tokens=1, sequences=1, context=1000) == pytest.approx(0.01 + 1e-4)


def test_a_large_batch_costs_its_arithmetic() -> None:
    assert forward_s(DENSE, tokens=1000, sequences=1, context=0) == pytest.approx(1000 * 1e10 / 1e14)


def test_the_ridge_is_where_arithmetic_takes_over() -> None:
    """Ridge tokens = FLOPS x bytes per weight / (2 x bandwidth): 100 here."""
    one, ridge, beyond = (forward_s(DENSE, tokens=n, sequences=1, context=0) for n in (1, 100, 200))
    assert one == pytest.approx(ridge)
    assert beyond == pytest.approx(2 * ridge)


def test_a_window_bounds_what_is_read_of_the_context() -> None:
    windowed = replace(DENSE, kv=((1e5, 500),))
    assert forward_s(windowed, tokens=1, sequences=1, context=10_000) == pytest.approx(0.01 + 5e-5)


@pytest.mark.parametrize(
    ("experts", "per_token", "ratios"),
    [
        (8, 2, {1: 2.73, 4: 1.45, 16: 1.01, 64: 1.00}),
        (128, 8, {1: 3.64, 4: 2.83, 16: 1.53, 64: 1.02}),
        (256, 8, {1: 3.82, 4: 3.34, 16: 2.18, 64: 1.15}),
    ],
)
def test_checking_four_tokens_wakes_more_experts_than_one(
    experts: int, per_token: int, ratios: dict[int, float]
) -> None:
    """Verify/decode ratio of expert bytes at k = 3 under uniform routing."""
    found = {
        batch: experts_touched(4 * batch, experts, per_token) / experts_touched(batch, experts, per_token)
        for batch in ratios
    }
    assert found == pytest.approx(ratios, abs=0.01)


def test_a_dense_check_is_nearly_free_at_low_load_and_a_sparse_one_is_not() -> None:
    def ratio(model: ForwardModel) -> float:
        return step_s(model, concurrency=1, context=0, k=3, drafting=LookUp()) / step_s(
            model, concurrency=1, context=0
        )

    assert ratio(DENSE) == pytest.approx(1.0)
    assert ratio(MOE) > 1.8


def test_a_draft_is_paid_per_token_and_has_a_floor_without_graphs() -> None:
    draft = replace(DENSE, dense_bytes=10**9, layers=16)
    eager = EngineLosses(draft_layer_s=1e-3)

    assert draft_pass_s(draft, concurrency=1, context=0) == pytest.approx(1e-3)
    assert draft_pass_s(draft, concurrency=1, context=0, losses=eager) == pytest.approx(16e-3)
    plain = step_s(DENSE, concurrency=1, context=0)
    drafted = step_s(DENSE, concurrency=1, context=0, k=4, drafting=DraftPasses(model=draft))
    assert drafted - plain == pytest.approx(4e-3)


def test_losses_add_up_and_plain_steps_pay_none_of_speculation() -> None:
    losses = EngineLosses(bandwidth_share=0.5, step_s=1e-3, speculation_s=2e-3, ngram_sequence_s=1e-4)

    assert step_s(DENSE, concurrency=1, context=0, losses=losses) == pytest.approx(0.021)
    looked_up = step_s(DENSE, concurrency=10, context=0, k=1, drafting=LookUp(), losses=losses)
    assert looked_up == pytest.approx(0.021 + 2e-3 + 1e-3)


def test_eight_bits_have_a_share_of_their_own() -> None:
    losses = EngineLosses(compute_share=0.5, narrow_compute_share=0.25)
    wide, narrow = (
        forward_s(replace(DENSE, math_bits=bits), tokens=1000, sequences=1, context=0, losses=losses)
        for bits in (16, 8)
    )
    assert narrow == pytest.approx(2 * wide)


def test_a_group_pays_two_exchanges_per_layer() -> None:
    group = replace(DENSE, hardware=replace(HARDWARE, exchange_s=1e-5))
    alone = forward_s(DENSE, tokens=1, sequences=1, context=0)
    assert forward_s(group, tokens=1, sequences=1, context=0) - alone == pytest.approx(64e-5)


@pytest.mark.parametrize(("concurrency", "k"), [(0, 1), (1, -1)])
def test_impossible_steps_are_refused(concurrency: int, k: int) -> None:
    with pytest.raises(ValueError, match="at least 1 sequence"):
        step_s(DENSE, concurrency=concurrency, context=0, k=k)


def test_the_first_loss_is_the_first_load_below_one() -> None:
    assert first_loss(lambda load: 4 / load, [1, 2, 4, 8, 16]) == 8
    assert first_loss(lambda _: 2.0, [1, 2]) is None


@given(
    tokens=st.integers(1, 4096),
    context=st.floats(0, 1e5),
    overlap=st.sampled_from([1.0, 1.5, 2.0, 4.0, math.inf]),
    share=st.floats(0.1, 1.0),
)
def test_no_loss_makes_a_pass_faster_than_the_roofline(
    tokens: int, context: float, overlap: float, share: float
) -> None:
    losses = EngineLosses(bandwidth_share=share, compute_share=share, overlap=overlap)
    for model in (DENSE, MOE):
        ideal = forward_s(model, tokens=tokens, sequences=1, context=context, losses=IDEAL)
        real = forward_s(model, tokens=tokens, sequences=1, context=context, losses=losses)
        assert real >= ideal * (1 - 1e-9)


@given(batch=st.integers(1, 512), k=st.integers(0, 16))
def test_more_work_never_takes_less_time(batch: int, k: int) -> None:
    now = step_s(MOE, concurrency=batch, context=100, k=k, drafting=LookUp())
    assert step_s(MOE, concurrency=batch + 1, context=100, k=k, drafting=LookUp()) >= now
    assert step_s(MOE, concurrency=batch, context=100, k=k + 1, drafting=LookUp()) >= now


def test_experts_are_read_in_proportion_to_how_many_wake() -> None:
    """One token wakes 2 of 8: a quarter of 9 GB, beside 1 GB that is always read."""
    assert forward_s(MOE, tokens=1, sequences=1, context=0) == pytest.approx(0.00325)


def test_an_exchange_carries_two_bytes_per_hidden_value_of_every_token() -> None:
    group = replace(DENSE, hardware=replace(HARDWARE, exchange_s=1e-5, exchange_bytes_s=1e9))
    alone = forward_s(DENSE, tokens=3, sequences=1, context=0)
    message_s = 3 * 4096 * 2 / 1e9
    assert forward_s(group, tokens=3, sequences=1, context=0) - alone == pytest.approx(
        64 * (1e-5 + message_s)
    )


def test_memory_and_arithmetic_overlap_as_far_as_the_engine_lets_them() -> None:
    """At the ridge both take 10 ms: their sum without any overlap, the root of two for r = 2, one of them at best."""
    took_s = {
        overlap: forward_s(DENSE, tokens=100, sequences=1, context=0, losses=EngineLosses(overlap=overlap))
        for overlap in (1.0, 2.0, math.inf)
    }
    assert took_s == pytest.approx({1.0: 0.02, 2.0: 0.01 * math.sqrt(2), math.inf: 0.01})


def test_a_model_of_nothing_takes_no_time_whatever_the_overlap() -> None:
    nothing = replace(DENSE, dense_bytes=0, active_parameters=0)
    assert forward_s(nothing, tokens=1, sequences=1, context=0, losses=EngineLosses(overlap=2.0)) == 0.0


def test_neither_a_drafter_at_k_0_nor_a_k_without_drafter_pays_for_speculation() -> None:
    losses = EngineLosses(speculation_s=1.0)
    for k, drafting in ((0, LookUp()), (0, None), (3, None)):
        seconds = step_s(DENSE, concurrency=1, context=0, k=k, drafting=drafting, losses=losses)
        assert seconds == pytest.approx(forward_s(DENSE, tokens=k + 1, sequences=1, context=0))


def test_a_draft_pass_pays_for_the_step_it_is() -> None:
    losses = EngineLosses(step_s=2e-3)
    assert draft_pass_s(DENSE, concurrency=1, context=0, losses=losses) == pytest.approx(0.012)
