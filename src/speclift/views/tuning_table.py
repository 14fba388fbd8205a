"""What a search knows: speedup by way of drafting and k, a table per load; what was dropped, its cost, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from speclift.core.quantities import duration, printable

# Why candidates are out, in the order in which it happens.
STAGES = {
    "space": "never launched",
    "failed": "failed",
    "predicted": "predicted to be too slow",
    "raced": "raced and lost",
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


def speedup_tables(tuning: Mapping[str, Any]) -> tuple[SpeedupTable, ...]:
    by_load: dict[str, list[Mapping[str, Any]]] = {}
    for cell in tuning["cells"]:
        by_load.setdefault(load_words(cell["load"]), []).append(cell)
    return tuple(_table(load, cells) for load, cells in by_load.items())


def _table(load: str, cells: Sequence[Mapping[str, Any]]) -> SpeedupTable:
    plain = {_server(cell): cell for cell in cells if cell["drafter"] is None}
    drafting = [cell for cell in cells if cell["drafter"] is not None]
    best = max(drafting, key=lambda cell: float(cell["speedup"]), default=None)
    # Only a second server needs a column for what it does without speculation.
    ks = (*((0,) if len(plain) > 1 else ()), *sorted({cell["k"] for cell in drafting}))
    rows = []
    for key in dict.fromkeys((cell["drafter"], *_server(cell)) for cell in drafting):
        own = {cell["k"]: cell for cell in drafting if (cell["drafter"], *_server(cell)) == key}
        own |= {0: plain[key[1:]]} if key[1:] in plain else {}
        label = " ".join(str(part) for part in key if part is not None)
        rows.append((label, tuple(_cell(own.get(k), best) for k in ks)))
    return SpeedupTable(load=load, ks=ks, rows=tuple(rows))


def _server(cell: Mapping[str, Any]) -> tuple[Any, Any]:
    budget = cell["token_budget"]
    return cell["quantisation"], None if budget is None else f"budget {budget}"


def _cell(cell: Mapping[str, Any] | None, best: Mapping[str, Any] | None) -> SpeedupCell | None:
    if cell is None:
        return None
    return SpeedupCell(speedup=cell["speedup"], is_measured=cell["is_measured"], is_best=cell is best)


def load_words(load: Mapping[str, Any]) -> str:
    return f"c={load['concurrency']}" if "concurrency" in load else f"{load['qps']:g} req/s"


def dropped_lines(tuning: Mapping[str, Any]) -> list[str]:
    """One line for each way of being dropped, with one reason as an example."""
    lines = []
    for stage, words in STAGES.items():
        found = [each for each in tuning["eliminated"] if each["stage"] == stage]
        names = list(dict.fromkeys(each["arm"] for each in found))
        if not names:
            continue
        shown = ", ".join(printable(name, limit=40) for name in names[:NAMES_SHOWN])
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        example = found[0]
        where = f" at {example['load']}" if example["load"] else ""
        reason = printable(example["reason"].splitlines()[0], limit=200)
        lines.append(
            f"{len(names)} {words}: {shown}{more}; such as {printable(example['arm'], limit=40)}{where}: {reason}"
        )
    return lines


def error_lines(tuning: Mapping[str, Any]) -> list[str]:
    """How good the predictions were: of cells measured later in the search, and of the confirmed arms."""
    lines = []
    misses = [abs(each["ratio"] - 1) for each in tuning["errors"]]
    if misses:
        lines.append(
            f"cells predicted before they were measured: {len(misses)}, off by {median(misses):.1%} in the median, "
            f"{max(misses):.1%} at most"
        )
    where = "on held-out prompts" if tuning["prompts"]["is_held_out"] else "when confirmed"
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for each in tuning.get("confirmed_errors", ()):
        by_arm.setdefault(each["arm"], []).append(each)
    for arm, rows in by_arm.items():
        said = ", ".join(
            f"{load_words(row['load'])} {'' if row['was_measured_in_search'] else '~'}{row['predicted']:.2f}x"
            for row in rows
        )
        found = ", ".join(f"{row['measured']:.2f}x" for row in rows)
        off = f"off by {median(abs(row['error']) for row in rows):.1%}"
        lines.append(f"{printable(arm, limit=40)}: the search said {said}; {where} {found} ({off})")
    return lines


def cost_line(tuning: Mapping[str, Any]) -> str:
    jobs = Counter(job["purpose"] for job in tuning["jobs"])
    kinds = ", ".join(f"{count} {purpose}" for purpose, count in jobs.items())
    arms = len({cell["arm"] for cell in tuning["cells"]})
    loads = len({load_words(cell["load"]) for cell in tuning["cells"]})
    grid = tuning["grid_s"]
    plural = "s" if loads > 1 else ""
    against = (
        f"; a grid of {arms} arms x {loads} load{plural} x 3 repeats would take about {duration(grid)}"
        if grid
        else ""
    )
    launches = len(tuning["jobs"])
    return (
        f"{launches} launches ({kinds}) in {duration(tuning['spent_s'])}{against}; ended: {tuning['ending']}"
    )


def schedule_line(tuning: Mapping[str, Any]) -> str | None:
    schedule = tuning["schedule"]
    if schedule is None:
        return None
    parts = [
        f"{'no drafts' if k == 0 else f'k={k}'} for {start}{f'-{end}' if end != start else ''}"
        for start, end, k in schedule["segments"]
    ]
    gain = f"{schedule['predicted_gain'] - 1:+.1%} over {printable(schedule['over'], limit=40)} predicted"
    how = "measured as an arm" if schedule["arm"] else "this engine cannot switch k by itself: route by load"
    return f"best k by requests in flight: {', '.join(parts)} ({gain}; {how})"
