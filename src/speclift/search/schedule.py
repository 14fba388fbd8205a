"""Which k at which batch size, in as few segments as lose at most 1 %? For engines that switch k by batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from speclift.core.errors import UsageError

# Two arms within 1 % are not told apart by what is measured here; vLLM PR 49163 takes the same tie.
TOLERANCE = 0.01


class Segment(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """From `start` to `end` sequences, both included, draft `k` tokens; 0 drafts none."""

    start: int
    end: int
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    segments: tuple[Segment, ...]
    # Against the best k at each batch size: the mean and the worst.
    loss_mean: float
    loss_max: float

    @property
    def is_static(self) -> bool:
        return len({segment.k for segment in self.segments}) == 1

    def k_at(self, batch: int) -> int:
        """Beyond the last segment its k goes on."""
        if batch < 1:
            raise UsageError(f"a batch holds at least 1 sequence, saw {batch}")
        return next((each.k for each in self.segments if batch <= each.end), self.segments[-1].k)

    def as_triples(self) -> list[list[int]]:
        """As vLLM's num_speculative_tokens_per_batch_size takes it (0.32): [first, last, k], the first from 1."""
        return [[segment.start, segment.end, segment.k] for segment in self.segments]

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Batch sizes on both sides of every switch: where a schedule has to be measured."""
        return tuple(batch for segment in self.segments[:-1] for batch in (segment.end, segment.end + 1))


def compress(
    batches: Sequence[int],
    ks: Sequence[int],
    rates: Sequence[Sequence[float]],
    *,
    weights: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
) -> Schedule:
    """The fewest segments in which every batch size stays within `tolerance` of its best k.

    `rates[i][j]` is what batch size i yields at ks[j], in any unit. Among equally few segments the one with the
    smallest weighted loss, then with the smaller k; so one k for all where one is good enough.
    """
    _require_table(batches, ks, rates, tolerance)
    shares = _shares(len(batches), weights)
    losses = [[1.0 - rate / max(row) for rate in row] for row in rates]
    order = sorted(range(len(ks)), key=lambda column: ks[column])
    # best[i]: segments, loss, k and start of the cheapest way to cover the first i batch sizes.
    best: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    starts: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(batches) + 1):
        choice: tuple[int, float, tuple[int, ...]] | None = None
        origin = (0, 0)
        for column in order:
            cost = 0.0
            for start in range(end - 1, -1, -1):
                if losses[start][column] > tolerance:
                    break
                cost += shares[start] * losses[start][column]
                count, loss, path = best[start]
                reached = (count + 1, round(loss + cost, 12), (*path, ks[column]))
                if choice is None or reached < choice:
                    choice, origin = reached, (start, column)
        assert choice is not None  # the best k of a batch size loses nothing
        best.append(choice)
        starts.append(origin)
    return _schedule(batches, ks, losses, shares, starts)


def _schedule(
    batches: Sequence[int],
    ks: Sequence[int],
    losses: Sequence[Sequence[float]],
    shares: Sequence[float],
    starts: Sequence[tuple[int, int]],
) -> Schedule:
    cuts: list[tuple[int, int, int]] = []
    end = len(batches)
    while end > 0:
        start, column = starts[end]
        cuts.append((start, end, column))
        end = start
    segments: list[Segment] = []
    for start, end, column in reversed(cuts):
        first = 1 if start == 0 else segments[-1].end + 1
        # Between two batch sizes that were looked at, the switch lies at their geometric middle.
        last = batches[-1] if end == len(batches) else _between(batches[end - 1], batches[end])
        segments.append(Segment(start=first, end=last, k=ks[column]))
    picked = [losses[row][column] for start, end, column in reversed(cuts) for row in range(start, end)]
    mean = math.fsum(share * loss for share, loss in zip(shares, picked, strict=True))
    return Schedule(segments=tuple(segments), loss_mean=mean, loss_max=max(picked))


def _between(lower: int, upper: int) -> int:
    return min(max(lower, math.isqrt(lower * upper)), upper - 1)


def _shares(count: int, weights: Sequence[float] | None) -> list[float]:
    if weights is None:
        return [1.0 / count] * count
    total = math.fsum(weights)
    if len(weights) != count or total <= 0 or any(weight < 0 for weight in weights):
        raise UsageError(f"a schedule over {count} batch sizes needs as many weights, saw {list(weights)}")
    return [weight / total for weight in weights]


def _require_table(
    batches: Sequence[int], ks: Sequence[int], rates: Sequence[Sequence[float]], tolerance: float
) -> None:
    if not batches or not _rises((0, *batches)):
        raise UsageError(f"a schedule needs rising batch sizes from 1 on, saw {list(batches)}")
    if not ks or not _rises((-1, *sorted(ks))):
        raise UsageError(f"a schedule needs different k of 0 or more, saw {list(ks)}")
    if len(rates) != len(batches) or any(len(row) != len(ks) for row in rates):
        raise UsageError(f"a schedule needs one rate for each of {len(batches)} batch sizes x {len(ks)} k")
    if not all(_are_rates(row) for row in rates):
        raise UsageError("a rate is at least 0, and above 0 for some k of every batch size")
    if not 0 <= tolerance < 1:
        raise UsageError(f"the tolerance is a share in 0..1, saw {tolerance}")


def _rises(values: Sequence[int]) -> bool:
    return all(lower < upper for lower, upper in pairwise(values))


def _are_rates(row: Sequence[float]) -> bool:
    return all(0 <= rate < math.inf for rate in row) and max(row) > 0
