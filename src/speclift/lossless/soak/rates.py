"""How often each fault was seen, and whether that is more than the baseline does under the same load.

A session counts once, however many of its answers are wrong: they are no independent observations, and neither is a
request that is asked again. What only a server can get wrong is found in two requests where the control shows none,
another request's text in a single one; whatever a model may do by itself has to come more often than the control's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, floor, lgamma, log

from scipy import special

from speclift.core.results import Finding, Level
from speclift.core.units import Seconds, Tokens
from speclift.lossless.gate import SHOWN_BY_ANY, Distribution, FaultRate, Result, SoakFault, SoakResult, worst
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.values import SoakAnswer, Stage

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
EVIDENCE_MAX = 3


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


def judge_faults(
    arm: Sequence[SoakObservation], control: Sequence[SoakObservation], *, name: str = ""
) -> tuple[FaultRate, ...]:
    """Every fault of the arm of this name, in the order of the list."""
    ours, theirs = _by_fault(arm), _by_fault(control)
    return tuple(_judged(name, fault, ours[fault], theirs[fault]) for fault in SoakFault)


def is_open(rate: FaultRate) -> bool:
    """Seen, not settled, and not what the baseline does as well: this stands in the way of a pass."""
    if rate.result is not SoakResult.INCONCLUSIVE or not rate.count:
        return False
    if rate.name in UNDECIDED:
        return rate.p_value < FREQUENCY_ALPHA
    is_the_arms_alone = rate.name in PROMISED | PROVEN and not rate.control_count
    return is_the_arms_alone or rate.p_value < DOUBT_P


def soaked_result(
    rates: Sequence[FaultRate], findings: Sequence[Finding], distribution: Distribution | None
) -> Result:
    """The result of an arm's part of a soak."""
    is_shifted = distribution is not None and distribution.result is Result.FAIL
    is_found = any(rate.result is SoakResult.FOUND for rate in rates)
    if is_found or is_shifted or any(finding.level is Level.FAIL for finding in findings):
        return Result.FAIL
    return worst(_result_of(rate) for rate in rates)


def _result_of(rate: FaultRate) -> Result:
    """The result of one fault. If few requests can show it, few were asked: its row says so, and that stops no pass.
    Neither does what the baseline does as well."""
    if rate.result is SoakResult.CLEAN:
        return Result.PASS
    is_unknown = rate.name in SHOWN_BY_ANY and rate.exposed < exposed_needed()
    return Result.INCONCLUSIVE if is_open(rate) or is_unknown else Result.SKIPPED


def judge_tallies(fault: SoakFault, arm: Tally, control: Tally) -> SoakResult:
    """The result of counts that were made elsewhere, by the same rules."""
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
    for observation in observations:
        by_unit[observation.unit].append(observation.is_faulty)
    shares = [sum(faulty) / len(faulty) for faulty in by_unit.values()]
    return Tally(
        faulty=sum(share > 0 for share in shares),
        exposed=len(shares),
        answers=len(observations),
        # Rounded down: half a fault more is none.
        faulty_once=floor(sum(shares) + 1e-9),
    )


def _by_fault(observations: Sequence[SoakObservation]) -> dict[SoakFault, list[SoakObservation]]:
    by_fault: dict[SoakFault, list[SoakObservation]] = {fault: [] for fault in SoakFault}
    for observation in observations:
        by_fault[observation.fault].append(observation)
    return by_fault


def _judged(
    name: str, fault: SoakFault, own: Sequence[SoakObservation], theirs: Sequence[SoakObservation]
) -> FaultRate:
    arm, control = tally_of(own), tally_of(theirs)
    p_value = more_frequent(arm, control)
    result, message = _result(fault, arm, control, p_value)
    faulty = sorted(
        (observation for observation in own if observation.is_faulty),
        key=lambda observation: observation.exposure.ended_s,
    )
    return FaultRate(
        arm=name,
        name=fault,
        result=result,
        message=message,
        count=arm.faulty,
        exposed=arm.exposed,
        rate=arm.rate,
        low=arm.interval[0],
        high=arm.interval[1],
        control_count=control.faulty,
        control_exposed=control.exposed,
        control_rate=control.rate,
        p_value=p_value,
        first_seen_s=faulty[0].exposure.ended_s if faulty else None,
        needed=0 if result is not SoakResult.INCONCLUSIVE else max(exposed_needed(), arm.exposed + 1),
        places=places_of(own) if result is SoakResult.FOUND else (),
        evidence=tuple(observation.evidence for observation in faulty[:EVIDENCE_MAX]),
    )


