"""Which arm of a few is really faster? Mirrored blocks against drift, a confidence sequence against peeking."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, TypeVar

import numpy as np

Arm = TypeVar("Arm")
# Block, and turn within it.
Pass: TypeAlias = tuple[int, int]

ALPHA = 0.05
# Tuned for about 40 prompts; false alarms stay below alpha at any n.
PROMPTS_RATIO = 1 / 40
# The spread of fewer prompts is not known well enough for any radius.
PROMPTS_MIN = 8
# Launch pairs come in ones and twos.
LAUNCHES_RATIO = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One arm against the leader at one load: mean log ratio of its time, positive is slower, and its radius."""

    arm: str
    leader: str
    log_ratio: float
    radius: float
    prompts: int
    passes: int

    @property
    def is_beaten(self) -> bool:
        return self.log_ratio - self.radius > 0


def mirrored(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """A B C C B A: drift that is linear in time falls equally on every arm."""
    return (*arms, *reversed(arms))


def radius(n: int, sd: float, *, alpha: float = ALPHA, ratio: float = PROMPTS_RATIO) -> float:
    """Half width that holds at every n at once: s sqrt(2 (n r + 1) / (n^2 r) ln(sqrt(n r + 1) / alpha)).

    The normal-mixture confidence sequence (Robbins 1970; Howard et al., arXiv 1810.08240); infinite at n = 0.
    """
    if n < 1:
        return math.inf
    if not 0 < alpha < 1 or not ratio > 0 or sd < 0:
        raise ValueError(f"a radius needs alpha in 0..1, ratio > 0 and sd >= 0, saw {alpha}, {ratio}, {sd}")
    scale = n * ratio + 1
    return sd * math.sqrt(2 * scale / (n * n * ratio) * math.log(math.sqrt(scale) / alpha))


def standings(
    passes: Mapping[str, Mapping[Pass, Mapping[str, float]]],
    leader: str,
    *,
    pass_sd: float,
    alpha: float = ALPHA,
) -> tuple[Standing, ...]:
    """Every other arm against the leader, alpha shared among them (Bonferroni).

    `passes[arm]` holds log time by prompt of each pass. A unit is a prompt met by both arms in the same passes; what a
    launch does to all its prompts alike, `pass_sd`, is added, for no number of prompts removes it. Whoever leads, and
    however often this is asked, the truly fastest arm is beaten with probability alpha at most: that takes one of its
    comparisons with the others to fail.
    """
    rivals = [arm for arm in passes if arm != leader]
    share = alpha / max(1, len(rivals))
    return tuple(_standing(passes[arm], passes[leader], arm, leader, pass_sd, share) for arm in rivals)


def _standing(
    own: Mapping[Pass, Mapping[str, float]],
    leading: Mapping[Pass, Mapping[str, float]],
    arm: str,
    leader: str,
    pass_sd: float,
    alpha: float,
) -> Standing:
    pairs = [(own[each], leading[each]) for each in own if each in leading]
    prompts = sorted(set(chain.from_iterable(mine.keys() & theirs.keys() for mine, theirs in pairs)))
    ratios = np.array(
        [
            np.mean(
                [
                    mine[prompt] - theirs[prompt]
                    for mine, theirs in pairs
                    if prompt in mine and prompt in theirs
                ]
            )
            for prompt in prompts
        ]
    )
    if len(ratios) == 0:
        return Standing(arm=arm, leader=leader, log_ratio=0.0, radius=math.inf, prompts=0, passes=len(pairs))
    among_prompts = math.inf
    if len(ratios) >= PROMPTS_MIN:
        among_prompts = radius(len(ratios), float(ratios.std(ddof=1)), alpha=alpha / 2)
    among_launches = radius(len(pairs), pass_sd * math.sqrt(2), alpha=alpha / 2, ratio=LAUNCHES_RATIO)
    return Standing(
        arm=arm,
        leader=leader,
        log_ratio=float(ratios.mean()),
        radius=among_prompts + among_launches,
        prompts=len(ratios),
        passes=len(pairs),
    )
