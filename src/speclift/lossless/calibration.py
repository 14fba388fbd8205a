"""Do sampled tokens follow the target's own probabilities? The martingale test, from one run of the arm.

For any set B_t fixed by the text before t, 1[X_t in B_t] - p_t(B_t) has mean 0 given that text, whatever the
tokens' dependence; the sum over all tokens divided by the root of sum p(1-p) is then close to normal. Every
token counts and no prompt is repeated. Where probabilities are known only within bounds, the sum is moved
towards 0 by all that they leave open.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.lossless.gate import SetTest, TextTest

TOP_SETS = (1, 3, 8)
LOOKUP = "lookup"
LIKELIHOOD = "likelihood"
# Below this variance the sum is no normal one: about ten tokens of even odds, or a thousand sure ones.
VARIANCE_MIN = 10.0
# A cut such as top-p, moved by numerics, may leave out a token that was said: it is rare, not impossible.
LOG_FLOOR = 1e-4
# Shortest repeat that a lookup drafter would copy from.
LOOKUP_TOKENS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """One sampled token under the target: `top` are the likeliest tokens after temperature and cuts, falling.

    `tail_low` and `tail_high` bound the probability of all others; `top` sums to 1 - tail_low.
    """

    chosen: int
    top: tuple[tuple[int, float], ...]
    tail_low: float
    tail_high: float
    # Of the token said, where it is known beyond the list.
    chosen_probability: float | None = None
    # What a lookup in the text so far would have drafted here.
    lookup: int | None = None


def counts_test(
    name: str, *, tokens: int, observed: float, expected: float, variance: float, slack: float = 0.0
) -> SetTest:
    distance = observed - expected
    beyond = math.copysign(max(0.0, abs(distance) - slack), distance)
    z = beyond / math.sqrt(variance) if variance > 0 else 0.0
    return SetTest(
        name=name,
        tokens=tokens,
        observed=observed,
        expected=expected,
        deviation=distance / tokens if tokens else 0.0,
        z=z,
        p_value=float(2 * special.ndtr(-abs(z))),
        is_usable=variance >= VARIANCE_MIN,
        slack=slack,
        variance=variance,
    )


def set_test(
    name: str,
    hits: NDArray[np.bool_],
    probabilities: NDArray[np.float64],
    slacks: NDArray[np.float64] | None = None,
) -> SetTest:
    return counts_test(
        name,
        tokens=len(hits),
        observed=float(hits.sum()),
        expected=float(probabilities.sum()),
        variance=float((probabilities * (1 - probabilities)).sum()),
        slack=0.0 if slacks is None else float(slacks.sum()),
    )


def calibrate(scores: Iterable[TokenScore]) -> tuple[SetTest, ...]:
    """The likeliest token, the top 3 and 8, what a lookup would draft, and the likelihood of the whole."""
    columns: dict[str, list[tuple[bool, float, float]]] = {f"top-{n}": [] for n in TOP_SETS}
    columns[LOOKUP] = []
    moments: list[tuple[float, float, float, float]] = []
    for score in scores:
        tail, scale, half = _middle(score)
        ids = [token for token, _ in score.top]
        masses = [scale * mass for _, mass in score.top]
        for n in TOP_SETS:
            mass = min(1.0, sum(masses[:n]))
            columns[f"top-{n}"].append((score.chosen in ids[:n], mass, mass * half))
        if score.lookup is not None and score.lookup in ids:
            mass = masses[ids.index(score.lookup)]
            columns[LOOKUP].append((score.chosen == score.lookup, mass, mass * half))
        moments.append(_log_moments(score.chosen, ids, masses, tail=tail, half=half))
    tests = [_column_test(name, rows) for name, rows in columns.items() if rows]
    return (*tests, _likelihood_test(moments))


def _middle(score: TokenScore) -> tuple[float, float, float]:
    """The tail in the middle of its bounds, the factor that makes room for it, and half of what is left open."""
    tail = (score.tail_low + score.tail_high) / 2
    scale = (1.0 - tail) / max(1e-12, 1.0 - score.tail_low)
    return tail, scale, (score.tail_high - score.tail_low) / 2


def _likelihood_test(moments: Sequence[tuple[float, float, float, float]]) -> SetTest:
    observed, mean, variance, slack = (sum(row[i] for row in moments) for i in range(4))
    return counts_test(
        LIKELIHOOD,
        tokens=len(moments),
        observed=observed,
        expected=mean,
        variance=variance,
        slack=slack,
    )


def _column_test(name: str, rows: Sequence[tuple[bool, float, float]]) -> SetTest:
    hits, masses, slacks = zip(*rows, strict=True)
    return set_test(name, np.array(hits), np.array(masses), np.array(slacks))


def _log_moments(
    chosen: int, ids: Sequence[int], masses: Sequence[float], *, tail: float, half: float
) -> tuple[float, float, float, float]:
    """log p of what was said, its mean and variance by the target, and what bounds leave open; the tail counts
    as one token, so that nothing beyond what the server listed is needed."""
    parts = [(mass, math.log(max(LOG_FLOOR, mass))) for mass in masses]
    rest = math.log(max(LOG_FLOOR, tail))
    parts.append((tail, rest))
    mean = sum(mass * log for mass, log in parts)
    variance = sum(mass * (log - mean) ** 2 for mass, log in parts)
    observed = parts[ids.index(chosen)][1] if chosen in ids else rest
    return observed, mean, variance, half * abs(rest - mean)


def lookups(prompt: Sequence[int], output: Sequence[int], *, size: int = LOOKUP_TOKENS) -> list[int | None]:
    """A token for each output token: what followed the latest earlier occurrence of the `size` tokens before it."""
    text = [*prompt, *output]
    seen: dict[tuple[int, ...], int] = {}
    followers: list[int | None] = []
    for position, token in enumerate(text):
        key = tuple(text[max(0, position - size) : position])
        if position >= len(prompt):
            followers.append(seen.get(key) if len(key) == size else None)
        if len(key) == size:
            seen[key] = token
    return followers


# Tokens that the target does not know

# No vocabulary in use is larger (Gemma's has 262,144 tokens): a uniform law over it sums to at most 1.
VOCABULARY_MAX = 1 << 18
FOREIGN_SHARE = 0.01
# Cuts (top-p, min-p) that numerics move leave out a token that was said about this often.
MOVED_CUT_SHARE = 1e-3


def foreign_tokens(scores: Iterable[TokenScore], *, control: Sequence[TokenScore] = ()) -> float:
    """The p-value of "no token came from elsewhere".

    With the whole law listed, tokens outside it are counted against what a moved cut explains and what the baseline's
    own answers show of it. Otherwise a test martingale: M = product of (1 - s) + s u(X)/p(X), u uniform over the
    vocabulary, has mean at most 1 under the target, so P(M >= 1/a) <= a (Ville), with no approximation.
    """
    outside, listed = _outside(scores := list(scores))
    counted = float(special.pdtrc(outside - 1, moved_cut_share(control) * listed)) if outside else 1.0
    log_m = 0.0
    for score in scores:
        if score.tail_high > 0 and score.chosen_probability is not None:
            ratio = 1.0 / VOCABULARY_MAX / max(1e-30, score.chosen_probability)
            log_m += math.log(1.0 - FOREIGN_SHARE + FOREIGN_SHARE * ratio)
    return min(1.0, 2 * min(counted, math.exp(-max(0.0, log_m))))


def moved_cut_share(control: Sequence[TokenScore]) -> float:
    """How often a token that a cut left out is said by a server without speculation."""
    outside, listed = _outside(control)
    return MOVED_CUT_SHARE + (outside / listed if listed else 0.0)


def _outside(scores: Iterable[TokenScore]) -> tuple[int, int]:
    """Tokens outside a law that is listed whole, and all tokens with such a law."""
    whole = [score for score in scores if score.tail_high <= 0]
    return sum(score.chosen not in [token for token, _ in score.top] for score in whole), len(whole)


# How many tokens for which deviation


def tokens_needed(detect: float, *, alpha: float, power: float, variance: float = 0.25) -> int:
    """n = (z_alpha + z_power)^2 v / d^2 for a deviation of probability d of one set; v is at most 1/4."""
    reach = -float(special.ndtri(alpha / 2) + special.ndtri(1 - power))
    return math.ceil(reach**2 * variance / detect**2)


def detectable(tokens: int, *, alpha: float, power: float, variance: float = 0.25) -> float:
    """The deviation that this many tokens would find with `power`."""
    if tokens <= 0:
        return float("inf")
    reach = -float(special.ndtri(alpha / 2) + special.ndtri(1 - power))
    return reach * math.sqrt(variance / tokens)


def tempered(
    logprobs: Mapping[int, float], *, temperature: float
) -> tuple[tuple[tuple[int, float], ...], float, float]:
    """Top log-probabilities at temperature 1 to probabilities at another, and bounds on what is left out.

    Below 1 the unlisted tokens lose weight: each has at most the smallest listed probability m, so together at
    most tail m^(1/T - 1). At 1 the tail is known exactly. Above 1 it cannot be bounded and this refuses.
    """
    if not 0 < temperature <= 1:
        raise ValueError(
            f"probabilities at temperature {temperature} do not follow from the likeliest tokens"
        )
    ranked = sorted(logprobs.items(), key=lambda entry: -entry[1])
    tail = max(0.0, 1.0 - sum(math.exp(value) for _, value in ranked))
    smallest = math.exp(ranked[-1][1])
    weights = [(token, math.exp(value / temperature)) for token, value in ranked]
    listed = sum(weight for _, weight in weights)
    if temperature == 1:
        total = listed + tail
        return tuple((token, weight / total) for token, weight in weights), tail / total, tail / total
    most = tail * smallest ** (1 / temperature - 1)
    return tuple((token, weight / listed) for token, weight in weights), 0.0, most / (listed + most)


# Texts alone

SHUFFLES = 2000
PAIRS_MIN = 8
# More would not make a gross fault plainer.
PAIRS_MAX = 200


# Do two servers write alike, judged by their texts alone? Support where probabilities are not to be had. Answers to the
# same prompt are exchangeable if speculation changes nothing, so swapping the two at random gives the exact law of any
# difference. Finds gross faults only.


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

    observed = distance(np.ones(len(words)))
    reached = sum(
        distance(draws.choice((-1.0, 1.0), size=len(words))) >= observed - 1e-9 for _ in range(SHUFFLES)
    )
    return TextTest(
        name="words used",
        pairs=len(words),
        baseline=float(len({word for first, _ in words for word in first})),
        arm=float(len({word for _, second in words for word in second})),
        p_value=(reached + 1) / (SHUFFLES + 1),
    )