def _result(fault: SoakFault, arm: Tally, control: Tally, p_value: float) -> tuple[SoakResult, str]:
    if words := _found_words(fault, arm, control, p_value):
        return SoakResult.FOUND, words
    if doubt := _doubt(fault, arm, control, p_value):
        return SoakResult.INCONCLUSIVE, doubt
    below = arm.interval[1]
    if arm.faulty:
        return SoakResult.CLEAN, f"{arm}, the baseline {control}: no more often than without speculation"
    return SoakResult.CLEAN, f"none in {arm.exposed} requests: below {below:.1%} at 95 %"


def _found_words(fault: SoakFault, arm: Tally, control: Tally, p_value: float) -> str:
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


# Shared by all the places that could be named.
PLACE_ALPHA = 0.01
_PLACES = 6


def places_of(observations: Sequence[SoakObservation]) -> tuple[str, ...]:
    """The places in words, the narrowest first. Nothing where nothing was seen, or too little to tell."""
    return tuple(_named_places(observations))


def _named_places(observations: Sequence[SoakObservation]) -> Iterator[str]:
    kinds = _only_in(observations, lambda each: each.kind)
    if kinds:
        yield f"only in {_listed(kinds)} requests"
    streams = _only_from(observations, lambda each: each.exposure.streams_max)
    if streams:
        yield f"only from {streams} streams on"
    if _only_from(observations, lambda each: min(1, each.exposure.joined)):
        yield "only where another prompt was read meanwhile"
    launches = _only_in(observations, lambda each: each.exposure.launch)
    if launches:
        yield f"only on launch {_listed(launches)}"
    before = _only_from(observations, lambda each: each.exposure.before)
    if before and not launches:
        yield f"only after {before} requests to one launch"
    stages = _only_in(observations, lambda each: each.exposure.stage)
    if stages == [Stage.AFTER]:
        yield "only after the load"
    elif stages == [Stage.DURING] and not streams:
        yield "only under load"
    elif stages == [Stage.AFTER, Stage.DURING]:
        yield "not before the load, and still after it"


def _only_in(
    observations: Sequence[SoakObservation], value_of: Callable[[SoakObservation], Hashable]
) -> list[Hashable]:
    """The values with faults, where the others were exposed enough to be called clean."""
    faulty = {value_of(observation) for observation in observations if observation.is_faulty}
    exposed = Counter(value_of(observation) for observation in observations)
    if not faulty or set(exposed) == faulty:
        return []
    outside = sum(count for value, count in exposed.items() if value not in faulty)
    # As many choices of values as there are sets of this size: the more one could have named, the less it says.
    choices = exp(log_ways(len(exposed), len(faulty)))
    return sorted(faulty, key=str) if _is_telling(observations, outside, choices) else []


def _only_from(observations: Sequence[SoakObservation], value_of: Callable[[SoakObservation], int]) -> int:
    """The least value with a fault, where enough was exposed below it; 0 where that says nothing."""
    faulty = [value_of(observation) for observation in observations if observation.is_faulty]
    if not faulty:
        return 0
    outside = sum(value_of(observation) < min(faulty) for observation in observations)
    choices = len({value_of(observation) for observation in observations})
    return min(faulty) if _is_telling(observations, outside, choices) else 0


def _is_telling(observations: Sequence[SoakObservation], outside: int, choices: float) -> bool:
    """All faults inside by chance: as many ways to choose them there over all ways."""
    count = len({observation.unit for observation in observations if observation.is_faulty})
    inside = len(observations) - outside
    if not outside or count > inside:
        return False
    chance = exp(log_ways(inside, count) - log_ways(len(observations), count))
    return chance * choices < PLACE_ALPHA / _PLACES


def log_ways(total: int, chosen: int) -> float:
    """The logarithm of the number of ways of choosing so many out of all."""
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)


