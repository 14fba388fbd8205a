"""Acceptance that goes to nothing or to everything where it was not so before: a verifier that broke on the way.

Held against the same kinds of requests at other times, for a copied text is accepted whole by any working server. What
is extreme from the first answer to the last is the gate's finding, not one of the soak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from speclift.core.units import Seconds, Tokens
from speclift.lossless.soak.values import SoakAnswer, Stage

# As the gate calls them extreme (lossless/gate.py), and what is far enough from there to be called another state.
NONE_BELOW, ALL_ABOVE = 0.02, 0.995
FAR_FROM_NONE, FAR_FROM_ALL = 0.10, 0.95
# A window is this many answers, and says nothing with fewer drafted tokens or answers than these.
WINDOW_ANSWERS = 40
DRAFTED_MIN, ANSWERS_MIN = 200, 5
STEP_DRAFTED_MIN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceAlarm:
    """One launch in one stage in which acceptance was extreme, and what it is on the same kinds otherwise."""

    launch: int
    stage: Stage
    since_s: Seconds
    drafted: Tokens
    accepted: Tokens
    usual: float

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted

    @property
    def message(self) -> str:
        what = "almost nothing" if self.rate < NONE_BELOW else "almost everything"
        return (
            f"launch {self.launch}, {self.stage.value} the load, from {self.since_s:.0f} s on: {what} of "
            f"{self.drafted} drafted tokens was accepted ({self.rate:.1%}), otherwise {self.usual:.0%} on the same "
            "kinds of requests"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDrafts:
    """What a server counted in one step of a launch, all its answers together."""

    launch: int
    stage: Stage
    since_s: Seconds
    drafted: Tokens
    accepted: Tokens


def acceptance_alarms(asked: Sequence[tuple[str, SoakAnswer]]) -> tuple[AcceptanceAlarm, ...]:
    """Of one arm's answers, each with the kind of its request: the first extreme window of each launch and stage."""
    return _alarms(list(_windows(asked)))


def step_alarms(steps: Sequence[CountedDrafts]) -> tuple[AcceptanceAlarm, ...]:
    """Where answers do not say what was drafted for them. Such counts do not tell kinds of requests apart, so that only
    many drafts say anything."""
    return _alarms(
        [
            _Window(
                launch=step.launch,
                stage=step.stage,
                since_s=step.since_s,
                answers=ANSWERS_MIN,
                kinds={"": (step.drafted, step.accepted)},
            )
            for step in steps
            if step.drafted >= STEP_DRAFTED_MIN
        ]
    )


def _alarms(windows: Sequence[_Window]) -> tuple[AcceptanceAlarm, ...]:
    usual = _by_kind(window for window in windows if not window.is_extreme)
    found: dict[tuple[int, Stage], AcceptanceAlarm] = {}
    for window in windows:
        expected = window.expected(usual)
        if not window.is_extreme or expected is None:
            continue
        is_other = expected >= FAR_FROM_NONE if window.rate < NONE_BELOW else expected <= FAR_FROM_ALL
        if is_other:
            found.setdefault(
                (window.launch, window.stage),
                AcceptanceAlarm(
                    launch=window.launch,
                    stage=window.stage,
                    since_s=window.since_s,
                    drafted=window.drafted,
                    accepted=window.accepted,
                    usual=expected,
                ),
            )
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Consecutive answers of one launch and stage; drafted and accepted by kind."""

    launch: int
    stage: Stage
    since_s: Seconds
    answers: int
    kinds: Mapping[str, tuple[Tokens, Tokens]]

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
    def is_extreme(self) -> bool:
        has_enough = self.drafted >= DRAFTED_MIN and self.answers >= ANSWERS_MIN
        return has_enough and not NONE_BELOW <= self.rate <= ALL_ABOVE

    def expected(self, usual: Mapping[str, tuple[Tokens, Tokens]]) -> float | None:
        """The acceptance of these kinds at other times; None where most of it was not asked then."""
        known = {kind: drafted for kind, (drafted, _) in self.kinds.items() if usual.get(kind, (0, 0))[0]}
        drafted = sum(known.values())
        if 2 * drafted < self.drafted or not drafted:
            return None
        return sum(count * usual[kind][1] / usual[kind][0] for kind, count in known.items()) / drafted


def _windows(asked: Sequence[tuple[str, SoakAnswer]]) -> Iterator[_Window]:
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
            yield _Window(
                launch=launch,
                stage=stage,
                since_s=part[0][1].exposure.sent_s,
                answers=len(part),
                kinds=_counted(part),
            )


def _counted(pairs: Sequence[tuple[str, SoakAnswer]]) -> dict[str, tuple[Tokens, Tokens]]:
    counts: dict[str, tuple[Tokens, Tokens]] = defaultdict(lambda: (0, 0))
    for kind, answer in pairs:
        drafted, accepted = counts[kind]
        counts[kind] = (drafted + (answer.drafted or 0), accepted + (answer.accepted or 0))
    return dict(counts)


def _by_kind(windows: Iterable[_Window]) -> dict[str, tuple[Tokens, Tokens]]:
    counts: dict[str, tuple[Tokens, Tokens]] = defaultdict(lambda: (0, 0))
    for window in windows:
        for kind, (drafted, accepted) in window.kinds.items():
            before = counts[kind]
            counts[kind] = (before[0] + drafted, before[1] + accepted)
    return dict(counts)
