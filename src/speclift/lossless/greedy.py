"""Temperature 0: the baseline against itself first, then the arm against the baseline.

A margin far beyond what the baseline's own arithmetic moves is a fault however rare; a close call that fell the
other way is not, however often. Without margins only the rate can tell, and without enough tokens nothing can.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

import numpy as np
from msgspec.structs import replace

from speclift.lossless.answers import (
    Answer,
    Compared,
    Divergence,
    Kind,
    aligned,
    hazard,
    more_often,
    tokens_for_rate,
)
from speclift.lossless.gate import Greedy, GreedyCheck, Hazard, Result, few_prompts

# With the 1 % of sampled.py false alarms of the whole gate stay under 2 % (benchmarks/lossless.py).
RATE_ALPHA = 0.003
# A tie within 0.1 nat may fall either way on any engine; more is read off the baseline against itself.
TIE_NATS = 0.1
NOISE_QUANTILE = 0.999
# On a GPU in BF16 logits have steps of an eighth of a nat, and which of two runs strayed furthest is chance: of as much
# text as the arm's, or at least a quarter of it, the control shows how often that happens.
CONTROL_SHARE = 0.25
# The doubt is of the whole gate, once: looser than for a failure, so that twice the control's rate is noticed.
WIDE_ALPHA = 0.01
# e to the 1: one token 2.7 times as likely as the other is no tie, unless the baseline's own noise is as large.
FAULT_NATS = 1.0
# The control's hazard over all shapes.
TOGETHER = "together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The baseline against itself: another launch, another batch shape."""

    # By shape, such as "alone" and "batched".
    hazards: dict[str, Hazard]
    margins: tuple[float, ...]
    # Positions at which both runs listed the two likeliest tokens, and how far the gap between them moved.
    noise_tokens: int
    noise_nats: float
    noise_nats_max: float
    # Over all shapes, what came out alike in several of them counted once.
    together: Hazard
    # Differences between two of its own runs that would be called faults of an arm.
    faults: int = 0

    @property
    def noise_limit(self) -> float:
        """The nats by which the arithmetic of one text moves a gap."""
        return max(TIE_NATS, self.noise_nats)

    @property
    def tie_nats(self) -> float:
        return max(self.noise_limit, *self.margins, 0.0)

    @property
    def beyond_noise(self) -> Hazard:
        """How often two of its own runs parted where more than that noise lay between the tokens."""
        wide = sum(margin > self.noise_limit for margin in self.margins)
        return Hazard(events=wide, tokens=self.together.tokens)

    @property
    def fault_nats(self) -> float:
        return max(FAULT_NATS, 2 * self.tie_nats)

    def as_document(self) -> dict[str, Hazard | tuple[float, ...] | int | float]:
        return {
            **self.hazards,
            TOGETHER: self.together,
            "margins": self.margins,
            "noise_tokens": self.noise_tokens,
            "noise_nats_p999": self.noise_nats,
            "noise_nats_max": self.noise_nats_max,
            "tie_nats": self.tie_nats,
            "fault_nats": self.fault_nats,
        }


def control_of(pairs: Mapping[str, Sequence[Compared]], noise: Sequence[float]) -> Control:
    # What came out alike in several ways of asking is one observation.
    distinct = dict.fromkeys(chain.from_iterable(pairs.values()))
    parted = [pair.divergence for pair in distinct if pair.divergence is not None]
    margins = [
        margin
        for divergence in parted
        if (margin := divergence.closest) is not None
        and (not divergence.is_at_least or margin == divergence.unseen_margin)
    ]
    control = Control(
        hazards={shape: hazard(compared) for shape, compared in pairs.items()},
        margins=tuple(sorted(margin for margin in margins if math.isfinite(margin))),
        noise_tokens=len(noise),
        noise_nats=float(np.quantile(noise, NOISE_QUANTILE)) if noise else 0.0,
        noise_nats_max=max(noise, default=0.0),
        together=hazard(chain.from_iterable(pairs.values())),
    )
    return dataclasses.replace(control, faults=sum(_call(each, control) is _Call.FAULT for each in parted))


