"""How do pairs at several loads and temperatures become one value per (round, prompt), each setting weighing the same?

Prompts that met every setting are averaged. Where some are missing (a budget cut one load short, a request
failed), what a setting adds is taken out first, so that the mean is that of all settings alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from speclift.analyse.crossed import Floats, Indices
from speclift.analyse.stats import CrossedFit, crossed_fit
from speclift.core.traffic import Load


class Setting(NamedTuple):
    segment: str
    load: Load
    temperature: float | None


class Observation(NamedTuple):
    round: int
    unit: str
    setting: Setting
    log_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """Pairs in columns; rounds as they are, units and settings as indices."""

    log_speedup: Floats
    round: Indices
    unit: Indices
    setting: Indices
    units: tuple[str, ...]
    segments: tuple[str, ...]  # of each unit
    settings: tuple[Setting, ...]

    def __len__(self) -> int:
        return len(self.log_speedup)

    def within(self, admits: Callable[[Setting], bool]) -> PairTable:
        keep = np.array([admits(setting) for setting in self.settings], dtype=bool)[self.setting]
        return PairTable(
            log_speedup=self.log_speedup[keep],
            round=self.round[keep],
            unit=self.unit[keep],
            setting=self.setting[keep],
            units=self.units,
            segments=self.segments,
            settings=self.settings,
        )

    def counts(self) -> dict[Setting, int]:
        """Pairs at each setting that has any."""
        found = np.bincount(self.setting, minlength=len(self.settings))
        return {setting: int(count) for setting, count in zip(self.settings, found, strict=True) if count}


def pair_table(observations: Sequence[Observation]) -> PairTable:
    units = {unit: index for index, unit in enumerate(dict.fromkeys(o.unit for o in observations))}
    settings = {s: index for index, s in enumerate(dict.fromkeys(o.setting for o in observations))}
    segments = {o.unit: o.setting.segment for o in observations}
    return PairTable(
        log_speedup=np.array([o.log_speedup for o in observations], dtype=np.float64),
        round=np.array([o.round for o in observations], dtype=np.intp),
        unit=np.array([units[o.unit] for o in observations], dtype=np.intp),
        setting=np.array([settings[o.setting] for o in observations], dtype=np.intp),
        units=tuple(units),
        segments=tuple(segments[unit] for unit in units),
        settings=tuple(settings),
    )


def fit_table(table: PairTable) -> CrossedFit:
    """The crossed fit over rounds and units, segments as strata."""
    _, round_index = np.unique(table.round, return_inverse=True)
    moments, moment = _moments(table)
    cell_key = round_index * len(table.units) + table.unit
    # Repeats at one setting are averaged first: two pairs at one load must not outweigh one at another.
    keys, inverse = np.unique(cell_key * moments + moment, return_inverse=True)
    values = np.bincount(inverse, weights=table.log_speedup) / np.bincount(inverse)
    cells, cell = np.unique(keys // moments, return_inverse=True)
    if len(keys) < len(cells) * moments:
        values = _levelled(values, cell, keys % moments, moments)
    means = np.bincount(cell, weights=values) / np.bincount(cell)
    unit = cells % len(table.units)
    return crossed_fit(
        values=means.tolist(),
        prompts=unit.tolist(),
        launches=(cells // len(table.units)).tolist(),
        strata=[table.segments[index] for index in unit],
    )


def _moments(table: PairTable) -> tuple[int, Indices]:
    """Distinct (load, temperature) among the pairs, as a count and an index per pair."""
    labels: dict[Hashable, int] = {}
    present = np.unique(table.setting)
    index = np.zeros(len(table.settings), dtype=np.intp)
    for number in present:
        setting = table.settings[number]
        index[number] = labels.setdefault((setting.load, setting.temperature), len(labels))
    return len(labels), index[table.setting]


def _levelled(values: Floats, cell: Indices, moment: Indices, moments: int) -> Floats:
    """Without each setting's departure from their common mean, by least squares within cells.

    Where no cell ties two settings together, each setting's plain mean has to do.
    """
    is_moment = np.eye(moments)[moment]
    cells_size = np.bincount(cell)
    totals = np.stack([np.bincount(cell, weights=column) for column in is_moment.T], axis=1)
    within = is_moment - (totals / cells_size[:, None])[cell]
    values_within = values - (np.bincount(cell, weights=values) / cells_size)[cell]
    effects, _, rank, _ = np.linalg.lstsq(within, values_within, rcond=None)
    if rank < moments - 1:
        effects = (is_moment.T @ values) / is_moment.sum(axis=0)
    levelled: Floats = values - (effects - effects.mean())[moment]
    return levelled
