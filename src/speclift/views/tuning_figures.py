"""What a search knows, for screen and page: speedup by way of drafting and k, latency against throughput, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from speclift.core.quantities import duration, printable
from speclift.search.space import Stage
from speclift.search.tuning import ConfirmedError, SearchedCell, Tuning
from speclift.views.charts import (
    AREA_HEIGHT_PX,
    AREA_WIDTH_PX,
    LABEL_HEIGHT_PX,
    SERIES,
    Dot,
    Label,
    Plot,
    Scale,
    Series,
    fitting_ticks,
    joined,
    placed_labels,
    wide_scale,
)

# Why candidates are out, in the order in which it happens.
STAGES: dict[Stage, str] = {
    "space": "never launched",
    "failed": "failed",
    "predicted": "predicted to be too slow",
    "raced": "slower in a direct comparison",
}
NAMES_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupCell:
    speedup: float
    is_measured: bool
    is_best: bool

    @property
    def text(self) -> str:
        return f"{self.speedup:.2f}" if self.is_measured else f"~{self.speedup:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupTable:
    """`rows` are a label and one cell per k; None where nothing is known. k = 0 is a server without speculation."""

    load: str
    ks: tuple[int, ...]
    rows: tuple[tuple[str, tuple[SpeedupCell | None, ...]], ...]

    @property
    def has_predictions(self) -> bool:
        return any(cell is not None and not cell.is_measured for _, cells in self.rows for cell in cells)


def speedup_tables(tuning: Tuning) -> tuple[SpeedupTable, ...]:
    by_load: dict[str, list[SearchedCell]] = {}
    for cell in tuning.cells:
        by_load.setdefault(cell.load.label, []).append(cell)
    return tuple(_table(load, cells) for load, cells in by_load.items())


def _table(load: str, cells: Sequence[SearchedCell]) -> SpeedupTable:
    plain = {_server(cell): cell for cell in cells if cell.drafter is None}
    drafting = [cell for cell in cells if cell.drafter is not None]
    best = max(drafting, key=lambda cell: cell.speedup, default=None)
    # Only a second server needs a column for what it does without speculation.
    ks = (*((0,) if len(plain) > 1 else ()), *sorted({cell.k for cell in drafting}))
    rows = []
    for drafter, server in dict.fromkeys((cell.drafter, _server(cell)) for cell in drafting):
        by_k = {cell.k: cell for cell in drafting if (cell.drafter, _server(cell)) == (drafter, server)}
        by_k |= {0: plain[server]} if server in plain else {}
        label = " ".join(part for part in (drafter, *server) if part is not None)
        rows.append((label, tuple(_cell(by_k.get(k), best) for k in ks)))
    return SpeedupTable(load=load, ks=ks, rows=tuple(rows))


def _server(cell: SearchedCell) -> tuple[str | None, str | None]:
    return cell.quantisation, None if cell.token_budget is None else f"budget {cell.token_budget}"


def _cell(cell: SearchedCell | None, best: SearchedCell | None) -> SpeedupCell | None:
    if cell is None:
        return None
    return SpeedupCell(speedup=cell.speedup, is_measured=cell.is_measured, is_best=cell is best)


def dropped_lines(tuning: Tuning) -> list[str]:
    """One line for each way of being dropped, with one reason as an example."""
    lines = []
    for stage, words in STAGES.items():
        dropped = [out for out in tuning.eliminated if out.stage == stage]
        names = list(dict.fromkeys(out.candidate for out in dropped))
        if not names:
            continue
        shown = ", ".join(printable(name, limit=40) for name in names[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        example = dropped[0]
        where = f" at {example.load}" if example.load else ""
        reason = printable(example.reason.splitlines()[0], limit=200)
        lines.append(
            f"{len(names)} {words}: {shown}{more}; "
            f"for example {printable(example.candidate, limit=40)}{where}: {reason}"
        )
    return lines


def error_lines(tuning: Tuning, confirmed: Sequence[ConfirmedError] = ()) -> list[str]:
    """How good the predictions were: of cells measured later in the search, and of the confirmed arms."""
    lines = []
    misses = [abs(error.ratio - 1) for error in tuning.errors]
    if misses:
        lines.append(
            f"{len(misses)} cells were predicted, then measured: error {median(misses):.1%} in the median, "
            f"{max(misses):.1%} at most"
        )
    where = "on held-out prompts" if tuning.prompts.is_held_out else "when confirmed"
    by_arm: dict[str, list[ConfirmedError]] = {}
    for error in confirmed:
        by_arm.setdefault(error.arm, []).append(error)
    for arm, errors in by_arm.items():
        predicted = ", ".join(
            f"{error.load.label} {'' if error.was_measured_in_search else '~'}{error.predicted:.2f}x"
            for error in errors
        )
        measured = ", ".join(f"{error.measured:.2f}x" for error in errors)
        off = f"off by {median(abs(error.error) for error in errors):.1%}"
        lines.append(f"{printable(arm, limit=40)}: search {predicted}, {where} {measured} per token ({off})")
    return lines


def cost_line(tuning: Tuning) -> str:
    jobs = Counter(job.purpose for job in tuning.jobs)
    kinds = ", ".join(f"{count} {purpose}" for purpose, count in jobs.items())
    arms = len({cell.arm for cell in tuning.cells})
    loads = len({cell.load.label for cell in tuning.cells})
    plural = "s" if loads > 1 else ""
    against = (
        f"; a grid of {arms} arms x {loads} load{plural} x 3 repeats would take about {duration(tuning.grid_s)}"
        if tuning.grid_s
        else ""
    )
    return f"{len(tuning.jobs)} launches ({kinds}) in {duration(tuning.spent_s)}{against}; stopped: {tuning.ending}"


def schedule_line(tuning: Tuning) -> str | None:
    schedule = tuning.schedule
    if schedule is None:
        return None
    parts = [
        f"{'no drafts' if segment.k == 0 else f'k={segment.k}'} for {segment.start}"
        f"{f'-{segment.end}' if segment.end != segment.start else ''}"
        for segment in schedule.segments
    ]
    gain = f"{schedule.predicted_gain - 1:+.1%} over {printable(schedule.over, limit=40)} predicted"
    how = "measured as an arm" if schedule.arm else "this engine cannot switch k by itself: route by load"
    return f"best k by requests in flight: {', '.join(parts)} ({gain}; {how})"


def pareto(tuning: Tuning) -> Plot | None:
    """One line per way of drafting and load, k by k; hollow dots are predicted. Up and left is better."""
    cells = tuning.cells
    if not cells:
        return None
    x = wide_scale([_latency_ms(cell) for cell in cells])
    y = wide_scale([_throughput(cell) for cell in cells])
    dots = {cell: _dot(cell, x, y, tuning.winner) for cell in cells}
    return Plot(
        title="Latency against throughput",
        x_title="time per token of one stream",
        y_title="tokens/s of all streams",
        x_ticks=fitting_ticks(_wanted(x, " ms"), x, AREA_WIDTH_PX),
        y_ticks=fitting_ticks(_wanted(y, ""), y, AREA_HEIGHT_PX, LABEL_HEIGHT_PX),
        series=_series(dots),
        heads=("configuration", "load", "time per token", "tokens/s", "speedup", "how it is known"),
        figures=tuple(_figures(cell) for cell in cells),
        labels=_load_labels(dots),
    )


def _series(dots: Mapping[SearchedCell, Dot]) -> tuple[Series, ...]:
    by_drafter: dict[str, dict[SearchedCell, Dot]] = {}
    for cell, dot in dots.items():
        if cell.drafter is not None:
            by_drafter.setdefault(cell.drafter, {})[cell] = dot
    plain = tuple(dot for cell, dot in dots.items() if cell.drafter is None)
    return (
        Series(name="baseline", style="base", dots=plain),
        *(
            _drafter(name, own, style=SERIES[index % len(SERIES)])
            for index, (name, own) in enumerate(by_drafter.items())
        ),
    )


def _load_labels(dots: Mapping[SearchedCell, Dot]) -> tuple[Label, ...]:
    """One for each load: a server of its own (a quantisation, say) has a baseline too."""
    by_load = {cell.load.label: dot for cell, dot in dots.items() if cell.drafter is None}
    wanted = [Label(x=dot.x, y=dot.y, text=load) for load, dot in by_load.items()]
    return placed_labels(wanted, list(dots.values()))


def _drafter(name: str, dots: Mapping[SearchedCell, Dot], *, style: str) -> Series:
    """A line for each load."""
    by_load: dict[str, list[Dot]] = {}
    for cell in sorted(dots, key=lambda cell: cell.k):
        by_load.setdefault(cell.load.label, []).append(dots[cell])
    return Series(
        name=name,
        style=style,
        lines=tuple(joined((dot.x, dot.y) for dot in at_load) for at_load in by_load.values()),
        dots=tuple(dots.values()),
    )


def _dot(cell: SearchedCell, x: Scale, y: Scale, winner: str) -> Dot:
    kind = "full" if cell.is_measured else "hollow"
    return Dot(
        x=x(_latency_ms(cell)),
        y=100 - y(_throughput(cell)),
        tip=f"{cell.arm} at {cell.load.label}: {cell.speedup:.2f}x, {_how(cell)}",
        kind=f"{kind} large" if cell.arm == winner else kind,
    )


def _figures(cell: SearchedCell) -> tuple[str, ...]:
    return (
        cell.arm,
        cell.load.label,
        f"{_short(_latency_ms(cell))} ms",
        _short(_throughput(cell)),
        f"{cell.speedup:.2f}x",
        _how(cell),
    )


def _how(cell: SearchedCell) -> str:
    return "measured" if cell.is_measured else "predicted"


def _latency_ms(cell: SearchedCell) -> float:
    return 1000 / cell.rate_tok_s


def _throughput(cell: SearchedCell) -> float:
    return cell.rate_tok_s * cell.in_flight


def _wanted(scale: Scale, unit: str) -> list[tuple[float, str]]:
    values = [scale.value_at(percent) for percent in (4, 96, 50)]
    return [(value, f"{_short(value)}{unit}") for value in values]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
