"""plan: reads what was named, asks the pure planner, returns the Plan. No engine, no GPU, no network."""

from __future__ import annotations

import os
from pathlib import Path

from speclift.bench.ask import PlanAsk
from speclift.bench.deployment import request_for
from speclift.core.document import Document, read_json
from speclift.core.errors import OperatingError, UsageError
from speclift.core.flags import assembled
from speclift.core.results import over_temperatures
from speclift.planner.plan import Plan
from speclift.planner.planning import plan_deployment
from speclift.planner.prediction import Acceptance, Lengths, Survival, parse_rates

# Also where the engine refuses it.
DOES_NOT_FIT = 4


def plan(ask: PlanAsk | None = None, **settings: object) -> Plan:
    """Fit, pairing and prediction: `speclift.plan(target="llama-3.1-70b", drafts=("llama-3.1-8b",), gpu="h200")`.

    `settings` are the fields of PlanAsk.
    """
    ask = ask or assembled(PlanAsk, settings)
    return plan_deployment(request_for(ask, _acceptances(ask.acceptance)))


def _acceptances(text: str | None) -> tuple[Acceptance, ...]:
    if not text:
        return ()
    path = Path(text)
    # The path's own raise where the text is too long for a name.
    if os.path.isdir(text):  # noqa: PTH112
        return _from_study(path)
    if os.path.isfile(text):  # noqa: PTH113
        return _from_replay(path)
    is_rates = text.replace("/", "").replace(".", "").replace(",", "").isdigit()
    if not is_rates and (path.suffix == ".json" or len(path.parts) > 1):
        raise UsageError(
            f"--acceptance: {text} does not exist",
            hint="give rates such as 0.6,0.8, a study, or the JSON of speclift replay",
        )
    return parse_rates(text)


def _from_study(path: Path) -> tuple[Acceptance, ...]:
    from speclift.verbs.judged import verdict_of

    cells = verdict_of(path).cells
    found = [
        Survival(rates=cell.per_position, label=cell.arm, source=f"study {path}")
        for cell in over_temperatures(cells)
        if cell.segment == "all" and cell.per_position
    ]
    by_arm = {survival.label: survival for survival in reversed(found)}  # the lowest load of each arm
    if not by_arm:
        raise OperatingError(
            f"{path} has no accepted draft tokens, so no acceptance rate",
            hint="measure an arm that drafts, or give rates: --acceptance 0.7",
        )
    return tuple(by_arm.values())


class _ReplayedLengths(Document, frozen=True, kw_only=True):
    k: tuple[int, ...]
    value: tuple[float | None, ...]

    @property
    def by_k(self) -> dict[int, float]:
        """A segment whose answers had no decode step has no length."""
        return {k: value for k, value in zip(self.k, self.value, strict=True) if value is not None}


class _ReplayedSegment(Document, frozen=True, kw_only=True):
    accepted_length: _ReplayedLengths
    segment: str = "all"


class _Replay(Document, frozen=True, kw_only=True):
    """What a plan needs of a replay's document, so that those of other versions will do."""

    segments: tuple[_ReplayedSegment, ...]


def _from_replay(path: Path) -> tuple[Acceptance, ...]:
    try:
        replay = read_json(_Replay, path.read_bytes())
        found = [
            Lengths(by_k=by_k, label=segment.segment, source=f"replay {path}")
            for segment in replay.segments
            if (by_k := segment.accepted_length.by_k)
        ]
    except OSError as error:
        raise OperatingError(f"{path} cannot be read: {error.strerror}", hint="check the path") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not the JSON of speclift replay: {error!r}", hint="speclift replay logs.jsonl --json"
        ) from error
    if not found:
        raise UsageError(f"{path} has no segment with accepted lengths", hint="use a log with responses")
    return tuple(found)
