"""Every cell, one row each: figures in words for a reader, and as numbers for whoever sorts or takes them away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from speclift.core.quantities import number, seconds, share
from speclift.core.results import Cell
from speclift.verdict.document import VerdictDocument
from speclift.views.page_latency import PERCENTILES, Seconds

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
