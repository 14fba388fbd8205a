"""What a search knows: speedup by way of drafting and k, a table per load; what was dropped, its cost, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from speclift.core.quantities import duration, printable
from speclift.search.space import Stage
from speclift.search.tuning import ConfirmedError, SearchedCell, Tuning

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
