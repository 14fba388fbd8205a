"""From the gate's document to what the verdict takes of it. An arm that changes the output is out of the running;
where no other is left, that is the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from speclift.core.arm import Arm
from speclift.core.results import Finding, Level


class GateWord(TypedDict):
    """Keyword arguments of decide()."""

    lossless: str
    lossless_note: str
    is_proof_required: bool


def worst_kept(documents: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Of several studies the one that says the least good, with the arms of all; None where one of them has no gate to
    show."""
    kept = [document for document in documents if document is not None]
    if len(kept) < len(documents) and not any(document["result"] == "fail" for document in kept):
        return None
    if not kept:
        return None
    arms: dict[str, dict[str, Any]] = {}
    for arm in sorted((arm for each in kept for arm in each.get("arms", ())), key=_how_good):
        arms.setdefault(arm["arm"], arm)
    least = min(kept, key=_how_good)
    return {**least, "arms": list(arms.values())} if "arms" in least else least


def _how_good(document: Mapping[str, Any]) -> int:
    return ("fail", "inconclusive", "skipped", "pass").index(document["result"])


def changed_arms(document: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(arm["arm"] for arm in document.get("arms", ()) if arm["result"] == "fail")


def changed_findings(document: Mapping[str, Any]) -> tuple[Finding, ...]:
    """For arms that are out while others stay in."""
    return tuple(
        Finding(
            check="output-changed",
            level=Level.FAIL,
            message=f"{arm['arm']}: {_message(arm)}",
            next_step="the report shows both outputs side by side",
            arm=arm["arm"],
        )
        for arm in document.get("arms", ())
        if arm["result"] == "fail"
    )


def gate_for_verdict(
    document: Mapping[str, Any], standing: Sequence[Arm], competing: Sequence[Arm]
) -> GateWord:
    is_full = document.get("mode") == "full"
    if "arms" not in document:
        return GateWord(
            lossless=document["result"], lossless_note=document.get("why", ""), is_proof_required=is_full
        )
    judged = {arm["arm"]: arm for arm in document["arms"]}
    wanted = [arm.name for arm in (standing or competing)]
    names = [name for name in wanted if name in judged]
    unseen = [name for name in wanted if name not in judged]
    if unseen and not any(judged[name]["result"] == "fail" for name in names):
        note = f"not compared with the baseline: {', '.join(unseen)}"
        return GateWord(lossless="inconclusive", lossless_note=note, is_proof_required=is_full)
    for result in ("fail", "inconclusive", "pass"):
        held = [judged[name] for name in names if judged[name]["result"] == result]
        if held:
            note = "; ".join(f"{arm['arm']}: {_message(arm)}" for arm in held[:2])
            return GateWord(lossless=result, lossless_note=note, is_proof_required=is_full)
    return GateWord(lossless="inconclusive", lossless_note="", is_proof_required=is_full)


def _message(arm: Mapping[str, Any]) -> str:
    """Of the parts that decided this arm."""
    said = [
        f"{part}: {arm[part]['message']}"
        for part in ("greedy", "sampled")
        if arm[part]["result"] == arm["result"]
    ]
    said += [f"{edge['name']}: {edge['message']}" for edge in arm["edges"] if edge["result"] == "fail"]
    said += [finding["message"] for finding in arm["findings"] if finding["level"] == "fail"]
    return "; ".join(said) or arm["result"]
