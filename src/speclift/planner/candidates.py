"""Which drafters are worth a measurement? Each with its memory, its break-even and what an engine says. Pure.

They are ranked by the acceptance they need: an acceptance known of one drafter says nothing of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.planner.acceptance_curve import Acceptance
from speclift.planner.prediction import Predictor

NGRAM = "ngram"
DRAFT = "draft"
MTP = "mtp"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadNeed:
    """What a candidate needs at one load; `break_even` None where not even full acceptance pays."""

    concurrency: int
    k: int
    cost_ratio: float
    break_even: float | None
    # None where no acceptance of this very drafter is known.
    speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDraft:
    method: str
    draft: str | None
    # How a command names the draft.
    reference: str | None
    precision: str | None
    ratio: float | None
    fits: bool
    kv_tokens: int
    max_concurrency: float
    # Why an engine would not run it, or that it does not fit; empty where neither.
    objection: str
    needs: tuple[LoadNeed, ...]

    @property
    def is_usable(self) -> bool:
        return self.fits and not self.objection

    @property
    def mean_break_even(self) -> float:
        """1.5 stands for "never": above any acceptance, so that such loads weigh in the ranking."""
        return sum(1.5 if need.break_even is None else need.break_even for need in self.needs) / len(
            self.needs
        )


def needs_of(
    predictor: Predictor, *, loads: Sequence[int], ks: Sequence[int], acceptance: Acceptance | None
) -> tuple[LoadNeed, ...]:
    """At the middle one of the ks that were asked for; `acceptance` is this candidate's own, where it is known."""
    k = sorted(ks)[len(ks) // 2]
    found = []
    for load in loads:
        step = predictor.step(load, k)
        speedup = None if acceptance is None else acceptance.length(k) / step.cost_ratio
        found.append(
            LoadNeed(
                concurrency=load, k=k, cost_ratio=step.cost_ratio, break_even=step.break_even, speedup=speedup
            )
        )
    return tuple(found)


def ranked(candidates: Sequence[PlannedDraft]) -> tuple[PlannedDraft, ...]:
    """Usable first, then the one that needs the least acceptance."""
    return tuple(
        sorted(candidates, key=lambda candidate: (not candidate.is_usable, candidate.mean_break_even))
    )