def _listed(values: Sequence[Hashable]) -> str:
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# As the gate calls them extreme (lossless/gate.py), and what is far enough from there to be called another state.
NONE_BELOW, ALL_ABOVE = 0.02, 0.995
FAR_FROM_NONE, FAR_FROM_ALL = 0.10, 0.95
# A window is this many answers, and says nothing with fewer drafted tokens or answers than these.
WINDOW_ANSWERS = 40
DRAFTED_MIN, ANSWERS_MIN = 200, 5
STEP_DRAFTED_MIN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceWindow:
    """Consecutive answers of one launch and stage. An alarm is one in which acceptance was extreme."""

    launch: int
    stage: Stage
    since_s: Seconds
    answers: int
    # Drafted and accepted by kind of request; "" where a server counted all of them together.
    kinds: Mapping[str, tuple[Tokens, Tokens]]
    # Acceptance on the same kinds otherwise; 0 where nobody asked.
    usual: float = 0.0

    @property
    def drafted(self) -> Tokens:
        return sum(drafted for drafted, _ in self.kinds.values())

    @property
    def accepted(self) -> Tokens:
        return sum(accepted for _, accepted in self.kinds.values())

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def message(self) -> str:
        what = "almost nothing" if self.rate < NONE_BELOW else "almost everything"
        return (
            f"launch {self.launch}, {self.stage.value} the load, from {self.since_s:.0f} s on: {what} of "
            f"{self.drafted} drafted tokens was accepted ({self.rate:.1%}), otherwise {self.usual:.0%} on the same "
            "kinds of requests"
        )

    @property
    def is_extreme(self) -> bool:
        has_enough = self.drafted >= DRAFTED_MIN and self.answers >= ANSWERS_MIN
        return has_enough and not NONE_BELOW <= self.rate <= ALL_ABOVE

    def expected(self, usual: Mapping[str, tuple[Tokens, Tokens]]) -> float | None:
        """The acceptance of these kinds at other times; None where most of it was not asked then."""
        counted = {kind: drafted for kind, (drafted, _) in self.kinds.items() if usual.get(kind, (0, 0))[0]}
        drafted = sum(counted.values())
        if 2 * drafted < self.drafted or not drafted:
            return None
        return sum(count * usual[kind][1] / usual[kind][0] for kind, count in counted.items()) / drafted


def acceptance_alarms(asked: Sequence[tuple[str, SoakAnswer]]) -> tuple[AcceptanceWindow, ...]:
    """The first extreme window of each launch and stage, from one arm's answers, each with the kind of its request."""
    return _alarms(list(_windows(asked)))


def step_alarms(steps: Sequence[AcceptanceWindow]) -> tuple[AcceptanceWindow, ...]:
    """The same where answers do not say what was drafted for them: counts of a whole step do not tell kinds of requests
    apart, so that only many drafts say anything."""
    return _alarms([step for step in steps if step.drafted >= STEP_DRAFTED_MIN])


def _alarms(windows: Sequence[AcceptanceWindow]) -> tuple[AcceptanceWindow, ...]:
    usual = _drafts_of_windows(window for window in windows if not window.is_extreme)
    alarms: dict[tuple[int, Stage], AcceptanceWindow] = {}
    for window in windows:
        expected = window.expected(usual)
        if not window.is_extreme or expected is None:
            continue
        is_other = expected >= FAR_FROM_NONE if window.rate < NONE_BELOW else expected <= FAR_FROM_ALL
        if is_other:
            alarms.setdefault((window.launch, window.stage), replace(window, usual=expected))
    return tuple(alarms.values())


def _windows(asked: Sequence[tuple[str, SoakAnswer]]) -> Iterator[AcceptanceWindow]:
    groups: dict[tuple[int, Stage], list[tuple[str, SoakAnswer]]] = defaultdict(list)
    for kind, answer in sorted(asked, key=lambda pair: pair[1].exposure.ended_s):
        if answer.drafted:
            groups[answer.exposure.launch, answer.exposure.stage].append((kind, answer))
    for (launch, stage), pairs in groups.items():
        # The rest goes to the last window: a short one of its own would say nothing.
        count = max(1, len(pairs) // WINDOW_ANSWERS)
        for place in range(count):
            end = len(pairs) if place == count - 1 else (place + 1) * WINDOW_ANSWERS
            part = pairs[place * WINDOW_ANSWERS : end]
            yield AcceptanceWindow(
                launch=launch,
                stage=stage,
                since_s=part[0][1].exposure.sent_s,
                answers=len(part),
                kinds=_drafts_by_kind(part),
            )


def _drafts_by_kind(pairs: Sequence[tuple[str, SoakAnswer]]) -> dict[str, tuple[Tokens, Tokens]]:
    counts: dict[str, tuple[Tokens, Tokens]] = defaultdict(lambda: (0, 0))
    for kind, answer in pairs:
        drafted, accepted = counts[kind]
        counts[kind] = (drafted + (answer.drafted or 0), accepted + (answer.accepted or 0))
    return dict(counts)


def _drafts_of_windows(windows: Iterable[AcceptanceWindow]) -> dict[str, tuple[Tokens, Tokens]]:
    counts: dict[str, tuple[Tokens, Tokens]] = defaultdict(lambda: (0, 0))
    for window in windows:
        for kind, (drafted, accepted) in window.kinds.items():
            before = counts[kind]
            counts[kind] = (before[0] + drafted, before[1] + accepted)
    return dict(counts)