def gap_noise(reference: Answer, again: Answer) -> list[float]:
    """How far the gap between the two likeliest tokens moved from run to run, while both say the same."""
    moved = []
    for (_, first), (_, second) in zip(aligned(reference), aligned(again), strict=False):
        if first.data != second.data:
            break
        gaps = []
        for token in (first, second):
            listed = {choice.data: choice.logprob for choice in token.choices}
            rival = max(
                (c for c in first.choices if c.data != first.data), key=lambda c: c.logprob, default=None
            )
            if rival is not None and rival.data in listed:
                gaps.append(token.logprob - listed[rival.data])
        if len(gaps) == 2:
            moved.append(abs(gaps[0] - gaps[1]))
    return moved


def settled_by_equality(greedy: Greedy, invariant: Greedy, control: Hazard) -> Greedy:
    """The part as servers settle it whose arithmetic does not depend on the batch: there the same text comes out, or
    the arm changes it.

    They say nothing where the baseline itself came out otherwise, or where too little was answered.
    """
    parted = sum(check.events for check in invariant.checks)
    natural = control.events
    if natural or (not parted and invariant.result is not Result.PASS):
        why = (
            f"two baseline runs differ {natural} times there too"
            if natural
            else f"too little was compared: {invariant.message}"
        )
        return replace(greedy, message=f"{greedy.message}; batch-invariant kernels settle nothing: {why}")
    if parted:
        return replace(
            invariant,
            result=Result.FAIL,
            message=f"{parted} differences in {invariant.tokens:.0f} tokens with batch-invariant kernels, where two "
            f"baseline runs have none in {control.tokens:.0f}",
        )
    return replace(
        greedy,
        result=Result.PASS,
        message=f"{invariant.tokens:.0f} tokens with batch-invariant kernels are all the same, so what differs without "
        f"them is arithmetic; there: {greedy.message}",
    )


