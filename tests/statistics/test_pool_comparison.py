"""Two pools compared on live traffic, on designs with a known truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from speclift.statistics.pool_comparison import (
    GROUPS,
    GROUPS_MIN,
    FadingEvidence,
    PoolEvidence,
    anytime_speedup,
    no_evidence,
    pool_evidence,
)

ALPHA = 0.05


def drawn(
    rng: np.random.Generator,
    count: int,
    *,
    truth: float = 1.0,
    share: float = 0.95,
    classes: int = 4,
    turns: int = 1,
    slow: float = 0.02,
) -> PoolEvidence:
    """Requests whose class decides how long they take; `turns` of one session are slow together."""
    session = np.arange(count) // turns
    kind = rng.integers(0, classes, count)
    spec = rng.random(count) < share
    logs = 0.7 * kind + rng.normal(0, 0.5, session.max(initial=0) + 1)[session] + rng.normal(0, 0.3, count)
    logs += np.where(rng.random(count) < slow, math.log(6), 0) - spec * math.log(truth)
    return pool_evidence(kind, session % GROUPS, spec, np.exp(logs))


def by_hand(kinds: list[int], spec: list[bool], taken: list[float]) -> float:
    """The classes' differences of mean logarithms, weighted by the harmonic mean of their counts."""
    total = weights = 0.0
    for kind in set(kinds):
        fast = [math.log(t) for k, s, t in zip(kinds, spec, taken, strict=True) if k == kind and s]
        slow = [math.log(t) for k, s, t in zip(kinds, spec, taken, strict=True) if k == kind and not s]
        if fast and slow:
            weight = len(fast) * len(slow) / (len(fast) + len(slow))
            total += weight * (sum(slow) / len(slow) - sum(fast) / len(fast))
            weights += weight
    return total / weights


def test_classes_are_weighted_by_the_harmonic_mean_of_their_counts() -> None:
    rng = np.random.default_rng(1)
    kinds, spec = [*rng.integers(0, 5, 400)], [*(rng.random(400) < 0.9)]
    taken = [*rng.lognormal(0, 0.5, 400)]
    evidence = pool_evidence(kinds, [*(n % GROUPS for n in range(400))], spec, taken)
    assert evidence.scores.sum() / evidence.weights.sum() == pytest.approx(by_hand(kinds, spec, taken))


def test_evidence_adds_up() -> None:
    rng = np.random.default_rng(2)
    parts = [drawn(rng, 500) for _ in range(3)]
    whole = parts[0] + parts[1] + parts[2]
    assert whole.rows == sum(part.rows for part in parts)
    assert whole.squares == pytest.approx(sum(part.squares for part in parts))
    assert (whole + no_evidence()).weights.sum() == pytest.approx(whole.weights.sum())


@pytest.mark.parametrize("per_pool", [0, 1, 2, 3, GROUPS_MIN - 1])
def test_few_requests_say_nothing(per_pool: int) -> None:
    rng = np.random.default_rng(per_pool)
    spec = [True] * per_pool + [False] * per_pool
    evidence = pool_evidence([0] * len(spec), range(len(spec)), spec, rng.lognormal(0, 0.1, len(spec)))
    assert anytime_speedup(evidence, alpha=ALPHA) is None


def test_many_turns_of_few_sessions_say_nothing() -> None:
    rng = np.random.default_rng(3)
    spec = rng.random(5000) < 0.5
    evidence = pool_evidence([0] * 5000, rng.integers(0, 10, 5000), spec, rng.lognormal(0, 0.1, 5000))
    assert anytime_speedup(evidence, alpha=ALPHA) is None


def test_classes_that_one_pool_saw_alone_add_nothing() -> None:
    """Whatever else differs between them, as load does: a pool that is idle is compared with nobody."""
    rng = np.random.default_rng(4)
    spec = np.arange(2000) % 2 == 0
    taken = rng.lognormal(0, 0.1, 2000) * np.where(spec, 5.0, 1.0)
    assert pool_evidence(spec.astype(int), np.arange(2000) % GROUPS, spec, taken).rows == 0
    shared = np.where(np.arange(2000) < 1000, 0, 1 + spec)
    assert pool_evidence(shared, np.arange(2000) % GROUPS, spec, taken).rows == 1000


@pytest.mark.parametrize("faster", [1.0, 1.25])
def test_requests_that_take_the_same_give_an_interval_with_width(faster: float) -> None:
    spec = np.arange(2000) % 10 != 0
    taken = np.where(spec, 1.0 / faster, 1.0)
    speedup = anytime_speedup(pool_evidence([0] * 2000, np.arange(2000) % GROUPS, spec, taken), alpha=ALPHA)
    assert speedup is not None
    assert speedup.low < speedup.value < speedup.high
    assert speedup.value == pytest.approx(faster)
    assert speedup.excludes(1.0) == (faster != 1)


