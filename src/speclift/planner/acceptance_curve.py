"""The acceptance a prediction is made for: assumed rates, survival rates, or lengths from a replay. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from speclift.arithmetic.acceptance import expected_length, iid_length
from speclift.core.errors import UsageError

# Shown when nobody said an acceptance: the span that S2 and S4 call usual, creative to well matched.
ASSUMED_RATES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """Every drafted token is accepted with the same probability."""

    rate: float
    source: str = "assumed"

    @property
    def label(self) -> str:
        return f"{self.rate:g}"

    def length(self, k: int) -> float:
        return iid_length(self.rate, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """S_1, S_2, ...: the share of steps that accept at least so many; beyond the last the last ratio goes on."""

    rates: tuple[float, ...]
    label: str
    source: str

    def length(self, k: int) -> float:
        known = self.rates[:k]
        if k <= len(self.rates) or not self.rates or self.rates[-1] == 0:
            return expected_length(known)
        before = self.rates[-2] if len(self.rates) > 1 else 1.0
        ratio = self.rates[-1] / before if before else 0.0
        beyond = [self.rates[-1] * ratio**step for step in range(1, k - len(self.rates) + 1)]
        return expected_length((*known, *beyond))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens per step by k, as a replay counted them; a k it has not counted takes the nearest smaller one."""

    by_k: Mapping[int, float]
    label: str
    source: str

    def length(self, k: int) -> float:
        smaller = [known for known in self.by_k if known <= k]
        return self.by_k[max(smaller)] if smaller and k > 0 else 1.0


Acceptance = Assumed | Survival | Lengths


def parse_rates(text: str) -> tuple[Acceptance, ...]:
    """0.6,0.8 are two assumed rates; 0.8/0.6/0.5 are the survival rates of positions 1, 2 and 3."""
    found: list[Acceptance] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        try:
            rates = tuple(float(rate) for rate in part.split("/"))
        except ValueError:
            raise UsageError(
                f"--acceptance takes rates, a study or a replay, saw {text!r}",
                hint="such as 0.6,0.8 or 0.8/0.6/0.5, a study directory, or the JSON of speclift replay",
            ) from None
        if not all(0.0 <= rate <= 1.0 for rate in rates):
            raise UsageError(f"an acceptance rate lies in 0..1, saw {part}")
        if len(rates) == 1:
            found.append(Assumed(rate=rates[0], source="given"))
            continue
        if any(a < b for a, b in pairwise(rates)):
            raise UsageError(f"survival rates cannot rise from position to position, saw {part}")
        found.append(Survival(rates=rates, label=part, source="given"))
    if not found:
        raise UsageError("--acceptance is empty", hint="such as 0.6,0.8")
    return tuple(found)
