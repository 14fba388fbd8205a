"""What was concluded: estimates with intervals, findings with a next step, the verdict with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from speclift.core.arm import Arm
from speclift.core.document import UNKNOWN_FROM, Document
from speclift.core.traffic import Load
from speclift.core.units import Bytes, Tokens

CONFIDENCE = 0.95
# End to end as it came, whatever the answers' lengths; "e2e" itself is at the baseline's.
RAW_E2E = "e2e_raw"
# In which a speedup is told; the headline is one of them.
SPEEDUP_METRICS = ("e2e", "tpot", "ttft", RAW_E2E, "throughput")
# Between the lowest and the highest temperature of a part; a hyphen would be that of 1e-05.
TEMPERATURE_DASH = "–"


class Bounds(Document, frozen=True, kw_only=True):
    """A value with its interval as it is shown: both bounds are null where one of them is not known."""

    value: float
    low: float | None
    high: float | None


class Interval(Bounds, frozen=True, kw_only=True):
    """An estimate as it is shown."""

    n: int
    method: str
    level: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its interval. `n` counts independent units, `method` says where the interval is from."""

    value: float
    low: float
    high: float
    n: int
    method: str
    level: float = CONFIDENCE

    def excludes(self, point: float) -> bool:
        return self.low > point or self.high < point

    @property
    def shown_low(self) -> float | None:
        """None where nothing bounds it above: a lower bound of 0 beside no upper one is no bound."""
        return self.low if self.high < UNKNOWN_FROM else None

    @property
    def shown_high(self) -> float | None:
        return self.high if self.high < UNKNOWN_FROM else None

    @property
    def bounds(self) -> Bounds:
        return Bounds(value=self.value, low=self.shown_low, high=self.shown_high)

    @property
    def interval(self) -> Interval:
        return Interval(
            value=self.value,
            low=self.shown_low,
            high=self.shown_high,
            n=self.n,
            method=self.method,
            level=self.level,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """numpy-linear percentiles with order-statistic intervals; p99 is None under 100 requests."""

    p50: float | None
    p95: float | None
    p99: float | None
    intervals: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """accepted/drafted per request that had drafts; `mean` is pooled over all of them.

    An engine that only counts for the server as a whole has a mean and no percentiles.
    """

    p10: float | None
    p50: float | None
    p90: float | None
    mean: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Arm x load x segment ('all' too) x temperature, summarised. None means not known."""

    arm: str
    load: Load
    segment: str
    # None: over all of them. Every arm, load and segment has this cell, and one of each temperature that was swept.
    temperature: float | None
    requests: int
    failed: int
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    e2e_s: Percentiles | None
    throughput_tok_s: float | None
    acceptance_rate: Acceptance | None
    accepted_length: Interval | None
    per_position: tuple[float, ...] | None
    output_tokens_mean: float | None
    # Distinct ones among the requests.
    prompts: int | None = None


def cell_of(
    cells: Iterable[Cell], arm: str, load: Load, segment: str = "all", temperature: float | None = None
) -> Cell | None:
    """The cell over all temperatures unless one is given; None where nothing was measured."""
    wanted = (arm, load, segment, temperature)
    return next((c for c in cells if (c.arm, c.load, c.segment, c.temperature) == wanted), None)


def over_temperatures(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells if cell.temperature is None)


def by_temperature(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Each swept temperature alone; of a study that swept none all cells."""
    return tuple(cell for cell in cells if cell.temperature is not None) or tuple(cells)


class Level(StrEnum):
    PASS = "pass"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A named check that saw something. `next_step` is what to do about it."""

    check: str
    level: Level
    message: str
    next_step: str = ""
    arm: str | None = None


def warn(check: str, message: str, *, then: str = "", arm: str | None = None) -> Finding:
    """A finding that lowers what may be concluded; `then` is what to do about it."""
    return Finding(check=check, level=Level.WARN, message=message, next_step=then, arm=arm)


def fail(check: str, message: str, *, then: str = "", arm: str | None = None) -> Finding:
    """A finding that forbids the conclusion."""
    return Finding(check=check, level=Level.FAIL, message=message, next_step=then, arm=arm)


def inform(check: str, message: str, *, then: str = "", arm: str | None = None) -> Finding:
    """A finding that explains, and changes nothing."""
    return Finding(check=check, level=Level.INFO, message=message, next_step=then, arm=arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One named rule applied to this study. `source` is 'measured' or the rule of thumb's origin."""

    rule: str
    level: Level
    message: str
    source: str = "measured"


class Part(StrEnum):
    """How a comparison cuts the traffic."""

    ALL = "all"
    SEGMENT = "segment"
    LOAD = "load"
    TEMPERATURE = "temperature"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against the baseline on one part of the traffic. Speedup > 1 is faster."""

    arm: str
    metric: str
    part: Part
    label: str
    # At 95 %: what is shown, and what rules that must hold for every part use.
    speedup: Estimate
    # Widened so that all arms (and parts, on a part) hold together: what a claim picked from many uses.
    simultaneous: Estimate
    prompts: int
    launches: int
    # Machines that these were spread over; with several of them `launches_needed` counts machines.
    nodes: int = 1
    # What would bring the interval clear of the bar it straddles; None where no number would.
    prompts_needed: int | None = None
    launches_needed: int | None = None
    # Of the interval's variance, what differences between launches add.
    launch_share: float = 0.0
    # Prompts that the workload has beside, of a segment or in all, where the study ended before it had sent them.
    prompts_unsent: int = 0

    @property
    def prompts_there(self) -> int:
        return self.prompts + self.prompts_unsent

    @property
    def launches_seen(self) -> str:
        """In words, with the machines that they ran on where there were several."""
        launches = f"{self.launches} launch{'es' if self.launches != 1 else ''}"
        return launches if self.nodes == 1 else f"{launches} on {self.nodes} nodes"

    @property
    def where(self) -> str:
        """The part in words: overall, chat, c=8, temperature 0.7."""
        if self.part is Part.ALL:
            return "overall"
        return f"temperature {self.label}" if self.part is Part.TEMPERATURE else self.label


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRatio:
    """baseline/arm of one percentile, or of the mean of the slowest, at one load: under 1 the arm's is slower.

    `load` is None over all loads together, where each alone is too thin. A lower bound of 0 is unknown.
    """

    arm: str
    load: Load | None
    metric: str
    # P90, P95, P99 or the mean of the slowest 5 %.
    statistic: str
    ratio: Estimate
    # Different prompts from which on both its bounds are known.
    prompts_min: int = 0

    @property
    def where(self) -> str:
        return "over all loads" if self.load is None else f"at {self.load.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """Pairs that both arms were asked for, and on how many of them the estimate rests.

    `metric` differs from the one that was asked for where that was unknown for too many.
    """

    asked: int
    used: int
    metric_asked: str
    metric: str
    # Of those left out: successes of one token on both sides, which have no step that speculation could shorten.
    without_steps: int = 0

    @property
    def is_complete(self) -> bool:
        return is_complete(asked=self.asked, used=self.used)

    @property
    def could_pay_no_more(self) -> bool:
        """Whether what is left out cannot have gained either, so that an upper bound stands without it."""
        return is_complete(asked=self.asked - self.without_steps, used=self.used)


# Beyond this share of the pairs (and more than one) what is left may not stand for what is missing.
LEFT_OUT_SHARE = 0.03


def is_complete(*, asked: int, used: int) -> bool:
    return asked - used <= max(1.0, LEFT_OUT_SHARE * asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looping:
    """A segment with too many answers that end in a repetition loop."""

    segment: str
    looping: int
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A part of the traffic, conditions ANDed; None where a condition does not apply."""

    segments: tuple[str, ...] | None = None
    max_concurrency: int | None = None
    max_qps: float | None = None
    max_temperature: float | None = None


ALL_TRAFFIC = Conditions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one arm against the baseline within some conditions."""

    arm: Arm
    conditions: Conditions
    # None where no pair of successful requests exists.
    overall: Comparison | None
    # In every metric that both arms have; empty on a part of the traffic that misses the bar.
    by_metric: tuple[Comparison, ...]
    parts: tuple[Comparison, ...]
    tails: tuple[TailRatio, ...]
    cells: tuple[Cell, ...]
    baseline_cells: tuple[Cell, ...]
    # Of both arms, one segment each; empty where the conditions leave something out.
    segment_cells: tuple[Cell, ...]
    # Share of all measured pairs that the conditions admit.
    traffic_share: float
    # Distinct ones among the pairs: repeats of a prompt are that prompt.
    prompts: int
    completeness: Completeness
    degenerate: tuple[Looping, ...] = ()
    # Pairs in which the arm took far longer than the baseline: signs of a tail before there are enough to compare it.
    slow_pairs: int = 0

    def speedup_in(self, metric: str) -> Comparison | None:
        return next((found for found in self.by_metric if found.metric == metric), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one arm took while it was measured, over all its launches. None means not known."""

    arm: str
    kv_tokens: Tokens | None
    # The fullest its KV cache was seen, as a share.
    kv_used_peak: float | None
    # Of its prompt tokens, the share that the prefix cache served.
    prefix_hit_rate: float | None
    gpu_memory_peak_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTemperature:
    """One arm at one temperature, or at those of one bucket. None means not known."""

    arm: str
    temperature: str
    speedup: Interval | None
    acceptance_rate: Acceptance | None
    accepted_length: Interval | None
    requests: int
    prompts: int


class Decision(StrEnum):
    SHIP = "ship"
    SHIP_ON_CONDITIONS = "ship-on-conditions"
    DO_NOT_SHIP = "do-not-ship"
    INCONCLUSIVE = "inconclusive"
    OUTPUT_CHANGED = "output-changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreData:
    """What would settle a comparison: so many distinct prompts or so many launches; `together` where neither is enough
    alone. None is a way that does not lead there."""

    prompts: int | None
    launches: int | None = None
    together: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPart:
    """A comparison whose interval still reaches the bar, and what would settle it: in words, and as numbers where any
    would."""

    comparison: Comparison
    settle: str
    needs: MoreData | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`evidence` is the winner's, or the best arm's where none won; None where nothing could be compared."""

    decision: Decision
    reasons: tuple[Reason, ...]
    conditions: Conditions | None
    winner: Arm | None
    evidence: Evidence | None
    # Parts of the traffic that more data might show to pay; empty where the verdict is to ship.
    open: tuple[OpenPart, ...] = ()
    # Parts that more data might show not to lose, where that is all that stands in the way.
    unsure: tuple[OpenPart, ...] = ()


LoadAxis: TypeAlias = Literal["concurrency", "qps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """The load at which an arm stops paying on one metric, with its interval; None is beyond what was measured.

    Where `value` is None the arm pays at every load or at none; `note` says
    which, and all else a reader should know.
    """

    metric: str
    axis: LoadAxis
    value: float | None
    low: float | None
    high: float | None
    arm: str
    note: str


class Moved(StrEnum):
    """What a speedup consists of: tokens that a step says, and what a step costs in tokens of the baseline."""

    ACCEPTANCE = "acceptance"
    STEP_COST = "step-cost"


class UpgradeSide(Document, frozen=True, kw_only=True):
    """One version of an engine, and an arm's speedup per token on it."""

    engine_version: str
    speedup: float


class Upgrade(Document, frozen=True, kw_only=True):
    """One arm on two versions of its engine, per token. Each change is after / before: above 1 it grew.

    The speedup grows with the accepted length and falls with the cost of a step, and consists of nothing else.
    """

    arm: str
    before: UpgradeSide
    after: UpgradeSide
    speedup: Interval
    # None where answers do not say how many of their tokens were drafted.
    accepted_length: Interval | None
    step_cost: Interval | None
    moved: tuple[Moved, ...] = ()
    # Which of the two moved, in words.
    sentence: str
