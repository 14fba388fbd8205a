"""What every part of the page takes from the document of a verdict."""

from __future__ import annotations

from speclift.core.arm import BASELINE
from speclift.core.results import Cell
from speclift.verdict.document import ArmSpeedups, VerdictDocument

ALL = "all"
METRIC_WORDS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
    "e2e_raw": "end-to-end time, output lengths as they came",
    "throughput": "throughput",
}


def shown_arm(document: VerdictDocument) -> str | None:
    """The winner, or where none won the arm the headline speedup is of."""
    if document.winner is not None:
        return document.winner.arm
    if document.speedup is not None:
        return document.speedup.arm
    measured = [cell.arm for cell in document.cells if cell.arm != BASELINE]
    return measured[0] if measured else None


def speedups_of(document: VerdictDocument, arm: str | None) -> ArmSpeedups | None:
    return next((entry for entry in document.speedups if entry.arm == arm), None)


def cells_of(document: VerdictDocument, arm: str) -> dict[tuple[str, str], Cell]:
    """By load and segment, the temperatures as the prompts have them; loads and segments in the order measured."""
    return {
        (cell.load.label, cell.segment): cell
        for cell in document.cells
        if cell.arm == arm and cell.temperature is None
    }
