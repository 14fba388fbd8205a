"""How often two servers part company per token, with exact tests: events over exposure are Poisson."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scipy import special

from speclift.lossless.divergence import Compared, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """Divergences over tokens compared."""

    events: int
    tokens: float

    @property
    def per_token(self) -> float:
        return self.events / self.tokens if self.tokens else 0.0

    def plus(self, other: Hazard) -> Hazard:
        return Hazard(events=self.events + other.events, tokens=self.tokens + other.tokens)

    def upper(self, level: float = 0.95) -> float:
        """The largest rate that these events do not contradict, one-sided (Garwood)."""
        if not self.tokens:
            return float("inf")
        return float(special.gammaincinv(self.events + 1, level)) / self.tokens


def hazard(pairs: Iterable[Compared]) -> Hazard:
    """A refusal is no divergence: nothing was said that could differ. A prompt that came out the same again is one
    observation, however often it was asked."""
    compared = list(dict.fromkeys(pairs))
    parted = [pair.divergence for pair in compared if pair.divergence is not None]
    return Hazard(
        events=sum(divergence.kind is not Kind.REFUSED for divergence in parted),
        tokens=sum(pair.tokens for pair in compared),
    )


def more_often(arm: Hazard, control: Hazard) -> float:
    """P of at least this many events falling on the arm if both rates were equal: given their sum, they are
    binomial with the arm's share of the exposure (Przyborowski and Wilenski 1940)."""
    total = arm.events + control.events
    if not total or not arm.tokens:
        return 1.0
    share = arm.tokens / (arm.tokens + control.tokens)
    return float(special.bdtrc(arm.events - 1, total, share))


def tokens_for_rate(detect: float, *, level: float = 0.95) -> int:
    """Tokens without any divergence after which a rate of `detect` is excluded at `level`."""
    return int(-(-Hazard(events=0, tokens=1.0).upper(level) // detect))
