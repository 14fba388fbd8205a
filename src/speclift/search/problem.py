"""What is searched, what to measure next, and what came of it: the values that go in and out of the search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from speclift.core.errors import UsageError
from speclift.core.traffic import Concurrency, Load
from speclift.core.units import Seconds, Tokens
from speclift.search.cost import Experts
from speclift.search.counts import RequestCounts
from speclift.search.space import Candidate


class Purpose(StrEnum):
    """Why something is measured."""

    BASELINE = "baseline"
    # One run at the largest k: acceptance for every k, and a cost cell.
    LONG = "long"
    # One at a small k: the slope in k, and for heads the correction.
    SHORT = "short"
    # One launch that may change what is chosen.
    PROBE = "probe"
    RACE = "race"


# Asked for whatever the others show.
CALIBRATING = frozenset({Purpose.BASELINE, Purpose.LONG, Purpose.SHORT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The search's knobs, set on synthetic engines; docs/tune.md says what they reached on engines not seen before."""

    # Loads at which every drafter is calibrated, spread over those asked for.
    calibration_loads: int = 3
    # Largest k of the calibrating run; deeper only where the first run says that it may pay.
    k_long: int = 10
    k_long_lookup: int = 16
    # A head's second run is at the k that looks best, within these.
    k_short: tuple[int, int] = (2, 6)
    # An arm nowhere this near the best, in log score, and more than this many sd away, is dropped.
    near: float = 0.02
    near_sd: float = 2.5
    # Launches between calibration and race at most, and how many of them are asked for before the first is told: as
    # many as there are machines to run them.
    probes: int = 30
    at_once: int = 1
    # A launch that takes 1 % of a grid's time must save 1 % of this, in log score over the traffic; choices that are
    # `near` the best lose nothing.
    price: float = 0.0007
    # Probes and races end at this share of a 3-repeat grid, as far as its time can be told from what ran.
    grid_share: float = 0.0835
    race_arms: int = 2
    # None: at the same price single probes gained as much as mirrored blocks did.
    race_blocks: int = 0
    # No race where choosing now is expected to lose less than this: over the traffic, and at a load.
    regret_goal: float = 0.0007
    # Engine time, launches included; `reserve_s` of it is left for the confirmation.
    budget_s: Seconds = math.inf
    reserve_s: Seconds = 0.0
    # Before anything was timed.
    launch_s_guess: Seconds = 60.0
    cell_s_guess: Seconds = 40.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.calibration_loads, self.k_long, self.k_long_lookup, self.k_short[0], self.race_arms) < 1:
            raise UsageError("a search needs at least 1 calibration load, k of at least 1 and 1 arm to race")
        if self.at_once < 1:
            raise UsageError(f"a search runs at least 1 job at a time, saw {self.at_once}")
        if not (self.price > 0 and self.grid_share > 0):
            raise UsageError(
                f"the price and the share of a grid must be above 0, saw {self.price:g} and {self.grid_share:g}"
            )
        if not self.budget_s > self.reserve_s >= 0:
            raise UsageError(
                f"the budget must exceed its reserve, saw {self.budget_s:g} s and {self.reserve_s:g} s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    candidates: tuple[Candidate, ...]
    loads: tuple[Load, ...]
    # Share of the traffic at each load.
    weights: tuple[float, ...] = ()
    context: float = 512.0
    prompt_tokens: float = 0.0
    output_tokens: float = 256.0
    experts: Experts | None = None
    # On a CPU: tokens that its kernels are known to take at once, 1 where nothing is known. None elsewhere.
    cpu_tile: int | None = None
    settings: Settings = Settings()

    def __post_init__(self) -> None:
        if not self.loads or len(set(self.loads)) != len(self.loads):
            raise UsageError(f"a search needs loads, each once, saw {[load.label for load in self.loads]}")
        if not any(candidate.is_baseline for candidate in self.candidates):
            raise UsageError("a search needs the baseline among its candidates")
        names = [candidate.name for candidate in self.candidates]
        if len(set(names)) != len(names):
            raise UsageError("two candidates have the same name")
        if self.cpu_tile is not None and self.cpu_tile < 1:
            raise UsageError(f"a tile has at least 1 token, saw {self.cpu_tile}")
        if self.weights and (
            len(self.weights) != len(self.loads) or min(self.weights) < 0 or sum(self.weights) <= 0
        ):
            raise UsageError(
                f"{len(self.loads)} loads need as many weights of 0 or more, saw {list(self.weights)}"
            )

    def share(self, load: Load) -> float:
        if not self.weights:
            return 1.0 / len(self.loads)
        return self.weights[self.loads.index(load)] / math.fsum(self.weights)

    def candidate(self, name: str) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchJob:
    """One launch of one candidate and the loads to run on it, in this order."""

    id: int
    candidate: str
    loads: tuple[Load, ...]
    purpose: Purpose
    reason: str
    # Races: which block, and which of its two passes.
    block: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """One load of one launch. `batch` is the mean number of requests in flight, where it was sampled."""

    load: Load
    requests: tuple[RequestCounts, ...]
    wall_s: Seconds
    batch: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What came of a job; `failure` says why a launch or all its cells are missing."""

    job: SearchJob
    cells: tuple[CellResult, ...] = ()
    launch_s: Seconds = 0.0
    failure: str = ""

    @property
    def engine_s(self) -> Seconds:
        return self.launch_s + math.fsum(cell.wall_s for cell in self.cells)


def nominal_batch(load: Load, *, tpot_s: Seconds, output_tokens: float) -> float:
    """Requests in flight: as many as there are streams, or rate x time that one decodes (Little's law)."""
    if isinstance(load, Concurrency):
        return float(load.streams)
    return max(1.0, load.per_s * output_tokens * tpot_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDrafts:
    """Of the steps of a cell: drafted tokens per step and sequence, and the share of the steps that drafted."""

    tokens: float
    share: float


def step_drafts(requests: tuple[RequestCounts, ...], k: int) -> StepDrafts:
    """As counted; k in every step where only totals are known."""
    known = [request for request in requests if request.is_ordered]
    steps = sum(request.steps for request in known)
    if not steps:
        return StepDrafts(tokens=float(k), share=1.0)
    tokens: Tokens = sum(sum(request.drafted) for request in known)
    without = sum(request.without_draft for request in known)
    return StepDrafts(tokens=tokens / steps, share=1.0 - without / steps)
