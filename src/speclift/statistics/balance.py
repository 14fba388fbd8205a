"""How do pairs at several loads and temperatures become one value per (round, prompt), each setting weighing the same?

The prompt is the unit. A setting's mean is that over its prompts, the result is the mean over settings, and every
pair has a known share in it. What each (prompt, round) adds to the result goes into the crossed fit, so that a
prompt which alone carries a setting counts for as much doubt as it has weight (docs/method.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from speclift.core.traffic import Load
from speclift.statistics.crossed import Evenness, Floats, Indices, evenness_of, merged_strata
from speclift.statistics.stats import CrossedFit, LaunchSpread, crossed_fit, prompt_fit


class Stratum(NamedTuple):
    segment: str
    load: Load
    temperature: float | None


class Observation(NamedTuple):
    round: int
    unit: str
    setting: Stratum
    log_speedup: float
    # Of a fleet; empty where there is one machine.
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """Pairs in columns; rounds as they are, units, settings and nodes as indices."""

    log_speedup: Floats
    round: Indices
    unit: Indices
    setting: Indices
    node: Indices
    units: tuple[str, ...]
    segments: tuple[str, ...]  # of each unit
    settings: tuple[Stratum, ...]

    def __len__(self) -> int:
        return len(self.log_speedup)

    @property
    def prompt_count(self) -> int:
        return len(np.unique(self.unit))

    @property
    def launch_count(self) -> int:
        return len(np.unique(self.round))

    @property
    def node_count(self) -> int:
        return len(np.unique(self.node))

    @property
    def launch(self) -> Indices:
        """What the spread beside that of prompts is taken over. Launches on one machine share it, so where there are
        several it is the machine: their spread is that of machines and of launches together."""
        return self.node if self.node_count > 1 else self.round

    def within(self, admits: Callable[[Stratum], bool]) -> PairTable:
        keep = np.array([admits(setting) for setting in self.settings], dtype=bool)[self.setting]
        return PairTable(
            log_speedup=self.log_speedup[keep],
            round=self.round[keep],
            unit=self.unit[keep],
            setting=self.setting[keep],
            node=self.node[keep],
            units=self.units,
            segments=self.segments,
            settings=self.settings,
        )

    def count_below(self, log_speedup: float) -> int:
        return int(np.count_nonzero(self.log_speedup < log_speedup))

    def prompts_by_segment(self) -> Counter[str]:
        return Counter(self.segments[unit] for unit in np.unique(self.unit))

    def counts(self) -> dict[Stratum, int]:
        """Pairs at each setting that has any."""
        found = np.bincount(self.setting, minlength=len(self.settings))
        return {setting: int(count) for setting, count in zip(self.settings, found, strict=True) if count}


def pair_table(observations: Sequence[Observation]) -> PairTable:
    units = {unit: index for index, unit in enumerate(dict.fromkeys(o.unit for o in observations))}
    settings = {s: index for index, s in enumerate(dict.fromkeys(o.setting for o in observations))}
    segments = {o.unit: o.setting.segment for o in observations}
    nodes = {node: index for index, node in enumerate(sorted({o.node for o in observations}))}
    return PairTable(
        log_speedup=np.array([o.log_speedup for o in observations], dtype=np.float64),
        round=np.array([o.round for o in observations], dtype=np.intp),
        unit=np.array([units[o.unit] for o in observations], dtype=np.intp),
        setting=np.array([settings[o.setting] for o in observations], dtype=np.intp),
        node=np.array([nodes[o.node] for o in observations], dtype=np.intp),
        units=tuple(units),
        segments=tuple(segments[unit] for unit in units),
        settings=tuple(settings),
    )


# How many prompts each segment of the workload has.
PromptCounts = Mapping[str, int]
AS_MEASURED: PromptCounts = MappingProxyType({})


def fit_table(
    table: PairTable,
    *,
    by_temperature: bool,
    prompt_counts: PromptCounts = AS_MEASURED,
    launches: LaunchSpread | None = None,
) -> CrossedFit:
    """The crossed fit over rounds and prompts, segments as strata.

    `by_temperature` where the study sent each prompt at several temperatures, which then weigh the same. Where a
    temperature is the prompt's own it is part of what makes prompts unlike, and nothing is evened out.
    `prompt_counts` where a study may have measured more of one segment than of another: each keeps its share of the
    workload, whichever of its prompts were sent. `launches` where their spread is known from elsewhere: a table in
    which launches met few prompts in common could not tell it.
    """
    moments = _moments(table, by_temperature=by_temperature)
    if launches is not None:
        shares = _shares(table, moments, prompt_counts, evens_rounds=False)
        return _fit_known_launches(table, shares, launches)
    shares = _shares(table, moments, prompt_counts)
    cells, cell = np.unique(shares.round * len(table.units) + shares.unit, return_inverse=True)
    round_of, unit_of = np.divmod(cells, len(table.units))
    rounds_seen = np.bincount(unit_of, minlength=len(table.units))
    within = np.bincount(cell, weights=shares.within)
    values = (
        shares.result + shares.of_prompt[unit_of] + shares.of_round[round_of] + rounds_seen[unit_of] * within
    )
    return crossed_fit(
        values=values.tolist(),
        prompts=unit_of.tolist(),
        launches=round_of.tolist(),
        strata=[table.segments[index] for index in unit_of],
        evenness=shares.evenness,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """The result, and how far each prompt and each pair moves it, both times the number of prompts."""

    result: float
    of_prompt: Floats
    # What each round adds to all its pairs alike, and how much of the result rests on it.
    of_round: Floats
    launch_weights: Floats
    # One row per (unit, moment, round): how far it lies from its prompt's mean, times its weight.
    unit: Indices
    round: Indices
    within: Floats
    evenness: Evenness


def _fit_known_launches(table: PairTable, shares: _Shares, launches: LaunchSpread) -> CrossedFit:
    met = np.unique(shares.unit)
    return prompt_fit(
        values=(shares.result + shares.of_prompt[met]).tolist(),
        strata=[table.segments[index] for index in met],
        evenness=shares.evenness,
        launch_weights=shares.launch_weights,
        launches=launches,
    )


def _shares(
    table: PairTable,
    moments_of_pairs: tuple[int, Indices],
    prompt_counts: PromptCounts,
    *,
    evens_rounds: bool = True,
) -> _Shares:
    moments, moment_of_pair = moments_of_pairs
    _, round_index = np.unique(table.launch, return_inverse=True)
    # Repeats at one setting are averaged first: two pairs at one load must not outweigh one at another.
    keys, inverse = np.unique(
        (round_index * len(table.units) + table.unit) * moments + moment_of_pair, return_inverse=True
    )
    values = np.bincount(inverse, weights=table.log_speedup) / np.bincount(inverse)
    rounds, met = np.divmod(keys, len(table.units) * moments)
    # One mean per prompt and moment that met, over the rounds in which they did.
    meetings, meeting = np.unique(met, return_inverse=True)
    unit, moment = np.divmod(meetings, moments)
    rounds_met = np.bincount(meeting)
    of_round = _round_effects(values, rounds, meeting) if evens_rounds else np.zeros(int(rounds.max()) + 1)
    values = values - of_round[rounds]
    means = np.bincount(meeting, weights=values) / rounds_met
    found = _departures(means, unit, moment, table.segments, prompt_counts)
    prompts = len(np.unique(unit))
    is_alone = prompts > 1 and np.bincount(moment).min() == 1
    weight_of_pair = found.weight[meeting] / rounds_met[meeting]
    return _Shares(
        result=float(np.sum(found.weight * means)) / prompts,
        of_round=of_round,
        launch_weights=_sums(rounds, weight_of_pair) / prompts,
        of_prompt=_sums(unit, found.weight * found.departure, size=len(table.units)),
        unit=unit[meeting],
        round=rounds,
        within=weight_of_pair * (values - means[meeting]),
        evenness=Evenness(
            # One prompt alone at a setting: nothing tells how much it would differ from another.
            prompts=0.0
            if is_alone
            else min(found.freedom_share, evenness_of(_sums(unit, found.weight * found.inflation))),
            launches=evenness_of(_sums(rounds, weight_of_pair)),
        ),
    )


def _round_effects(values: Floats, rounds: Indices, meeting: Indices) -> Floats:
    """By least squares within (prompt, moment), so that which of them a round happened to miss does not pass for an
    effect of the round, nor hides one."""
    is_round = np.eye(int(rounds.max()) + 1)[rounds]
    count = np.bincount(meeting)
    sums = np.stack([np.bincount(meeting, weights=column) for column in is_round.T], axis=1)
    within = is_round - (sums / count[:, None])[meeting]
    values_within = values - (np.bincount(meeting, weights=values) / count)[meeting]
    effects, *_ = np.linalg.lstsq(within, values_within, rcond=None)
    centred: Floats = effects - effects.mean()
    return centred


@dataclass(frozen=True, slots=True, kw_only=True)
class _Departures:
    """Of each prompt at each moment it met: its weight (1 on average), how far it lies from its stratum's mean there,
    and the factor by which that was enlarged. A mean of few lies near them by construction, so they are moved out by
    sqrt(count / (count - 1)), less what the crossed fit makes up for by itself.

    `freedom_share` is how many of the crossed fit's degrees of freedom there are where a few prompts carry a moment:
    Satterthwaite's over the strata of all moments, each with its own prompts less one."""

    weight: Floats
    departure: Floats
    inflation: Floats
    freedom_share: float


