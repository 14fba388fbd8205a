"""Why it pays or not: what is accepted, what a step costs, and so where it breaks even.

Time per token times tokens per step is the time of a step. A step that takes as long as 1.4 tokens of the baseline
needs an accepted length of 1.4 to break even; the accepted length itself is the speedup if drafting cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speclift.core.arm import BASELINE
from speclift.core.quantities import number, ratio_words, share, size
from speclift.core.results import Bounds, Cell
from speclift.verdict.document import VerdictDocument
from speclift.views.charts import TRACK_PX, Forest, ForestRow, Scale, fitting_ticks, mark_of
from speclift.views.page_document import ALL, cells_of

BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """Of one part of the traffic; `cost` is a step's time over that of a token of the baseline."""

    label: str
    rate: str
    spread: str
    length: Bounds
    cost: float | None

    @property
    def length_words(self) -> str:
        low, high = self.length.low, self.length.high
        if low is None or high is None:
            return number(self.length.value)
        return f"{self.length.value:.2f} [{low:.2f}, {high:.2f}]"

    @property
    def cost_words(self) -> str:
        return "–" if self.cost is None else f"{self.cost:.2f}x"

    @property
    def gain_words(self) -> str:
        return "–" if not self.cost else f"{self.length.value / self.cost:.2f}x"


def steps(document: VerdictDocument, shown: str) -> list[StepRow]:
    """The arm at every load, then its segments at the lightest; of the other arms what they do at the lightest."""
    base = cells_of(document, BASELINE)
    made = []
    arms = list(dict.fromkeys(cell.arm for cell in document.cells if cell.arm != BASELINE))
    for arm in sorted(arms, key=lambda arm: arm != shown):
        cells = cells_of(document, arm)
        lightest = next((load for load, _ in cells), None)
        for (load, segment), cell in sorted(cells.items(), key=lambda entry: entry[0][1] != ALL):
            is_wanted = segment == ALL if arm == shown else (load, segment) == (lightest, ALL)
            if is_wanted or (arm == shown and load == lightest):
                where = f"all traffic at {load}" if segment == ALL else f"{segment} at {load}"
                step = _step(cell, base.get((load, segment)), where if arm == shown else f"{arm}, {where}")
                made += [step] if step is not None else []
    return made


def _step(cell: Cell, base: Cell | None, label: str) -> StepRow | None:
    rate, length = cell.acceptance_rate, cell.accepted_length
    if length is None:
        return None
    before = base.tpot_s.p50 if base is not None and base.tpot_s is not None else None
    after = cell.tpot_s.p50 if cell.tpot_s is not None else None
    is_spread = rate is not None and rate.p10 is not None and rate.p90 is not None
    return StepRow(
        label=label,
        rate=share(rate.mean if rate is not None else None),
        spread=f"{share(rate.p10)} to {share(rate.p90)}" if rate is not None and is_spread else "–",
        length=length,
        cost=length.value * after / before if before and after else None,
    )


def step_forest(rows: Sequence[StepRow]) -> Forest | None:
    """Accepted length with its interval, against each row's own break-even."""
    known = [row for row in rows if row.cost is not None]
    if not known:
        return None
    highest = max(max(row.length.high or row.length.value, row.cost or 0) for row in known)
    scale = Scale(
        low=1.0 if all((row.cost or 0) >= 1 for row in known) else 0.0, high=1.05 * max(highest, 1.1)
    )
    ticks = [(float(length), str(length)) for length in range(int(scale.high) + 1)]
    return Forest(
        rows=tuple(
            ForestRow(
                label=row.label,
                words=row.length_words,
                tip=f"{row.label}: accepted length {row.length_words}, break-even {number(row.cost)}",
                mark=mark_of(row.length, scale, _side(row)),
                own_line=scale(row.cost or 0.0),
            )
            for row in known
        ),
        ticks=fitting_ticks(ticks, scale, TRACK_PX),
        one=None,
        bar=None,
    )


def _side(row: StepRow) -> str:
    low, high, cost = row.length.low, row.length.high, row.cost or 0.0
    if low is not None and low > cost:
        return "pays"
    return "loses" if high is not None and high < cost else "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Requests by acceptance in ten bins; `bars` are a height in percent and what it stands for."""

    label: str
    requests: int
    bars: tuple[tuple[float, str], ...]


def histograms(document: VerdictDocument, arm: str) -> list[Histogram]:
    return [
        Histogram(
            label=f"{entry.by} {entry.label}",
            requests=entry.requests,
            bars=tuple(
                (
                    round(100 * count / max(entry.counts), 1),
                    f"{100 * index // BINS}-{100 * (index + 1) // BINS} %: {count} requests",
                )
                for index, count in enumerate(entry.counts)
            ),
        )
        for entry in document.acceptance_histograms
        if entry.arm == arm and any(entry.counts)
    ]


def resources(document: VerdictDocument) -> list[tuple[str, str, str, str, str]]:
    """Arm, KV cache, how much of it was used, prefix hits, GPU memory; empty where nothing is known."""
    rows = [
        (
            row.arm,
            "–" if row.kv_tokens is None else f"{row.kv_tokens} tokens",
            share(row.kv_used_peak),
            share(row.prefix_hit_rate),
            "–" if row.gpu_memory_peak_bytes is None else size(row.gpu_memory_peak_bytes),
        )
        for row in document.resources
    ]
    return [row for row in rows if any(figure != "–" for figure in row[1:])]


def by_temperature(document: VerdictDocument) -> list[tuple[str, str, str, str, str, str, int]]:
    """Arm, temperatures, speedup, acceptance rate, its spread over requests, accepted length, prompts."""
    return [
        (
            row.arm,
            row.temperature,
            "–" if row.speedup is None else ratio_words(row.speedup),
            share(rate.mean) if rate is not None else "–",
            f"{share(rate.p10)} to {share(rate.p90)}" if rate is not None else "–",
            number(row.accepted_length.value if row.accepted_length is not None else None),
            row.prompts,
        )
        for row in document.by_temperature
        for rate in (row.acceptance_rate,)
    ]


def temperature_rows(document: VerdictDocument) -> list[tuple[str, str, str, str, int]]:
    """Arm, temperatures, acceptance rate, its spread over requests, requests."""
    return [
        (
            bucket.arm,
            _temperatures(bucket.above, bucket.up_to),
            share(bucket.mean),
            f"{share(bucket.p10)} to {share(bucket.p90)}",
            bucket.requests,
        )
        for bucket in document.acceptance_by_temperature
    ]


def _temperatures(above: float, up_to: float | None) -> str:
    if up_to is None:
        return f"above {above:g}"
    return f"{up_to:g}" if above == up_to else f"above {above:g} to {up_to:g}"
