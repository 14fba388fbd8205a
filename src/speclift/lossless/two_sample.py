"""Do two servers write alike, judged by their texts alone? Support where probabilities are not to be had.

Answers to the same prompt are exchangeable if speculation changes nothing, so swapping the two at random gives
the exact law of any difference. Finds gross faults only: subtle ones need the calibration test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SHUFFLES = 2000
SHUFFLES_AT_ONCE = 100
PAIRS_MIN = 8
# More would not make a gross fault plainer.
PAIRS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTest:
    name: str
    pairs: int
    baseline: float
    arm: float
    p_value: float


def text_tests(pairs: Sequence[tuple[str, str]], *, seed: int) -> tuple[TextTest, ...]:
    """`pairs` are (baseline, arm) answers to the same prompt; empty with too few of them."""
    if len(pairs) < PAIRS_MIN:
        return ()
    words = [(first.split(), second.split()) for first, second in pairs[:PAIRS_MAX]]
    measures = {
        "words": [(float(len(a)), float(len(b))) for a, b in words],
        "distinct pairs of words": [(_distinct(a), _distinct(b)) for a, b in words],
    }
    tests = [_sign_flips(name, np.array(values), seed=seed) for name, values in measures.items()]
    return (*tests, _vocabulary(words, seed=seed))


def _distinct(words: Sequence[str]) -> float:
    bigrams = list(pairwise(words))
    return len(set(bigrams)) / len(bigrams) if bigrams else 1.0


def _sign_flips(
    name: str, values: np.ndarray[tuple[int, int], np.dtype[np.float64]], *, seed: int
) -> TextTest:
    gaps = values[:, 1] - values[:, 0]
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(SHUFFLES, len(gaps)))
    reached = np.abs(signs @ gaps) >= abs(gaps.sum()) - 1e-9
    return TextTest(
        name=name,
        pairs=len(gaps),
        baseline=float(values[:, 0].mean()),
        arm=float(values[:, 1].mean()),
        p_value=float((reached.sum() + 1) / (SHUFFLES + 1)),
    )


def _vocabulary(words: Sequence[tuple[Sequence[str], Sequence[str]]], *, seed: int) -> TextTest:
    """Chi-square between the word counts of the two, labels swapped prompt by prompt."""
    totals = Counter(word for pair in words for side in pair for word in side)
    index = {word: place for place, (word, _) in enumerate(totals.most_common())}
    gaps = np.zeros((len(words), len(index)))
    for row, (first, second) in enumerate(words):
        for word in second:
            gaps[row, index[word]] += 1
        for word in first:
            gaps[row, index[word]] -= 1
    weights = 1.0 / np.array([totals[word] for word in index], dtype=float) if index else np.zeros(0)
    draws = np.random.default_rng(seed)

    def distance(signs: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        return float((((signs @ gaps) ** 2) * weights).sum())

    own = distance(np.ones(len(words)))
    reached = sum(distance(draws.choice((-1.0, 1.0), size=len(words))) >= own - 1e-9 for _ in range(SHUFFLES))
    return TextTest(
        name="words used",
        pairs=len(words),
        baseline=float(len({word for first, _ in words for word in first})),
        arm=float(len({word for _, second in words for word in second})),
        p_value=(reached + 1) / (SHUFFLES + 1),
    )
