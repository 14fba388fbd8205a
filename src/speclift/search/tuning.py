"""What a search found, as a value: from the search's end over the study that confirms it to the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from speclift.core.arm import BASELINE
from speclift.core.document import Document, read
from speclift.core.errors import StudyError
from speclift.core.records import Phase, Record
from speclift.core.results import Bounds
from speclift.core.traffic import Load
from speclift.core.units import Seconds, Tokens
from speclift.search.conclusion import LoadChoice, Segment
from speclift.search.problem import Purpose
from speclift.search.space import Elimination

# Under this name the confirming study keeps what the search found.
TUNING = "tuning"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedCell:
    """One arm at one load; `in_flight` are the requests beside each other."""

    arm: str
    method: str
    # None without speculation.
    drafter: str | None
    k: int
    quantisation: str | None
    token_budget: Tokens | None
    load: Load
    rate_tok_s: Annotated[float, Meta(description="Of one stream.")]
    low: float | None
    high: float | None
    speedup: float
    in_flight: float
    is_measured: Annotated[bool, Meta(description="False: predicted.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchError:
    """Of a cell that was predicted before it was measured: the ratio of its rates, and the sd given."""

    arm: str
    load: Load
    ratio: Annotated[float, Meta(description="Measured over predicted rate.")]
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedError:
    """Speedup as the search predicted it and as it was confirmed; `error` is predicted / measured - 1."""

    arm: str
    load: Load
    predicted: float
    measured: float
    error: float
    was_measured_in_search: bool


class SearchedJob(Document, frozen=True, kw_only=True, rename={"id": "job"}):
    """One launch of the search, why, and what it took."""

    id: int
    arm: str
    loads: tuple[Load, ...]
    purpose: Purpose
    reason: str
    launch_s: Seconds
    engine_s: Seconds
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSplit:
    """How many prompts were searched on, and how many confirmed on."""

    tuning: int
    held_out: int
    is_held_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSchedule:
    """`arm` runs it, None where the engine cannot; `static` is its rival with one k; `over` is what `predicted_gain`
    is against."""

    arm: str | None
    static: str
    over: str
    segments: tuple[Segment, ...]
    predicted_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedBest:
    """The arm that was confirmed to be fastest, whether or not it clears the bar, and how to serve it."""

    arm: str
    speedup: Bounds
    command: str
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a search found before the arms were confirmed."""

    winner: Annotated[str, Meta(description="Best of the search, which the confirmation may overturn.")]
    runner_up: str | None
    confirmed: tuple[str, ...]
    cells: tuple[SearchedCell, ...]
    choices: tuple[LoadChoice, ...]
    eliminated: tuple[Elimination, ...]
    errors: tuple[SearchError, ...]
    jobs: tuple[SearchedJob, ...]
    ending: str
    expected_regret: float
    spent_s: Annotated[Seconds, Meta(description="Engine time of the search.")]
    grid_s: Annotated[
        Seconds | None,
        Meta(
            description="Engine time that every cell three times would take, estimated from what was timed; "
            "null where nothing ran."
        ),
    ]
    prompts: PromptSplit
    schedule: SearchedSchedule | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedTuning(Tuning):
    """What a search found, and what the study after it says of that. `best` is None where nothing was confirmed."""

    confirmed_errors: tuple[ConfirmedError, ...]
    best: ConfirmedBest | None


def kept_tuning(kept: object) -> Tuning:
    """What a study kept of a search; StudyError where it is damaged."""
    try:
        return read(Tuning, kept)
    except ValueError as error:
        raise StudyError(f"the stored search result is damaged: {error}", hint="start a new study") from error


def confirmed_errors(tuning: Tuning, records: Sequence[Record]) -> tuple[ConfirmedError, ...]:
    """Speedup as predicted by the search and as confirmed, by arm and load; both of tokens over time, pooled."""
    predicted = {(cell.arm, cell.load): cell for cell in tuning.cells}
    rates = _pooled_rates(records)
    errors = []
    for (arm, load), rate in rates.items():
        cell, plain = predicted.get((arm, load)), rates.get((BASELINE, load))
        if cell is not None and plain is not None and arm != BASELINE:
            errors.append(
                ConfirmedError(
                    arm=arm,
                    load=load,
                    predicted=cell.speedup,
                    measured=rate / plain,
                    error=cell.speedup * plain / rate - 1,
                    was_measured_in_search=cell.is_measured,
                )
            )
    return tuple(errors)


def _pooled_rates(records: Sequence[Record]) -> dict[tuple[str, Load], float]:
    """Decoded tokens per second of decoding, by arm and load."""
    sums: dict[tuple[str, Load], tuple[float, float]] = {}
    for record in records:
        if record.place.phase is Phase.MEASURED and record.is_ok and record.tpot_s:
            tokens = (record.output_tokens or 1) - 1
            key = (record.place.arm, record.place.load)
            before = sums.get(key, (0.0, 0.0))
            sums[key] = (before[0] + tokens, before[1] + tokens * record.tpot_s)
    return {key: tokens / seconds for key, (tokens, seconds) in sums.items() if seconds > 0}
