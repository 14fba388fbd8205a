"""How often each fault was seen, and whether that is more than the baseline does under the same fire.

A session counts once, however many of its answers are wrong: they are no independent observations, and neither is a
request that is asked again. What only a server can get wrong is found in two requests where the control shows none,
another request's text in a single one; whatever a model may do by itself has to come more often than the control's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, floor, log

from scipy import special

from speclift.core.units import Seconds
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.places import log_ways, places_of
from speclift.lossless.soak.values import SoakFault

# Each of the tests errs less often than this, shared by all faults where they compare frequencies.
ALARM_ALPHA = 5e-4
FREQUENCY_ALPHA = ALARM_ALPHA / len(SoakFault)
# What goes wrong by itself, or is misread by us: at most one request in fifty thousand of a working server.
BACKGROUND = 2e-5
# A rate that a clean result excludes at 95 %.
DETECT = 0.02
LEVEL = 0.95
# Nobody can invent another request's nonce: one is proof.
PROVEN = frozenset({SoakFault.CROSS_TALK})
# What a server promises whatever the model would like to say; the rest is compared in frequency.
PROMISED = frozenset(
    {
        SoakFault.SPECIAL_TOKEN,
        SoakFault.AFTER_STOP,
        SoakFault.TRUNCATED,
        SoakFault.INVALID_JSON,
        SoakFault.TOOL_ARGUMENTS,
        SoakFault.BUDGET,
        SoakFault.BANNED_TOKEN,
        SoakFault.REFUSED,
    }
)
PROMISES_BROKEN_MIN = 2
# Another text than alone may be arithmetic in another batch: margins tell, which are the gate's.
UNDECIDED = frozenset({SoakFault.OTHER_TEXT})
# The control speaks for the arm where it had at least this share of its exposure.
CONTROL_SHARE = 0.5
# Below this the arm is not said to be like the control, though no fault is proven either. Half a dozen faults are a
# model's own in most soaks: at 5 % each, every fourth clean one would be called open.
DOUBT_P = 0.01
EXAMPLES_MAX = 5


class SoakResult(StrEnum):
    FOUND = "found"
    INCONCLUSIVE = "inconclusive"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Requests with a fault among those that could show it; a session is one, and a prompt that is asked again."""

    faulty: int
    exposed: int
    answers: int = 0
    # As if each had been asked once: one of three answers wrong counts as a third.
    faulty_once: int = 0

    @property
    def rate(self) -> float:
        return self.faulty / self.exposed if self.exposed else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson, 95 %."""
        return exact_interval(self.faulty, self.exposed)

    def __str__(self) -> str:
        return f"{self.faulty} of {self.exposed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRate:
    """One fault of one arm, with what to say of it."""

    fault: SoakFault
    result: SoakResult
    message: str
    arm: Tally
    control: Tally
    p_value: float
    first_seen_s: Seconds | None = None
    # Requests that have to be exposed for a result, where these were too few.
    needed: int = 0
    # Where it shows, only as far as the answers say so: "only from 9 streams on".
    places: tuple[str, ...] = ()
    examples: tuple[SoakObservation, ...] = ()

    @property
    def is_open(self) -> bool:
        """Seen, not settled, and not what the baseline does as well: this stands in the way of a pass."""
        if self.result is not SoakResult.INCONCLUSIVE or not self.arm.faulty:
            return False
        if self.fault in UNDECIDED:
            return self.p_value < FREQUENCY_ALPHA
        is_the_arms_alone = self.fault in PROMISED | PROVEN and not self.control.faulty
        return is_the_arms_alone or self.p_value < DOUBT_P


def judge_faults(arm: Sequence[SoakObservation], control: Sequence[SoakObservation]) -> tuple[FaultRate, ...]:
    """Every fault, in the order of the list."""
    own, theirs = _by_fault(arm), _by_fault(control)
    return tuple(_judged(fault, own[fault], theirs[fault]) for fault in SoakFault)


def judge_tallies(fault: SoakFault, arm: Tally, control: Tally) -> SoakResult:
    """Of counts that were made elsewhere, by the same rules."""
    return _result(fault, arm, control, more_frequent(arm, control))[0]


def exact_interval(count: int, total: int, *, level: float = LEVEL) -> tuple[float, float]:
    """Every rate that `count` of `total` does not contradict."""
    if not total:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = float(special.betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(special.betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return low, high


def more_frequent(arm: Tally, control: Tally) -> float:
    """P of at least so many of the faults falling on the arm if both were alike (Fisher's exact test)."""
    faulty, exposed = arm.faulty_once + control.faulty_once, arm.exposed + control.exposed
    if not faulty or not arm.exposed or not control.exposed:
        return 1.0
    counts = range(max(arm.faulty_once, faulty - control.exposed), min(faulty, arm.exposed) + 1)
    whole = log_ways(exposed, faulty)
    logs = (
        log_ways(arm.exposed, count) + log_ways(control.exposed, faulty - count) - whole for count in counts
    )
    return min(1.0, sum(map(exp, logs)))


def exposed_needed(detect: float = DETECT, *, level: float = LEVEL) -> int:
    """Requests without the fault after which a rate of `detect` is excluded."""
    return ceil(log(1 - level) / log(1 - detect))


def faulty_needed(exposed: int) -> int:
    """Broken promises that are more than what goes wrong by itself in so many requests."""
    count = PROMISES_BROKEN_MIN
    while count < exposed and float(special.bdtrc(count - 1, exposed, BACKGROUND)) >= ALARM_ALPHA:
        count += 1
    return count


def tally_of(observations: Sequence[SoakObservation]) -> Tally:
    by_unit: dict[Hashable, list[bool]] = defaultdict(list)
    for each in observations:
        by_unit[each.unit].append(each.is_faulty)
    shares = [sum(faulty) / len(faulty) for faulty in by_unit.values()]
    return Tally(
        faulty=sum(share > 0 for share in shares),
        exposed=len(shares),
        answers=len(observations),
        # Rounded down: half a fault more is none.
        faulty_once=floor(sum(shares) + 1e-9),
    )


def _by_fault(observations: Sequence[SoakObservation]) -> dict[SoakFault, list[SoakObservation]]:
    found: dict[SoakFault, list[SoakObservation]] = {fault: [] for fault in SoakFault}
    for each in observations:
        found[each.fault].append(each)
    return found


def _judged(fault: SoakFault, own: Sequence[SoakObservation], theirs: Sequence[SoakObservation]) -> FaultRate:
    arm, control = tally_of(own), tally_of(theirs)
    p_value = more_frequent(arm, control)
    result, message = _result(fault, arm, control, p_value)
    faulty = sorted((each for each in own if each.is_faulty), key=lambda each: each.exposure.ended_s)
    return FaultRate(
        fault=fault,
        result=result,
        message=message,
        arm=arm,
        control=control,
        p_value=p_value,
        first_seen_s=faulty[0].exposure.ended_s if faulty else None,
        needed=0 if result is not SoakResult.INCONCLUSIVE else max(exposed_needed(), arm.exposed + 1),
        places=places_of(own) if result is SoakResult.FOUND else (),
        examples=tuple(faulty[:EXAMPLES_MAX]),
    )


def _result(fault: SoakFault, arm: Tally, control: Tally, p_value: float) -> tuple[SoakResult, str]:
    if found := _found(fault, arm, control, p_value):
        return SoakResult.FOUND, found
    if doubt := _doubt(fault, arm, control, p_value):
        return SoakResult.INCONCLUSIVE, doubt
    below = arm.interval[1]
    if arm.faulty:
        return SoakResult.CLEAN, f"{arm}, the baseline {control}: no more often than without speculation"
    return SoakResult.CLEAN, f"none in {arm.exposed} requests: below {below:.1%} at 95 %"


def _found(fault: SoakFault, arm: Tally, control: Tally, p_value: float) -> str:
    if fault in UNDECIDED:
        return ""
    low, high = arm.interval
    rate = f"{arm} requests ({low:.1%} to {high:.1%})"
    if not control.faulty and fault in PROVEN and arm.faulty:
        return f"{rate}; the baseline {control}"
    is_comparable = control.exposed >= CONTROL_SHARE * arm.exposed
    is_broken = not control.faulty and is_comparable and arm.faulty >= faulty_needed(arm.exposed)
    if fault in PROMISED and is_broken:
        return f"{rate}; the baseline {control}"
    if p_value < FREQUENCY_ALPHA:
        return f"{rate}; the baseline {control} (p = {p_value:.1g})"
    return ""


def _doubt(fault: SoakFault, arm: Tally, control: Tally, p_value: float) -> str:
    """Why nothing was found is no all-clear; empty where it is one."""
    needed = exposed_needed()
    if not arm.exposed:
        return "no request could show it"
    if arm.exposed < needed and not arm.faulty:
        return f"none in {arm.exposed} requests; {needed} are needed to exclude {DETECT:.0%}"
    if arm.faulty and control.exposed < CONTROL_SHARE * arm.exposed:
        return f"{arm}, and only {control.exposed} requests of the baseline to hold it against"
    if arm.faulty and not control.faulty and fault in PROMISED:
        return f"{arm}, the baseline {control}: too few to tell it from chance"
    if p_value < DOUBT_P and fault in UNDECIDED:
        return (
            f"{arm} are not what the same server said alone, the baseline {control}: another batch may round "
            "otherwise, which the gate tells by the margins"
        )
    if p_value < DOUBT_P:
        return f"{arm}, the baseline {control}: more often, though not beyond chance (p = {p_value:.2g})"
    if arm.exposed < needed:
        return f"{arm}; {needed} requests are needed for a result"
    return ""
