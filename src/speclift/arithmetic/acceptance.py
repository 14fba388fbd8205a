"""How many tokens does a step yield? Acceptance from what was counted, and in the i.i.d. model.

A step drafts some tokens (perhaps none), accepts a prefix of them and adds one token of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from speclift.core.records import Step
from speclift.core.units import Tokens

# Halvings of [0, 1] that use up the 53 bits of a float.
_BISECTIONS = 60


def survival(steps: Sequence[Step], k: int) -> tuple[float, ...]:
    """S_j = P(accepted >= j) for j = 1..k over all decode steps, so that 1 + sum(S_j) is tokens per step.

    A step that drafted fewer than j tokens, or none, counts as one where position j was not accepted:
    S_j is what position j yields, not how good the drafter is when it does draft that far.
    """
    if k < 1:
        raise ValueError(f"survival needs at least 1 position, saw k={k}")
    if not steps:
        raise ValueError("survival needs at least 1 decode step, saw none")
    reached = [0] * (k + 1)
    for step in steps:
        reached[min(step.accepted, k)] += 1
    at_least = list(accumulate(reversed(reached)))[::-1]
    return tuple(count / len(steps) for count in at_least[1:])


def conditional_rates(survival: Sequence[float]) -> tuple[float | None, ...]:
    """h_j = S_j / S_(j-1) with S_0 = 1; None where no step got as far as j - 1.

    From `survival` these count "not drafted that far" as a failure, like the survival rates themselves.
    """
    before = (1.0, *survival)
    return tuple(
        now / earlier if earlier > 0 else None for earlier, now in zip(before, survival, strict=False)
    )


def accepted_length(output_tokens: Tokens, accepted: Tokens) -> float | None:
    """Tokens per decode step, (tokens - 1) / (tokens - 1 - accepted), whatever each step drafted.

    Each step adds one token that was not drafted and the first token is the prefill's. None where that
    leaves no step: a single token, or a last step cut short whose accepted tokens were never output.
    """
    if output_tokens < 0 or accepted < 0:
        raise ValueError(f"token counts cannot be negative, saw {output_tokens} output, {accepted} accepted")
    decoded = output_tokens - 1
    steps = decoded - accepted
    return decoded / steps if steps > 0 else None


def expected_length(survival: Sequence[float]) -> float:
    """Tokens per step, 1 + sum of S_j."""
    return 1.0 + math.fsum(survival)


def iid_length(alpha: float, k: int) -> float:
    """Tokens per step when each drafted token is accepted with probability alpha: sum of alpha^j, j = 0..k.

    Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    _require_probability(alpha)
    if k < 0:
        raise ValueError(f"k counts drafted tokens and cannot be negative, saw {k}")
    return math.fsum(alpha**j for j in range(k + 1))


def iid_speedup(alpha: float, cost: float, k: int) -> float:
    """iid_length / (1 + cost * k), cost being that of one drafted token as a share of a plain step."""
    if cost < 0:
        raise ValueError(f"a drafted token cannot cost less than nothing, saw {cost}")
    return iid_length(alpha, k) / (1.0 + cost * k)


def best_k(alpha: float, cost: float, k_max: int) -> int:
    """The k in 0..k_max with the largest i.i.d. speedup, the smallest of equals; 0 means: do not draft."""
    return max(range(k_max + 1), key=lambda k: iid_speedup(alpha, cost, k))


def break_even_acceptance(k: int, step_cost_ratio: float) -> float | None:
    """The alpha at which k drafted tokens pay for a step that takes `step_cost_ratio` times a plain one.

    0 where the step costs no more than a plain one; None where not even full acceptance pays.
    """
    if k < 1:
        raise ValueError(f"k counts drafted tokens and must be at least 1, saw {k}")
    if not step_cost_ratio > 0:
        raise ValueError(f"a step's cost ratio must be above 0, saw {step_cost_ratio}")
    if step_cost_ratio <= 1:
        return 0.0
    if step_cost_ratio > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if iid_length(middle, k) < step_cost_ratio:
            low = middle
        else:
            high = middle
    return high


def _require_probability(alpha: float) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"an acceptance rate is a probability in 0..1, saw {alpha}")