class _Call(StrEnum):
    """A difference is taken for one of these; the worst first."""

    FAULT = "fault"
    WIDE = "neither a tie nor clearly a fault"
    UNKNOWN = "without a margin"
    REFUSED = "answered by one server alone"
    TIE = "tie"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Everything compared at temperature 0."""

    # Every way of asking, and all of them together.
    checks: tuple[GreedyCheck, ...]
    control: Control
    parted: Mapping[_Call, Sequence[Divergence]]
    tokens: float
    prompts: int
    detect: float

    def count(self, call: _Call) -> int:
        return len(self.parted[call])

    @property
    def too_often(self) -> list[GreedyCheck]:
        return [check for check in self.checks if check.p_value < RATE_ALPHA]

    @property
    def has_more_faults(self) -> bool:
        """Than two runs of the baseline: what they do to each other is nothing that the arm did."""
        arm = Hazard(events=self.count(_Call.FAULT), tokens=self.tokens)
        theirs = Hazard(events=self.control.faults, tokens=self.control.together.tokens)
        return not self.control.faults or more_often(arm, theirs) < RATE_ALPHA

    @property
    def beyond_noise(self) -> int:
        """Differences by more than the noise of one text, what came out alike in several ways counted once."""
        called = chain(self.parted[_Call.TIE], self.parted[_Call.WIDE])
        limit = self.control.noise_limit
        return len(
            {
                divergence
                for divergence in called
                if divergence.closest is not None and divergence.closest > limit
            }
        )

    @property
    def is_wider_than_control(self) -> bool:
        """True where they come more often than between two baseline runs. So it is where those never part, and where
        too little of them was seen to tell."""
        theirs = self.control.beyond_noise
        if not self.control.margins or theirs.tokens < CONTROL_SHARE * self.tokens:
            return True
        return more_often(Hazard(events=self.beyond_noise, tokens=self.tokens), theirs) < WIDE_ALPHA

    @property
    def unclear(self) -> int:
        """Differences between noise and fault that the control does not explain; "at least" so much may be more."""
        wide = self.parted[_Call.WIDE]
        return len(wide) if self.is_wider_than_control else sum(divergence.is_at_least for divergence in wide)

    @property
    def wrong_share(self) -> float:
        """The largest share at 95 %: what has no margin, or one that noise alone does not explain, may be a fault.
        Never more than all of them."""
        events = self.count(_Call.UNKNOWN) + self.count(_Call.WIDE)
        return min(1.0, Hazard(events=events, tokens=self.tokens).upper())


def judge_greedy(
    pairs: Mapping[str, Sequence[Compared]], shapes: Mapping[str, str], control: Control, *, detect: float
) -> Greedy:
    """`pairs` by way of asking; `shapes` says which of the control's hazards each is held against."""
    checks = tuple(
        _check(name, compared, control.hazards.get(shapes[name])) for name, compared in pairs.items()
    )
    seen = _Seen(
        checks=(*checks, _together(pairs, control)),
        control=control,
        parted=_by_call(pairs, control),
        tokens=sum(check.tokens for check in checks),
        prompts=max((_prompts(compared) for compared in pairs.values()), default=0),
        detect=detect,
    )
    result, message = _greedy_result(seen)
    parted = divergences(pairs, control)
    return Greedy(
        result=result,
        message=message,
        tokens=seen.tokens,
        prompts=seen.prompts,
        checks=checks,
        ties=seen.count(_Call.TIE),
        wide=seen.count(_Call.WIDE),
        faults=seen.count(_Call.FAULT),
        unknown=seen.count(_Call.UNKNOWN),
        refused=seen.count(_Call.REFUSED),
        parted=tuple(dict.fromkeys(divergence.case for divergence in parted)),
        without_margin=tuple(
            dict.fromkeys(divergence.case for divergence in parted if divergence.margin is None)
        ),
    )


def divergences(pairs: Mapping[str, Sequence[Compared]], control: Control) -> list[Divergence]:
    """Every difference, the worst kind first."""
    return [*chain.from_iterable(_by_call(pairs, control).values())]


def _by_call(
    pairs: Mapping[str, Sequence[Compared]], control: Control
) -> Mapping[_Call, Sequence[Divergence]]:
    parted: dict[_Call, list[Divergence]] = {call: [] for call in _Call}
    for pair in chain.from_iterable(pairs.values()):
        if pair.divergence is not None:
            parted[_call(pair.divergence, control)].append(pair.divergence)
    return parted


def _call(divergence: Divergence, control: Control) -> _Call:
    if divergence.kind is Kind.REFUSED:
        return _Call.REFUSED
    if divergence.unseen_margin is not None and divergence.unseen_margin <= control.tie_nats:
        return _Call.TIE
    if divergence.margin is None:
        return _Call.UNKNOWN
    if divergence.margin > control.fault_nats:
        return _Call.FAULT
    # "At least" so much says nothing against more.
    if divergence.margin > control.tie_nats or divergence.is_at_least:
        return _Call.WIDE
    return _Call.TIE


def _check(name: str, compared: Sequence[Compared], control: Hazard | None) -> GreedyCheck:
    return _checked(name, len(compared), hazard(compared), control or Hazard(events=0, tokens=0.0))


def _together(pairs: Mapping[str, Sequence[Compared]], control: Control) -> GreedyCheck:
    """All ways at once against all of the control: it leans to the batch, so that it errs towards silence. A prompt
    that parts alike in every way has parted once."""
    answers = sum(len(compared) for compared in pairs.values())
    return _checked("all together", answers, hazard(chain.from_iterable(pairs.values())), control.together)


def _checked(name: str, answers: int, own: Hazard, control: Hazard) -> GreedyCheck:
    return GreedyCheck(
        name=name,
        answers=answers,
        events=own.events,
        tokens=own.tokens,
        control=control,
        p_value=more_often(own, control),
    )