def _departures(
    means: Floats, unit: Indices, moment: Indices, segments: Sequence[str], prompt_counts: PromptCounts
) -> _Departures:
    """Strata keep their share of all prompts at every moment, whichever prompts a moment happened to meet."""
    prompts, index = np.unique(unit, return_inverse=True)
    met = [segments[prompt] for prompt in prompts]
    stratum = np.array(merged_strata(met), dtype=np.intp)
    size = _stratum_sizes(stratum, met, prompt_counts)
    freedom = max(len(prompts) - len(size), 1)
    charged = freedom / len(prompts)
    variance, variance_spread = 0.0, 0.0
    moments = int(moment.max()) + 1
    weight, departure, inflation = np.empty_like(means), np.zeros_like(means), np.ones_like(means)
    for number in range(moments):
        here = np.flatnonzero(moment == number)
        group = _joined(stratum[index[here]], size)
        count = np.bincount(group[stratum[index[here]]], minlength=len(size))
        own = group[stratum[index[here]]]
        share = np.bincount(group, weights=size, minlength=len(size))
        weight[here] = (share / np.maximum(count, 1))[own] / moments
        centre = np.bincount(own, weights=means[here], minlength=len(size)) / np.maximum(count, 1)
        if len(here) > 1:
            inflation[here] = np.sqrt(charged * count[own] / (count[own] - 1))
            departure[here] = inflation[here] * (means[here] - centre[own])
            part = (share / moments) ** 2 / np.maximum(count, 1) * (count > 0)
            variance += float(part.sum())
            variance_spread += float((part**2 / np.maximum(count - 1, 1)).sum())
    return _Departures(
        weight=weight,
        departure=departure,
        inflation=inflation,
        freedom_share=min(1.0, variance**2 / variance_spread / freedom) if variance_spread > 0 else 0.0,
    )


