"""The reference samplers: those that promise the target's law keep it, the others miss it by what is stated."""

from __future__ import annotations

import numpy as np
import pytest

from speclift.testing.samplers import (
    RULES,
    Chain,
    Floats,
    draw_from,
    law_at_one_position,
    total_variation,
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
