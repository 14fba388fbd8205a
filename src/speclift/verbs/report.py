"""report: a judgement as one document and as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from speclift.bench.study_paths import relative
from speclift.core.errors import StudyError
from speclift.statistics.schedule_gain import SCHEDULE_NO_GAIN
from speclift.studies.private import private_folder, write_private
from speclift.verbs.judge import Judgement
from speclift.views.document import acceptance_document, verdict_document
from speclift.views.page import page


def judgement_document(judgement: Judgement) -> dict[str, Any]:
    winner = judgement.verdict.winner
    return verdict_document(
        judgement.verdict,
        cells=judgement.cells,
        comparisons=judgement.on_all,
        findings=judgement.findings,
        provenance=judgement.provenance,
        kv_tokens=judgement.kv_tokens,
        kv_peaks=judgement.kv_peaks,
        acceptance_by_temperature=[
            {
                "arm": bucket.arm,
                "above": bucket.low,
                "up_to": bucket.high,
                **(acceptance_document(bucket.acceptance) or {}),
            }
            for bucket in judgement.acceptance_by_temperature
        ],
        acceptance_histograms=[
            {
                "arm": held.arm,
                "by": held.by,
                "label": held.label,
                "requests": sum(held.counts),
                "counts": list(held.counts),
            }
            for held in judgement.acceptance_histograms
        ],
        crossovers=judgement.crossovers,
        goals=judgement.goals,
        configuration=judgement.engine.configurations(winner) if winner else None,
        winner_config=judgement.engine.config(winner) if winner else None,
        study=relative(judgement.study),
        failed_arms=judgement.failed_arms,
        lossless=judgement.lossless,
        tuning=_tuning_with_best(judgement),
    )


def _tuning_with_best(judgement: Judgement) -> dict[str, Any] | None:
    """With the command of the arm that was confirmed to be fastest, whether or not it clears the bar."""
    dropped = {finding.arm for finding in judgement.findings if finding.check == SCHEDULE_NO_GAIN}
    confirmed = [
        (each.overall.speedup, each.arm)
        for each in judgement.on_all
        if each.overall is not None and each.arm.name not in dropped
    ]
    if judgement.tuning is None:
        return None
    if not confirmed:
        return {**judgement.tuning, "best": None}
    speedup, arm = max(confirmed, key=lambda each: each[0].value)
    return {
        **judgement.tuning,
        "best": {
            "arm": arm.name,
            "speedup": {"value": speedup.value, "low": speedup.low, "high": speedup.high},
            "command": judgement.engine.configurations(arm)["command"],
            "config": judgement.engine.config(arm),
        },
    }


def write_report(document: dict[str, Any], path: Path) -> None:
    """One self-contained page; written whole or not at all."""
    try:
        private_folder(path.parent)
        write_private(path, page(document))
    except OSError as error:
        raise StudyError(f"cannot write the report {path}: {error.strerror or error}") from error