@pytest.mark.parametrize("truth", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("share", [0.95, 0.5, 0.05])
def test_a_known_truth_lies_in_the_interval(truth: float, share: float) -> None:
    speedup = anytime_speedup(drawn(np.random.default_rng(5), 20_000, truth=truth, share=share), alpha=ALPHA)
    assert speedup is not None
    assert speedup.low < truth < speedup.high
    assert speedup.high / speedup.low < 1.25
    assert speedup.excludes(1.0) == (truth != 1)


def test_what_changes_over_the_day_moves_nothing_within_blocks() -> None:
    """A pool that gets more of the traffic while everything is slow."""
    rng = np.random.default_rng(6)
    blocks, together = no_evidence(), []
    for hour in range(48):
        spec = rng.random(200) < (0.9 if hour % 2 else 0.5)
        taken = rng.lognormal(2.0 * (hour % 2), 0.2, 200)
        blocks = blocks + pool_evidence([0] * 200, rng.integers(0, GROUPS, 200), spec, taken)
        together.append((spec, taken))
    whole = pool_evidence(
        [0] * 9600,
        np.arange(9600) % GROUPS,
        np.concatenate([spec for spec, _ in together]),
        np.concatenate([taken for _, taken in together]),
    )
    held, fooled = (anytime_speedup(evidence, alpha=ALPHA) for evidence in (blocks, whole))
    assert held is not None
    assert fooled is not None
    assert not held.excludes(1.0)
    assert fooled.high < 0.7


def test_turns_of_a_conversation_are_not_independent() -> None:
    """Where whole sessions went to one pool, ten turns of each say little more than one."""
    rng = np.random.default_rng(7)
    session = np.arange(5000) // 10
    spec = (rng.random(500) < 0.5)[session]
    taken = np.exp(rng.normal(0, 0.5, 500)[session] + rng.normal(0, 0.05, 5000))
    clustered = pool_evidence([0] * 5000, session % GROUPS, spec, taken)
    alone = pool_evidence([0] * 5000, rng.integers(0, GROUPS, 5000), spec, taken)
    wide, narrow = (anytime_speedup(evidence, alpha=ALPHA) for evidence in (clustered, alone))
    assert wide is not None
    assert narrow is not None
    assert math.log(wide.high / wide.low) > 2.5 * math.log(narrow.high / narrow.low)


def test_a_canary_without_the_slowest_requests_is_not_taken_for_steady() -> None:
    rng = np.random.default_rng(8)
    spec = np.arange(2000) >= 60
    taken = np.where(spec, rng.lognormal(0, 0.8, 2000), 1.0)
    evidence = pool_evidence([0] * 2000, np.arange(2000) % GROUPS, spec, taken)
    honest = anytime_speedup(evidence, alpha=ALPHA)
    steady = anytime_speedup(replace(evidence, squares=0.0), alpha=ALPHA)
    assert honest is not None
    assert steady is not None
    assert math.log(honest.high / honest.low) > 1.5 * math.log(steady.high / steady.low)


@pytest.mark.slow
def test_looking_after_every_block_is_allowed() -> None:
    """Of 60 days without a difference that are looked at 60 times each, a fixed interval fails on a third and more."""
    rng = np.random.default_rng(9)
    wrong = 0
    for _ in range(60):
        evidence = no_evidence()
        for _ in range(60):
            evidence = evidence + drawn(rng, 200, turns=2)
            speedup = anytime_speedup(evidence, alpha=ALPHA)
            if speedup is not None and speedup.excludes(1.0):
                wrong += 1
                break
    assert wrong <= 6  # 3 expected at most; more than 6 has a probability of 3 %


def test_old_evidence_fades() -> None:
    fading = FadingEvidence(horizon_s=100.0)
    rng = np.random.default_rng(10)
    rows = []
    for now_s in range(0, 400, 10):
        fading.add(drawn(rng, 100, share=0.5), now_s=float(now_s))
        assert 1 <= len(fading.newest_first) <= 2
        rows.append(max(evidence.rows for evidence in fading.newest_first))
    assert max(rows) <= 1000
    assert min(rows[10:]) >= 400  # never less than half of the horizon
    fading.add(no_evidence(), now_s=10_000.0)
    assert [evidence.rows for evidence in fading.newest_first] == [0]
    fading.clear()
    assert fading.newest_first == ()
