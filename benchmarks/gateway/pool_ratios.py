"""How much faster is one way through mixed traffic than another, and how surely?

Each request is compared with itself in the same block, both at the plain server's output length: E2E = TTFT + TPOT x
(tokens - 1), as studies do. Segments count alike, as they are dealt. The interval allows for prompts that differ and
for blocks that do (a variance clustered both ways, within segments), so that one disturbed turn widens it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

# All-plain has two turns in each block: together they are what others are compared with, against each other they show
# what the comparison resolves.
PLAIN, AGAIN, SPEC, GATEWAY = WAYS = ("plain", "again", "spec", "gateway")
PLAINS = (PLAIN, AGAIN)
COVERAGE = 0.95
RESAMPLED = 1000
SEED = 7

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request as one way answered it."""

    way: str
    load: int
    block: int
    prompt: str
    repeat: int
    segment: str
    ttft_s: float
    e2e_s: float
    tokens: int

    def at_length(self, tokens: float) -> float:
        """Its E2E had it said so many tokens."""
        if self.tokens < 2 or tokens < 2:
            return self.e2e_s
        return self.ttft_s + (self.e2e_s - self.ttft_s) * (tokens - 1) / (self.tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One request both ways, in seconds at one length."""

    segment: str
    prompt: str
    block: int
    slow_s: float
    fast_s: float

    @property
    def log_ratio(self) -> float:
        return math.log(self.slow_s / self.fast_s)


def pairs(rows: Sequence[Row], slow: Sequence[str], fast: Sequence[str]) -> list[Pair]:
    """Of requests that all of these ways answered in the same block."""
    by_request: dict[tuple[int, int, str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        by_request[row.load, row.block, row.prompt, row.repeat][row.way] = row
    found = []
    for (_, block, prompt, _), answers in by_request.items():
        if not {*slow, *fast, PLAIN} <= answers.keys():
            continue
        length = answers[PLAIN].tokens
        # One number for all-plain's two turns: the middle of their logarithms.
        times = [_middle(answers[way].at_length(length) for way in ways) for ways in (slow, fast)]
        segment = answers[PLAIN].segment
        found.append(Pair(segment=segment, prompt=prompt, block=block, slow_s=times[0], fast_s=times[1]))
    return found


def speedup(found: Sequence[Pair]) -> Ratio:
    """Geometric mean of the ratios; not known of none."""
    if not found:
        return Ratio(value=math.nan, low=0.0, high=math.inf)
    by_segment: dict[str, list[float]] = defaultdict(list)
    for pair in found:
        by_segment[pair.segment].append(pair.log_ratio)
    means = {segment: float(np.mean(values)) for segment, values in by_segment.items()}
    off = [
        (pair.log_ratio - means[pair.segment]) / len(by_segment[pair.segment]) / len(means) for pair in found
    ]
    mean = float(np.mean(list(means.values())))
    prompts, blocks = {pair.prompt for pair in found}, {pair.block for pair in found}
    free = min(len(prompts) - len(means), len(blocks) - 1)
    if free < 1:
        return Ratio(value=math.exp(mean), low=0.0, high=math.inf)
    by_prompt = _clustered(found, off, lambda pair: pair.prompt) * len(prompts) / (len(prompts) - len(means))
    by_block = _clustered(found, off, lambda pair: pair.block) * len(blocks) / (len(blocks) - 1)
    both = sum(value**2 for value in off)
    # What both ways share is counted once; never less than either.
    spread = math.sqrt(max(by_prompt + by_block - both, by_prompt, by_block))
    half = float(student.ppf((1 + COVERAGE) / 2, free)) * spread
    return Ratio(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def tail(found: Sequence[Pair], *, percentile: float = 95.0) -> Ratio:
    """P95 of the slow way over the fast one's; blocks are resampled with all their requests."""
    by_block: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for pair in found:
        by_block[pair.block].append((pair.slow_s, pair.fast_s))
    blocks = [np.array(times) for times in by_block.values()]

    def ratio(chosen: Iterable[Floats]) -> float:
        slow, fast = np.percentile(np.concatenate(list(chosen)), percentile, axis=0)
        return float(slow / fast)

    generator = np.random.default_rng(SEED)
    places = generator.integers(len(blocks), size=(RESAMPLED, len(blocks)))
    draws = [ratio(blocks[place] for place in drawn) for drawn in places]
    low, high = np.percentile(draws, [50 * (1 - COVERAGE), 50 * (1 + COVERAGE)])
    return Ratio(value=ratio(blocks), low=float(low), high=float(high))


def shown(rows: Sequence[Row]) -> str:
    """By load: the gateway against each of the two, those against each other, and all-plain against itself."""
    lines = [
        "| streams | gateway against all-plain | gateway against all-spec | all-spec against all-plain "
        "| P95 against the better | all-plain against itself | requests, prompts, blocks |",
        "|---|---|---|---|---|---|---|",
    ]
    for load in sorted({row.load for row in rows}):
        part = [row for row in rows if row.load == load]
        whole = pairs(part, PLAINS if AGAIN in {row.way for row in part} else (PLAIN,), (GATEWAY,))
        # Where all-spec had a turn.
        spec_gain = speedup(pairs(part, (PLAIN,), (SPEC,)))
        against_spec = pairs(part, (SPEC,), (GATEWAY,))
        is_spec_better = spec_gain.value > 1
        cells: list[object] = [
            speedup(whole),
            speedup(against_spec),
            spec_gain,
            f"{tail(against_spec if is_spec_better else whole)} ({'spec' if is_spec_better else 'plain'})",
            speedup(pairs(part, (PLAIN,), (AGAIN,))),
            f"{len(whole)}, {len({pair.prompt for pair in whole})}, {len({pair.block for pair in whole})}",
        ]
        lines.append(f"| {load} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", *_by_segment(rows)])


def _by_segment(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| streams | segment | gateway against all-plain | all-spec against all-plain |",
        "|---|---|---|---|",
    ]
    for load in sorted({row.load for row in rows}):
        for segment in sorted({row.segment for row in rows}):
            part = [row for row in rows if row.load == load and row.segment == segment]
            both = speedup(pairs(part, (PLAIN,), (GATEWAY,))), speedup(pairs(part, (PLAIN,), (SPEC,)))
            lines.append(f"| {load} | {segment} | {both[0]} | {both[1]} |")
    return lines


def _middle(times: Iterable[float]) -> float:
    return math.exp(float(np.mean([math.log(time) for time in times])))


def _clustered(found: Sequence[Pair], off: Sequence[float], of: Callable[[Pair], Hashable]) -> float:
    sums: dict[Hashable, float] = defaultdict(float)
    for pair, value in zip(found, off, strict=True):
        sums[of(pair)] += value
    return sum(value**2 for value in sums.values())


def row_of(document: Mapping[str, object]) -> Row:
    return Row(**document)  # type: ignore[arg-type]
