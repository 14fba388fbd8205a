"""The reference samplers: those that promise the target's law keep it, the others miss it by what is stated."""

from __future__ import annotations

import numpy as np
import pytest

from speclift.testing.samplers import (
    RULES,
    Chain,
    Floats,
    draw_from,
    generate,
    greedy,
    law_at_one_position,
    total_variation,
    typical,
)

STEPS = 60_000
K = 3
SAMPLED = Chain.drawn(tokens=6, spread=1.5, agreement=0.8, seed=1)
CHAINS = {"sampled drafts": SAMPLED, "greedy drafts": SAMPLED.one_hot()}


def first_two(chain: Chain, rule: str) -> Floats:
    """How often each pair of first tokens was emitted after context 0; the second is the target's own where the
    step emitted one token only."""
    draws = np.random.default_rng(3)
    drafted = np.zeros((STEPS, K), dtype=np.int64)
    contexts = np.zeros((STEPS, K + 1), dtype=np.int64)
    for i in range(K):
        drafted[:, i] = draw_from(chain.draft[contexts[:, i]], draws)
        contexts[:, i + 1] = drafted[:, i]
    kept, added = RULES[rule](chain.target[contexts], chain.draft[contexts[:, :K]], drafted, draws)
    emitted = np.concatenate([drafted, added[:, None]], axis=1)
    emitted[np.arange(STEPS), kept] = added
    second = np.where(kept >= 1, emitted[:, 1], draw_from(chain.target[emitted[:, 0]], draws))
    counts = np.zeros_like(chain.target)
    np.add.at(counts, (emitted[:, 0], second), 1)
    return np.asarray(counts / STEPS)


@pytest.mark.parametrize("drafts", CHAINS)
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_lossless_rule_emits_the_targets_own_pairs(rule: str, drafts: str) -> None:
    chain = CHAINS[drafts]
    exact = chain.target[0][:, None] * chain.target
    standard_errors = (first_two(chain, rule) - exact) / np.sqrt(exact * (1 - exact) / STEPS)
    assert np.abs(standard_errors).max() < 4.5


@pytest.mark.parametrize("drafts", CHAINS)
@pytest.mark.parametrize(
    ("rule", "law", "settings"),
    [
        ("without-residual", "without-residual", {}),
        ("relaxed-1.3", "relaxed", {"factor": 1.3}),
        ("typical", "typical", {"threshold": 0.09, "alpha": 0.3}),
        ("rejection", "rejection", {}),
    ],
)
def test_the_stated_law_is_the_one_emitted(
    rule: str, law: str, settings: dict[str, float], drafts: str
) -> None:
    chain = CHAINS[drafts]
    stated = law_at_one_position(law, chain.target[0], chain.draft[0], **settings)
    assert stated.sum() == pytest.approx(1.0)
    assert total_variation(first_two(chain, rule).sum(axis=1), stated) < 0.011


@pytest.mark.parametrize("rule", ["without-residual", "relaxed-1.3", "typical"])
def test_a_lossy_rule_misses_the_target(rule: str) -> None:
    settings = {"factor": 1.3, "threshold": 0.09, "alpha": 0.3}
    law = law_at_one_position(rule.removesuffix("-1.3"), SAMPLED.target, SAMPLED.draft, **settings)
    assert total_variation(law, SAMPLED.target).mean() > 0.03


@pytest.mark.slow
def test_block_verification_keeps_at_least_as_many_drafts_as_token_by_token() -> None:
    kept = {}
    for rule in ("rejection", "block"):
        draws = np.random.default_rng(5)
        contexts = np.zeros((STEPS, K + 1), dtype=np.int64)
        for i in range(K):
            contexts[:, i + 1] = draw_from(SAMPLED.draft[contexts[:, i]], draws)
        step = (SAMPLED.target[contexts], SAMPLED.draft[contexts[:, :K]], contexts[:, 1:], draws)
        kept[rule] = RULES[rule](*step)[0].mean()
    assert kept["block"] > kept["rejection"] + 0.05


def test_greedy_matching_continues_the_targets_most_likely_text() -> None:
    chain = Chain.drawn(tokens=8, spread=2.0, agreement=0.6, seed=4)
    ids = generate(chain, greedy, sequences=3, length=40, k=4, draws=np.random.default_rng(0))
    best = chain.target.argmax(axis=1)
    assert (ids[:, 1:] == best[ids[:, :-1]]).all()


def test_typical_acceptance_keeps_everything_at_a_threshold_of_0() -> None:
    p = np.full((2, 3, 4), 0.25)
    drafted = np.array([[0, 1], [3, 2]])
    kept, _ = typical(p, p[:, :2], drafted, np.random.default_rng(0), threshold=0.0, alpha=0.3)
    assert kept.tolist() == [2, 2]


def test_a_rule_without_a_known_law_is_refused() -> None:
    with pytest.raises(ValueError, match="no law is known for rule 'magic'"):
        law_at_one_position("magic", SAMPLED.target, SAMPLED.draft)


def test_generation_has_the_length_asked_for_and_the_targets_stationary_law() -> None:
    chain = Chain.drawn(tokens=5, spread=1.0, agreement=0.7, seed=9)
    ids = generate(chain, RULES["rejection"], sequences=400, length=200, k=3, draws=np.random.default_rng(1))
    assert ids.shape == (400, 200)
    stationary = np.linalg.matrix_power(chain.target, 200)[0]
    shares = np.bincount(ids[:, 50:].ravel(), minlength=5) / ids[:, 50:].size
    assert total_variation(shares, stationary) < 0.01


@pytest.mark.parametrize("rule", RULES)
def test_a_server_without_drafts_draws_from_the_target_itself(rule: str) -> None:
    chain = Chain.drawn(tokens=4, spread=1.0, agreement=0.5, seed=3)
    ids = generate(chain, RULES[rule], sequences=200, length=50, k=0, draws=np.random.default_rng(0), start=0)
    assert ids.shape == (200, 50)
    if rule not in {"greedy", "typical"}:
        after = np.bincount(ids[:, 1:].ravel()[ids[:, :-1].ravel() == 0], minlength=4)
        assert after / after.sum() == pytest.approx(chain.target[0], abs=0.04)
