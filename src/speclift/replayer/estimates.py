"""Accepted length per segment and k from sums that grow with the prompts, up to a limit, and not with the log.

Sums are whole numbers, so that those of the parts of a log add up to those of the log, bit for bit, however it was cut
and in whatever order they come.

L = sum of decoded tokens / sum of steps over requests; its interval counts prompts, not steps or repeats, because the
steps of one answer and the answers to one prompt resemble each other (delta method for a ratio, Student's t).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speclift.core.records import Phase, Record
from speclift.core.results import CONFIDENCE
from speclift.core.traffic import Load
from speclift.core.units import Tokens
from speclift.replayer.counts import Counts, Ints

Floats = NDArray[np.float64]

METHOD = "ratio, delta method over requests"
# Prompts are told apart by a hash of this many values; two that share one count as one, which errs towards width.
CLUSTERS_MAX = 1 << 14
# A double of at least 1 is a multiple of it; 2^10 of them, more than any k, fit into 63 bits.
RATIO_UNIT = 1 << 52
HALF_BITS = 26
# So few prompts that agree to the last step are no sign that the next will: they have no interval.
AGREEING_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthEstimate:
    """Accepted length at one k. The interval is None where fewer than two prompts had a decode step, or a few agree."""

    k: int
    value: float | None
    low: float | None
    high: float | None
    # The same, each request weighing alike whatever its length.
    per_request: float | None
    draft_share: float | None
    drafted_per_step: float | None
    # Share of what was drafted that was accepted; None where nothing was drafted.
    acceptance_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEstimate:
    segment: str
    requests: int
    tokens: Tokens
    lengths: tuple[LengthEstimate, ...]


class LogSums:
    """All that one segment's estimate at one k needs."""

    def __init__(self) -> None:
        self.requests = 0
        self.decoding = 0
        self.decoded = self.steps = self.drafting = self.drafted = self.accepted = 0
        # Decoded tokens and steps by prompt.
        self._by_prompt = np.zeros((0, 2), dtype=np.int64)
        # Tokens per step, summed over requests in units of RATIO_UNIT.
        self._ratios = 0

    def add(self, counts: Counts, chosen: NDArray[np.bool_], prompts: Ints | None = None) -> None:
        """`prompts` numbers the prompt of each chosen answer from 0; without it every answer has its own."""
        decoded, steps = counts.decoded[chosen], counts.steps[chosen]
        has_steps = steps > 0
        if prompts is None:
            prompts = self.requests + np.arange(len(decoded))
        self.requests += len(decoded)
        self.decoding += int(has_steps.sum())
        self.decoded += int(decoded.sum())
        self.steps += int(steps.sum())
        self.drafting += int(counts.drafting[chosen].sum())
        self.drafted += int(counts.drafted[chosen].sum())
        self.accepted += int(counts.accepted[chosen].sum())
        self._ratios += _in_units(decoded[has_steps] / steps[has_steps])
        self._make_room(int(prompts.max(initial=-1)) + 1)
        np.add.at(self._by_prompt, prompts[has_steps], np.column_stack([decoded, steps])[has_steps])

    def merge(self, other: LogSums, prompts: Ints) -> None:
        """`prompts` holds our number of each prompt that the other has numbered."""
        self.requests += other.requests
        self.decoding += other.decoding
        self.decoded += other.decoded
        self.steps += other.steps
        self.drafting += other.drafting
        self.drafted += other.drafted
        self.accepted += other.accepted
        self._ratios += other._ratios
        self._make_room(int(prompts.max(initial=-1)) + 1)
        counted = other._by_prompt[: len(prompts)]
        self._by_prompt[prompts[: len(counted)]] += counted

    def trim(self, prompts: int) -> None:
        """To what is used, before it travels."""
        self._by_prompt = self._by_prompt[:prompts].copy()

    def _make_room(self, prompts: int) -> None:
        missing = prompts - len(self._by_prompt)
        if missing > 0:
            # Doubled, so that a long log does not copy it at every batch.
            room = np.zeros((max(missing, len(self._by_prompt)), 2), dtype=np.int64)
            self._by_prompt = np.concatenate([self._by_prompt, room])

    def estimate(self, k: int, order: Ints | None = None) -> LengthEstimate:
        """`order`: in which prompts are summed, where that must not hang on the order in which they came."""
        if self.steps == 0:
            return LengthEstimate(
                k=k,
                value=None,
                low=None,
                high=None,
                per_request=None,
                draft_share=None,
                drafted_per_step=None,
                acceptance_rate=None,
            )
        value = self.decoded / self.steps
        low, high = self._interval(value, k, order)
        return LengthEstimate(
            k=k,
            value=value,
            low=low,
            high=high,
            per_request=self._ratios / (self.decoding * RATIO_UNIT),
            draft_share=self.drafting / self.steps,
            drafted_per_step=self.drafted / self.steps,
            acceptance_rate=self.accepted / self.drafted if self.drafted else None,
        )

    def _interval(self, value: float, k: int, order: Ints | None) -> tuple[float, float] | tuple[None, None]:
        rows = self._by_prompt if order is None else self._by_prompt[order]
        decoded, steps = rows[rows[:, 1] > 0].T
        n = len(steps)
        squares = float(np.sum((decoded - value * steps) ** 2))
        agree = math.sqrt(squares) <= 1e-9 * self.decoded
        if n < 2 or (agree and n < AGREEING_MIN):
            return None, None
        from scipy.special import stdtrit

        error = math.sqrt(n / (n - 1) * squares) / self.steps
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
        # Every step yields its own token and at most k more.
        return max(1.0, value - half), min(k + 1.0, value + half)