def _stratum_sizes(stratum: Indices, met: Sequence[str], prompt_counts: PromptCounts) -> Floats:
    """Prompts of each stratum: those met, shared out anew as the workload has them."""
    seen = Counter(met)
    per_prompt = np.array([prompt_counts.get(segment, seen[segment]) / seen[segment] for segment in met])
    size = _sums(stratum, per_prompt)
    shared: Floats = size * (len(met) / size.sum())
    return shared


def _sums(index: Indices, weights: Floats, *, size: int = 0) -> Floats:
    return np.bincount(index, weights=weights, minlength=size).astype(np.float64)


def _joined(met: Indices, size: Floats) -> Indices:
    """For each stratum the one it is counted with at a moment that met these: itself, or where fewer than two of its
    prompts met, the one of which most did."""
    count = np.bincount(met, minlength=len(size))
    largest = int(np.argmax(count))
    return np.where(count >= 2, np.arange(len(size)), largest)


def _moments(table: PairTable, *, by_temperature: bool) -> tuple[int, Indices]:
    """Distinct loads (and temperatures, where the study varied them) among the pairs: their count, and one per pair."""
    labels: dict[Hashable, int] = {}
    index = np.zeros(len(table.settings), dtype=np.intp)
    for number in np.unique(table.setting):
        setting = table.settings[number]
        label = (setting.load, setting.temperature if by_temperature else None)
        index[number] = labels.setdefault(label, len(labels))
    return len(labels), index[table.setting]
