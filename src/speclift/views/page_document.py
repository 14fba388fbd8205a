"""What a page takes from the JSON document: fields that documents of earlier versions lack are there and empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from speclift.core.arm import BASELINE
from speclift.core.goals import Goals
from speclift.views.documents import ArmSpeedupsDocument, CellDocument, VerdictDocument

ALL = "all"
METRIC_WORDS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
    "e2e_raw": "end-to-end time, output lengths as they came",
    "throughput": "throughput",
}
_GOALS = Goals()
_EMPTY: dict[str, object] = {
    "reasons": [],
    "conditions": None,
    "open": [],
    "winner": None,
    "speedup": None,
    "e2e_speedup": None,
    "speedups": [],
    "cells": [],
    "acceptance_by_temperature": [],
    "acceptance_histograms": [],
    "configuration": None,
    "crossover": [],
    "findings": [],
    "failed_arms": [],
    "tuning": None,
    "line": None,
    "articles": [],
    "study": "",
}
_EMPTY_PARTS: dict[str, dict[str, object]] = {
    "goals": {
        "min_speedup": _GOALS.min_speedup,
        "metric": _GOALS.metric,
        "tail_tolerance": _GOALS.tail_tolerance,
        "slo": {},
    },
    "kv_tokens": {"baseline": None, "winner": None},
    "kv_peak": {"baseline": None, "winner": None},
    "lossless": {"result": "skipped"},
    "provenance": {
        "speclift": "",
        "engine": "",
        "engine_version": "",
        "model": "",
        "model_sha256": "",
        "host": {},
        "commands": [],
        "argv": [],
        "prompts_sha256": "",
        "seed": None,
    },
}
_EMPTY_CELL: dict[str, object] = {
    "temperature": None,
    "ttft_s": None,
    "tpot_s": None,
    "e2e_s": None,
    "throughput_tok_s": None,
    "acceptance_rate": None,
    "accepted_length": None,
    "per_position": None,
    "output_tokens_mean": None,
    "requests": 0,
    "prompts": None,
    "failed": 0,
}
_EMPTY_ARM: dict[str, object] = {"overall": None, "e2e": None, "parts": [], "tail_ratios": [], "pairs": None}


def completed(document: Mapping[str, object]) -> VerdictDocument:
    whole = {**_EMPTY, **document}
    for name, empty in _EMPTY_PARTS.items():
        whole[name] = {**empty, **cast("Mapping[str, object]", whole.get(name) or {})}
    whole["cells"] = _each(_EMPTY_CELL, whole["cells"])
    whole["speedups"] = _each(_EMPTY_ARM, whole["speedups"])
    return cast("VerdictDocument", whole)


def _each(empty: Mapping[str, object], entries: object) -> list[dict[str, object]]:
    return [{**empty, **entry} for entry in cast("list[Mapping[str, object]]", entries)]


def shown_arm(document: VerdictDocument) -> str | None:
    """The winner, or where none won the arm the headline speedup is of."""
    if document["winner"] is not None:
        return document["winner"]["arm"]
    if document["speedup"] is not None:
        return document["speedup"]["arm"]
    measured = [cell["arm"] for cell in document["cells"] if cell["arm"] != BASELINE]
    return measured[0] if measured else None


def speedups_of(document: VerdictDocument, arm: str | None) -> ArmSpeedupsDocument | None:
    return next((entry for entry in document["speedups"] if entry["arm"] == arm), None)


def cells_of(document: VerdictDocument, arm: str) -> dict[tuple[str, str], CellDocument]:
    """By load and segment, the temperatures as the prompts have them; loads and segments in the order measured."""
    return {
        (load_words(cell["load"]), cell["segment"]): cell
        for cell in document["cells"]
        if cell["arm"] == arm and cell["temperature"] is None
    }


def load_words(load: Mapping[str, object]) -> str:
    return f"c={load['concurrency']}" if "concurrency" in load else f"{load['qps']:g} req/s"
