"""What a search found, as a value: from the search's end over the study that confirms it to the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speclift.core.results import Estimate
from speclift.core.traffic import Load
from speclift.core.units import Seconds, Tokens
from speclift.search.conclusion import LoadChoice
from speclift.search.problem import Purpose
from speclift.search.schedule import Segment
from speclift.search.space import Elimination


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedCell:
    """One arm at one load. `rate_tok_s` is of one stream, `in_flight` the requests beside each other."""

    arm: str
    method: str
    # None without speculation.
    drafter: str | None
    k: int
    quantisation: str | None
    token_budget: Tokens | None
    load: Load
    rate_tok_s: float
    low: float | None
    high: float | None
    speedup: float
    in_flight: float
    # Else predicted.
    is_measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchError:
    """Measured over predicted rate of a cell that was predicted before it was measured, and the sd given."""

    arm: str
    load: Load
    ratio: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedError:
    """Speedup as the search predicted it and as it was confirmed."""

    arm: str
    load: Load
    predicted: float
    measured: float
    was_measured_in_search: bool

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedJob:
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
    speedup: Estimate
    command: str
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    winner: str
    runner_up: str | None
    confirmed: tuple[str, ...]
    cells: tuple[SearchedCell, ...]
    choices: tuple[LoadChoice, ...]
    eliminated: tuple[Elimination, ...]
    errors: tuple[SearchError, ...]
    jobs: tuple[SearchedJob, ...]
    ending: str
    expected_regret: float
    spent_s: Seconds
    # Engine time of every candidate at every load, each three times; None where nothing ran.
    grid_s: Seconds | None
    prompts: PromptSplit
    schedule: SearchedSchedule | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedTuning:
    """What a search found, and what the study after it says of that. `best` is None where nothing was confirmed."""

    tuning: Tuning
    errors: tuple[ConfirmedError, ...]
    best: ConfirmedBest | None
