"""Is a look-up with a model behind it worth a run, and with which k of the look-up? By what the parts did alone."""

from __future__ import annotations

from collections.abc import Sequence

from speclift.core.drafting import kept_k, varied_parts
from speclift.core.speculation import Combined, method_name
from speclift.search.posterior import Posterior
from speclift.search.problem import Problem
from speclift.search.space import Candidate, Elimination


def is_told(problem: Problem, drafter: str) -> bool:
    """Whether all its parts are tried alone as well: then their runs say whether it is worth one of its own."""
    combined = _first(problem, drafter).arm.speculation
    if not isinstance(combined, Combined) or not kept_k(combined):
        return False
    alone = {each.arm.method for each in problem.candidates if each.drafter is not None}
    return all(method_name(part) in alone for part in combined.parts)


def combinations(problem: Problem, posterior: Posterior) -> tuple[list[str], list[Elimination]]:
    """Drafters to run, one for each combination of methods, and why the others are left out."""
    families: dict[str, list[str]] = {}
    for drafter in dict.fromkeys(each.drafter for each in problem.candidates if each.drafter is not None):
        if is_told(problem, drafter):
            families.setdefault(_first(problem, drafter).arm.method, []).append(drafter)
    chosen, left_out = [], []
    for drafters in families.values():
        best, reasons = _chosen(problem, posterior, drafters)
        chosen += [best] if best is not None else []
        left_out += [
            Elimination(candidate=each.name, stage="predicted", reason=reasons[each.drafter])
            for each in problem.candidates
            if each.drafter in reasons
        ]
    return chosen, left_out


def _chosen(
    problem: Problem, posterior: Posterior, drafters: Sequence[str]
) -> tuple[str | None, dict[str | None, str]]:
    """Of combinations that differ in the k of their look-up alone."""
    combined = _first(problem, drafters[0]).arm.speculation
    assert isinstance(combined, Combined)
    varied = varied_parts(combined)
    models = [row for part in varied for row in _rows(posterior, method_name(part))]
    if not any(_may_pay(problem, posterior, row) for row in models):
        model = "+".join(method_name(part) for part in varied)
        reason = (
            f"{model} alone is no faster than the baseline, and would draft where the look-up finds nothing"
        )
        return None, dict.fromkeys(drafters, reason)
    look_ups = [
        row for part in combined.parts if part not in varied for row in _rows(posterior, method_name(part))
    ]
    shares = [problem.share(load) for load in posterior.loads]
    best = max(look_ups, key=lambda row: float(posterior.mean[row] @ shares), default=None)
    # Where the look-up failed alone, the longest: what it drafts costs next to nothing.
    own = {drafter: kept_k(_first(problem, drafter).arm.speculation) for drafter in drafters}
    k = max(own.values()) if best is None else posterior.candidates[best].k
    nearest = min(drafters, key=lambda drafter: abs(own[drafter] - k))
    reason = f"its look-up alone is best at k={k}"
    return nearest, {drafter: reason for drafter in drafters if drafter != nearest}


def _may_pay(problem: Problem, posterior: Posterior, row: int) -> bool:
    """Somewhere, even if it is only by luck: what a model loses alone it loses behind a look-up too."""
    plain = next(place for place, each in enumerate(posterior.candidates) if each.is_baseline)
    luck = problem.settings.near_sd
    return any(
        posterior.optimistic[row, column] + luck * posterior.sd(row, column) > posterior.mean[plain, column]
        for column in range(len(posterior.loads))
    )


def _rows(posterior: Posterior, method: str) -> list[int]:
    return [row for row, each in enumerate(posterior.candidates) if each.arm.method == method]


def _first(problem: Problem, drafter: str) -> Candidate:
    return next(each for each in problem.candidates if each.drafter == drafter)