class LogTotals:
    """The sums of every segment and k of one drafter. 'all' comes first, then segments as they appeared."""

    def __init__(self, ks: Sequence[int], *, all_name: str) -> None:
        self._ks = tuple(ks)
        self._all_name = all_name
        self._sums: dict[str, list[LogSums]] = {all_name: [LogSums() for _ in self._ks]}
        # Of each segment, the prompts by their hash, numbered in the order in which they came.
        self._prompts: dict[str, dict[int, int]] = {}

    def add(
        self, counts: Sequence[Counts], segments: Ints, names: Sequence[str], prompts: Ints | None = None
    ) -> None:
        """`segments` holds each answer's index into `names`, `prompts` a hash of what it answers; without hashes every
        answer has a prompt of its own."""
        present = [(self._all_name, np.ones(len(segments), dtype=np.bool_))]
        present += [(names[index], segments == index) for index in np.unique(segments)]
        for name, chosen in present:
            sums = self._sums.setdefault(name, [LogSums() for _ in self._ks])
            numbers = None if prompts is None else self._numbers(name, prompts[chosen])
            for each, at_k in zip(sums, counts, strict=True):
                each.add(at_k, chosen, numbers)

    def _numbers(self, name: str, prompts: Ints) -> Ints:
        known = self._prompts.setdefault(name, {})
        return np.array(
            [known.setdefault(prompt % CLUSTERS_MAX, len(known)) for prompt in prompts.tolist()],
            dtype=np.int64,
        )

    def merge(self, other: LogTotals) -> None:
        """What another part of the log gave the same drafter, with the hashes of its prompts."""
        for name, sums in other._sums.items():
            mine = self._sums.setdefault(name, [LogSums() for _ in self._ks])
            hashes = np.array(list(other._prompts.get(name, ())), dtype=np.int64)
            numbers = self._numbers(name, hashes)
            for each, theirs in zip(mine, sums, strict=True):
                each.merge(theirs, numbers)

    def trim(self) -> None:
        for name, sums in self._sums.items():
            for each in sums:
                each.trim(len(self._prompts.get(name, ())))

    def estimates(self, names: Sequence[str] | None = None) -> tuple[SegmentEstimate, ...]:
        """'all' and these segments; without names, those there are as they appeared."""
        chosen = list(self._sums) if names is None else [self._all_name, *names]
        return tuple(self._estimate(name, self._sums[name]) for name in chosen)

    def _estimate(self, name: str, sums: Sequence[LogSums]) -> SegmentEstimate:
        known = self._prompts.get(name)
        # By hash, so that the parts of a log may come in any order.
        order = None if known is None else np.argsort(np.array(list(known), dtype=np.int64))
        return SegmentEstimate(
            segment=name,
            requests=sums[0].requests,
            tokens=sums[0].decoded + sums[0].requests,
            lengths=tuple(each.estimate(k, order) for k, each in zip(self._ks, sums, strict=True)),
        )


def _in_units(ratios: Floats) -> int:
    """Their sum without rounding: tokens per step are at least 1, where doubles are multiples of the unit. In two
    halves, for a batch of them is more than 63 bits hold."""
    units = (ratios * RATIO_UNIT).astype(np.int64)
    high, low = units >> HALF_BITS, units & ((1 << HALF_BITS) - 1)
    return (int(high.sum()) << HALF_BITS) + int(low.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """`per_token`: what verifying one drafted token adds to a step, as a share of a plain step."""

    per_token: float
    load: Load | None
    source: str


@dataclass(slots=True)
class _StepTime:
    decode_s: float = 0.0
    steps: int = 0
    drafted: int = 0

    @property
    def per_step_s(self) -> float:
        return self.decode_s / self.steps

    @property
    def drafted_per_step(self) -> float:
        return self.drafted / self.steps


def study_costs(
    records: Sequence[Record], *, baseline: str, arms: Sequence[str], source: str
) -> tuple[StepCost, ...]:
    """The cost at every load with a baseline and an arm that drafted: least squares through (0 drafted, 1 step)."""
    times: dict[tuple[Load, str], _StepTime] = {}
    for record in records:
        if record.is_ok and record.place.phase is Phase.MEASURED:
            _add(times, record, is_baseline=record.place.arm == baseline)
    by_load: dict[Load, dict[str, _StepTime]] = {}
    for (load, arm), time in times.items():
        by_load.setdefault(load, {})[arm] = time
    costs = []
    for load, found in by_load.items():
        cost = _cost(found, baseline, arms)
        if cost is not None:
            costs.append(StepCost(per_token=cost, load=load, source=source))
    return tuple(costs)


def _add(times: dict[tuple[Load, str], _StepTime], record: Record, *, is_baseline: bool) -> None:
    if record.tpot_s is None or record.output_tokens is None:
        return
    decoded = record.output_tokens - 1
    steps = decoded if is_baseline else record.decode_steps
    if not steps:
        return
    time = times.setdefault((record.place.load, record.place.arm), _StepTime())
    time.decode_s += record.tpot_s * decoded
    time.steps += steps
    time.drafted += record.drafted or 0


def _cost(found: Mapping[str, _StepTime], baseline: str, arms: Sequence[str]) -> float | None:
    plain = found.get(baseline)
    drafting = [found[arm] for arm in arms if arm in found and found[arm].drafted > 0]
    if plain is None or not plain.decode_s or not drafting:
        return None
    pairs = [(arm.drafted_per_step, arm.per_step_s / plain.per_step_s - 1.0) for arm in drafting]
    cost = sum(drafted * extra for drafted, extra in pairs) / sum(drafted**2 for drafted, _ in pairs)
    # Noise may make a drafting step look cheaper than a plain one; it never is.
    return max(cost, 0.0)
