"""What it does to latency people feel: TTFT, TPOT and E2E at P50, P95 and P99, the baseline beside the arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from speclift.core.arm import BASELINE
from speclift.core.quantities import number, seconds
from speclift.core.results import Bounds, Cell, Percentiles
from speclift.core.traffic import Load
from speclift.verdict.document import VerdictDocument
from speclift.views.charts import Forest, Scale, judged_tail, ratio_forest
from speclift.views.page_document import ALL, METRIC_WORDS, cells_of, speedups_of

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
        for metric, field in _TIMES
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


_TIMES: tuple[tuple[str, Seconds], ...] = (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2e", "e2e_s"))


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
