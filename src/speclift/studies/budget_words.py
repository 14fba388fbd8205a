"""What a budget left out of a study's last run, in words."""

from __future__ import annotations

from collections.abc import Sequence

from speclift.core.results import Finding, inform
from speclift.studies.study import Study

# Under this name the study keeps it.
LEFT_OUT = "left-out"


def keep_left_out(study: Study, words: Sequence[str]) -> None:
    """Also that nothing was, where an earlier run had left something out."""
    if words or left_out(study):
        study.keep(LEFT_OUT, {"left_out": list(words)})


def left_out(study: Study) -> list[str]:
    kept = study.kept(LEFT_OUT) or {}
    return [str(words) for words in kept.get("left_out", ())]


def budget_finding(words: Sequence[str]) -> Finding:
    return inform(
        "budget-spent",
        "; ".join(dict.fromkeys(words)),
        then="the verdict uses what was measured; continue with --resume and a longer --budget",
    )