def _prompts(compared: Sequence[Compared]) -> int:
    return len({pair.case for pair in compared if pair.tokens})


def _greedy_result(seen: _Seen) -> tuple[Result, str]:
    if failure := _failure(seen):
        return Result.FAIL, failure
    if doubt := _doubt(seen):
        return Result.INCONCLUSIVE, doubt
    return Result.PASS, _all_clear(seen)


def _failure(seen: _Seen) -> str:
    """The evidence that the arm's tokens are not the target's; empty where nothing does."""
    faults = seen.parted[_Call.FAULT]
    if faults and seen.has_more_faults:
        worst_margin = max(fault.margin or 0.0 for fault in faults)
        beyond = "ended early" if math.isinf(worst_margin) else f"up to {worst_margin:.1f} nats"
        return (
            f"{len(faults)} of {seen.tokens:.0f} tokens differ where the baseline was sure ({beyond}; the baseline's "
            f"own runs differ by at most {seen.control.tie_nats:.2f})"
        )
    if seen.parted[_Call.UNKNOWN] and seen.too_often:
        check = min(seen.too_often, key=lambda check: check.p_value)
        return (
            f"{check.name}: {check.events} of {check.answers} answers differ from the baseline; its own runs "
            f"differ {check.control.events} times in {check.control.tokens:.0f} tokens (p = {check.p_value:.1g})"
        )
    return ""


def _doubt(seen: _Seen) -> str:
    """The reason why nothing can be passed on yet; empty where the arm passes."""
    needed = tokens_for_rate(seen.detect)
    if seen.tokens < needed:
        return f"{seen.tokens:.0f} tokens compared, {needed} needed to exclude {seen.detect:.1%} wrong tokens"
    if refused := seen.count(_Call.REFUSED):
        return f"{refused} requests were answered by only one of the two servers"
    if few := few_prompts(seen.prompts):
        return f"{few} for a result"
    if faults := seen.count(_Call.FAULT):
        return (
            f"{faults} of {seen.tokens:.0f} tokens differ where the baseline was sure, and two of its own runs do so "
            f"{seen.control.faults} times in {seen.control.together.tokens:.0f}"
        )
    natural = sum(own_runs.events for own_runs in seen.control.hazards.values())
    unknown = seen.count(_Call.UNKNOWN)
    if unclear := seen.unclear + (0 if natural else unknown):
        return (
            f"{unclear} differences in {seen.tokens:.0f} tokens are neither ties nor clear faults; "
            "compare more prompts"
        )
    if seen.wrong_share > seen.detect:
        wide = seen.count(_Call.WIDE)
        kinds = [f"{unknown} differences without log-probabilities"] if unknown else []
        kinds += [f"{wide} by more than noise"] if wide else []
        return f"{', '.join(kinds)}: wrong tokens below {seen.wrong_share:.1%}, required {seen.detect:.1%}"
    return ""


def _widest(seen: _Seen) -> float:
    return max(divergence.margin or 0.0 for divergence in seen.parted[_Call.WIDE])


def _all_clear(seen: _Seen) -> str:
    ties, wide, unknown = (seen.count(call) for call in (_Call.TIE, _Call.WIDE, _Call.UNKNOWN))
    parts = [f"{ties} differ{'' if ties > 1 else 's'} at a near-tie"] if ties else []
    parts += (
        [f"{wide} by up to {_widest(seen):.2f} nats, no more often than two baseline runs"] if wide else []
    )
    parts += [f"{unknown} differ, no more often than two baseline runs"] if unknown else []
    note = " (more often than two baseline runs)" if seen.too_often and ties else ""
    return (
        f"{seen.tokens:.0f} tokens: {', '.join(parts) or 'all the same'}, no fault{note}; "
        f"wrong tokens below {seen.wrong_share:.2%} (95 % confidence)"
    )
