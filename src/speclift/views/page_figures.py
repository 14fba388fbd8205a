"""The figures of the report: what latency people feel, what every cell was, and why it pays or not.

Time per token times tokens per step is the time of a step. A step that takes as long as 1.4 tokens of the baseline
needs an accepted length of 1.4 to break even; the accepted length itself is the speedup if drafting cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from speclift.core.arm import BASELINE
from speclift.core.quantities import number, ratio_words, seconds, share, size
from speclift.core.results import Bounds, Cell, Part, Percentiles
from speclift.core.traffic import Load
from speclift.verdict.document import ArmSpeedups, VerdictDocument
from speclift.views.charts import (
    TRACK_PX,
    Forest,
    ForestRow,
    Scale,
    fitting_ticks,
    judged_tail,
    mark_of,
    ratio_forest,
)

ALL = "all"
METRIC_WORDS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
    "e2e_raw": "end-to-end time, output lengths as they came",
    "throughput": "throughput",
}


def shown_arm(document: VerdictDocument) -> str | None:
    """The winner, or where none won the arm the headline speedup is of."""
    if document.winner is not None:
        return document.winner.arm
    if document.speedup is not None:
        return document.speedup.arm
    measured = [cell.arm for cell in document.cells if cell.arm != BASELINE]
    return measured[0] if measured else None


def speedups_of(document: VerdictDocument, arm: str | None) -> ArmSpeedups | None:
    return next((entry for entry in document.speedups if entry.arm == arm), None)


def cells_of(document: VerdictDocument, arm: str) -> dict[tuple[str, str], Cell]:
    """By load and segment, the temperatures as the prompts have them; loads and segments in the order measured."""
    return {
        (cell.load.label, cell.segment): cell
        for cell in document.cells
        if cell.arm == arm and cell.temperature is None
    }


def part_words(part: str, label: str) -> str:
    """As a reader calls it: all traffic, chat, c=8, temperature 0.7."""
    if part == Part.ALL:
        return "all traffic"
    return f"temperature {label}" if part == Part.TEMPERATURE else label


Seconds: TypeAlias = Literal["ttft_s", "tpot_s", "e2e_s"]
Span: TypeAlias = tuple[float | None, float | None]
# Of more loads a panel would be a page.
LOADS_SHOWN = 4
PERCENTILES: tuple[Literal["p50", "p95", "p99"], ...] = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One figure of the baseline beside the arm's; widths in percent of the picture."""

    load: str
    name: str
    base: str
    own: str
    change: str
    is_worse: bool
    base_width: float
    own_width: float
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    metric: str
    words: str
    rows: tuple[Beside, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    load: str
    name: str
    base: float | None
    own: float | None
    # Their intervals, lowest and highest; None is not known.
    base_span: Span = (None, None)
    own_span: Span = (None, None)

    @property
    def is_shown_worse(self) -> bool:
        """Of a time: the two intervals lie apart, and the arm's is the longer."""
        highest, lowest = self.base_span[1], self.own_span[0]
        return highest is not None and lowest is not None and lowest > highest


def panels(document: VerdictDocument, arm: str) -> tuple[list[Panel], list[str]]:
    """A panel for each metric, and the loads that are left to the table of every cell where there are many."""
    own, base = cells_of(document, arm), cells_of(document, BASELINE)
    loads = [load for load, segment in {**base, **own} if segment == ALL]
    shown = _few(loads)
    pairs = [(load, base.get((load, ALL)), own.get((load, ALL))) for load in shown]
    made = [
        Panel(metric=metric, words=METRIC_WORDS[metric], rows=_rows(_percentiles(pairs, field), metric))
        for metric, field in _TIME_METRICS
    ]
    rates = [
        _Figure(
            load=load,
            name="tokens/s",
            base=before.throughput_tok_s if before else None,
            own=after.throughput_tok_s if after else None,
        )
        for load, before, after in pairs
    ]
    made.append(Panel(metric="throughput", words="output tokens per second", rows=_rows(rates, "throughput")))
    return [panel for panel in made if panel.rows], [load for load in loads if load not in shown]


def _few(loads: Sequence[str]) -> list[str]:
    """The lightest, the heaviest and what lies between."""
    if len(loads) <= LOADS_SHOWN:
        return list(loads)
    return [loads[round(index * (len(loads) - 1) / (LOADS_SHOWN - 1))] for index in range(LOADS_SHOWN)]


_TIME_METRICS: tuple[tuple[str, Seconds], ...] = (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2e", "e2e_s"))


def _percentiles(pairs: Sequence[tuple[str, Cell | None, Cell | None]], field: Seconds) -> list[_Figure]:
    figures = []
    for load, base, own in pairs:
        before, after = (getattr(cell, field) if cell else None for cell in (base, own))
        figures += [
            _Figure(
                load=load,
                name=name.upper(),
                base=getattr(before, name) if before else None,
                own=getattr(after, name) if after else None,
                base_span=_span(before, name),
                own_span=_span(after, name),
            )
            for name in PERCENTILES
        ]
    return figures


def _span(held: Percentiles | None, name: str) -> Span:
    return (held.intervals if held is not None else {}).get(name, (None, None))


def _rows(figures: Sequence[_Figure], metric: str) -> tuple[Beside, ...]:
    known = [figure for figure in figures if figure.base is not None or figure.own is not None]
    highest = max((value for figure in known for value in (figure.base, figure.own) if value), default=0.0)
    if not highest:
        return ()
    scale = Scale(low=0, high=highest)
    return tuple(_beside(figure, scale, metric) for figure in known)


def _beside(figure: _Figure, scale: Scale, metric: str) -> Beside:
    base, own = (_words(value, metric) for value in (figure.base, figure.own))
    spans = [
        f"{whose} {seconds(low)} to {seconds(high)}"
        for whose, (low, high) in (("baseline", figure.base_span), ("arm", figure.own_span))
        if low is not None and high is not None
    ]
    more = f"; 95 % intervals: {', '.join(spans)}" if spans else ""
    return Beside(
        load=figure.load,
        name=figure.name,
        base=base,
        own=own,
        change=f"{figure.own / figure.base - 1:+.0%}" if figure.base and figure.own else "",
        is_worse=figure.is_shown_worse,
        base_width=scale(figure.base or 0.0),
        own_width=scale(figure.own or 0.0),
        tip=f"{figure.load} {figure.name}: baseline {base}, arm {own}{more}",
    )


def _words(value: float | None, metric: str) -> str:
    return number(value, 1) if metric == "throughput" else seconds(value)


def tail_forest(document: VerdictDocument, arm: str) -> Forest | None:
    """The slowest requests, baseline over arm; under 1 the arm's are slower."""
    entry = speedups_of(document, arm)
    rows: list[tuple[str, str, Bounds]] = [
        (f"{tail.metric} {tail.statistic} {_tail_load(tail.load)}", "", tail)
        for tail in (entry.tail_ratios if entry is not None else [])
    ]
    return ratio_forest(rows, document.goals.tail_tolerance, judged_tail)


def _tail_load(load: Load | None) -> str:
    return "over all loads" if load is None else f"at {load.label}"


Value: TypeAlias = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`key` names it in what is downloaded, in base units; `term` is its word in the glossary."""

    key: str
    head: str
    value: Callable[[Cell], Value]
    words: Callable[[Value], str]
    term: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    columns: tuple[Column, ...]
    # Arm, load, segment and temperature, then a number and its words for each column.
    rows: tuple[tuple[tuple[str, str, str, str], tuple[tuple[Value, str], ...]], ...]
    arms: tuple[str, ...]
    loads: tuple[str, ...]
    segments: tuple[str, ...]


def cell_table(document: VerdictDocument) -> CellTable:
    swept = {cell.temperature for cell in document.cells} - {None}
    # Of one temperature the cells over all temperatures are the same ones again.
    shown = [cell for cell in document.cells if cell.temperature is not None or len(swept) != 1]
    over_all = "all" if swept else "per prompt"
    rows = tuple((_names(cell, over_all=over_all), tuple(_figures(cell))) for cell in shown)
    names = [row for row, _ in rows]
    return CellTable(
        columns=COLUMNS,
        rows=rows,
        arms=tuple(dict.fromkeys(arm for arm, _, _, _ in names)),
        loads=tuple(dict.fromkeys(load for _, load, _, _ in names)),
        segments=tuple(dict.fromkeys(segment for _, _, segment, _ in names)),
    )


def _names(cell: Cell, *, over_all: str) -> tuple[str, str, str, str]:
    temperature = cell.temperature
    return (
        cell.arm,
        cell.load.label,
        cell.segment,
        over_all if temperature is None else f"{temperature:g}",
    )


def _figures(cell: Cell) -> list[tuple[Value, str]]:
    values = [(column, column.value(cell)) for column in COLUMNS]
    return [(value, column.words(value)) for column, value in values]


def _time(field: Seconds, percentile: str) -> Callable[[Cell], Value]:
    def value(cell: Cell) -> Value:
        measured = getattr(cell, field)
        held: Value = None if measured is None else getattr(measured, percentile)
        return held

    return value


def _count(value: Value) -> str:
    return "–" if value is None else str(value)


_TIMES: tuple[tuple[Seconds, str, str], ...] = (
    ("ttft_s", "TTFT", "ttft"),
    ("tpot_s", "TPOT", "tpot"),
    ("e2e_s", "E2E", "e2e"),
)
COLUMNS: tuple[Column, ...] = (
    *(
        Column(
            key=f"{field}_{percentile}",
            head=f"{head} {percentile.upper()}",
            value=_time(field, percentile),
            words=seconds,
            term=term,
        )
        for field, head, term in _TIMES
        for percentile in PERCENTILES
    ),
    Column(
        key="throughput_tok_s",
        head="tokens/s",
        value=lambda cell: cell.throughput_tok_s,
        words=lambda value: number(value, 1),
    ),
    Column(
        key="acceptance_rate_mean",
        head="acceptance rate",
        value=lambda cell: cell.acceptance_rate.mean if cell.acceptance_rate else None,
        words=share,
    ),
    Column(
        key="accepted_length",
        head="accepted length",
        value=lambda cell: cell.accepted_length.value if cell.accepted_length else None,
        words=number,
    ),
    Column(key="requests", head="requests", value=lambda cell: cell.requests, words=_count),
    Column(key="failed", head="failed", value=lambda cell: cell.failed, words=_count),
)


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
