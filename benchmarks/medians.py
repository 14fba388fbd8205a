"""The geometric mean of paired E2E beside S3's median of E2E: when are they the same? The table of docs/method.md.

    python benchmarks/medians.py [--draws 1000000] [--studies 4000] [--seed 1]

Answers have log-normal lengths; TTFT is 0.2 s, a token 20 ms; both vary by 6 % from request to request. What a case
says is the gain per token of each request. About ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trials import trial_options

Floats = NDArray[np.float64]

TTFT_S, TPOT_S = 0.2, 0.02
TOKENS_MEDIAN, TOKENS_SD = 128.0, 0.8
NOISE_SD = 0.06
PROMPTS = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    # From output tokens to each request's gain per token.
    gains: Callable[[Floats, np.random.Generator], Floats]
    ttft_gains: bool = False


def cases() -> Iterator[Case]:
    def alike(tokens: Floats, _random: np.random.Generator) -> Floats:
        return np.full(len(tokens), 1.5)

    def spread(tokens: Floats, random: np.random.Generator) -> Floats:
        return 1.5 * np.exp(random.normal(0.0, 0.3, len(tokens)))

    def some(share: float, gain: float, rest: float) -> Callable[[Floats, np.random.Generator], Floats]:
        return lambda tokens, random: np.where(random.random(len(tokens)) < share, gain, rest)

    def by_length(
        gain: float, rest: float, *, is_long: bool
    ) -> Callable[[Floats, np.random.Generator], Floats]:
        """The longest, or the shortest, 30 % of the answers gain."""
        edge = 0.7 if is_long else 0.3

        def gains(tokens: Floats, _random: np.random.Generator) -> Floats:
            beyond = tokens > np.quantile(tokens, edge)
            return np.where(beyond == is_long, gain, rest)

        return gains

    yield Case(name="1.5x on every request, the first token too", gains=alike, ttft_gains=True)
    yield Case(name="1.5x per token on every request", gains=alike)
    yield Case(name="1.5x per token, 30 % apart from request to request", gains=spread)
    yield Case(name="2x on half of the requests, 0.9x on the others", gains=some(0.5, 2.0, 0.9))
    yield Case(name="3x on 30 % of the requests, 1x on the others", gains=some(0.3, 3.0, 1.0))
    yield Case(name="3x on the longest 30 %, 1x on the others", gains=by_length(3.0, 1.0, is_long=True))
    yield Case(name="3x on the shortest 30 %, 1x on the others", gains=by_length(3.0, 1.0, is_long=False))
    yield Case(name="1.5x, but six times slower on 6 %", gains=some(0.06, 1.5 / 6, 1.5))


def drawn(case: Case, count: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """E2E of each request on the baseline and on the arm."""
    tokens = np.maximum(2.0, TOKENS_MEDIAN * np.exp(random.normal(0.0, TOKENS_SD, count)))
    gains = case.gains(tokens, random)

    def e2e(ttft_gain: Floats | float, gain: Floats | float) -> Floats:
        noise = np.exp(random.normal(0.0, NOISE_SD, (2, count)))
        total: Floats = TTFT_S / ttft_gain * noise[0] + TPOT_S * (tokens - 1) / gain * noise[1]
        return total

    return e2e(1.0, 1.0), e2e(gains if case.ttft_gains else 1.0, gains)


def geometric_mean(before: Floats, after: Floats) -> float:
    return float(np.exp(np.mean(np.log(before / after))))


def ratio_of_medians(before: Floats, after: Floats) -> float:
    return float(np.median(before) / np.median(after))


def main() -> None:
    options = trial_options(str(__doc__), seed=1, draws=1_000_000, studies=4000)
    random = np.random.default_rng(options.seed)
    print(
        f"| truth | geometric mean of pairs | ratio of medians | sd with {PROMPTS} prompts: mean | medians |"
    )
    print("|---|---|---|---|---|")
    for case in cases():
        whole = drawn(case, options.draws, random)
        small = [drawn(case, PROMPTS, random) for _ in range(options.studies)]
        spreads = [
            float(np.std(np.log([estimate(*study) for study in small])))
            for estimate in (geometric_mean, ratio_of_medians)
        ]
        print(
            f"| {case.name} | {geometric_mean(*whole):.2f}x | {ratio_of_medians(*whole):.2f}x "
            f"| {spreads[0]:.1%} | {spreads[1]:.1%} |"
        )


if __name__ == "__main__":
    main()
