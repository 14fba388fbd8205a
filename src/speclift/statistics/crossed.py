"""Which sums of squares does a table of prompts x launches hold, and what do they expect?

The linear algebra under the crossed interval of stats.py: any table, cells missing or repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Dummy columns have singular values of at least about 1/sqrt(cells) or exactly 0.
RANK_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One averaged value per (prompt, launch) that was seen; labels as 0-based indices."""

    values: Floats
    prompt: Indices
    launch: Indices
    stratum: Indices
    prompts: int
    launches: int
    strata: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanSquares:
    """Rows launch, prompt, residual; columns one fit, or one per size of a plan.

    A mean square expects the residual variance + scale * its own component; `weight` is how much of each
    component reaches the variance of the mean.
    """

    square: Floats
    df: Floats
    scale: Floats
    weight: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Evenness:
    """How evenly the result rests on its prompts and on its launches: 1 where each counts the same, towards 0 where
    few of many carry it. Degrees of freedom shrink with it."""

    prompts: float = 1.0
    launches: float = 1.0


EVEN = Evenness()


def evenness_of(weights: Floats) -> float:
    """How many equal ones would tell as much about the spread as these, as a share of them (after Satterthwaite)."""
    used = weights[weights > 0]
    return float(np.sum(used**2) ** 2 / np.sum(used**4) / len(used)) if len(used) else 0.0


def merged_strata(strata: Sequence[Hashable]) -> list[int]:
    """One stratum per prompt as a number. A stratum of one has no spread of its own, so all such are one stratum,
    whose differences count as error; where that leaves one over, it joins the largest."""
    sizes = Counter(strata)
    large = [stratum for stratum, size in sizes.items() if size > 1]
    number = {stratum: index for index, stratum in enumerate(large)}
    rest = len(large)
    if large and len(sizes) - len(large) == 1:
        rest = number[max(large, key=lambda stratum: (sizes[stratum], repr(stratum)))]
    return [number.get(stratum, rest) for stratum in strata]


def average_cells(
    values: Sequence[float],
    prompts: Sequence[Hashable],
    launches: Sequence[Hashable],
    strata: Sequence[Hashable] | None,
) -> Table:
    groups: Sequence[Hashable] = [None] * len(prompts) if strata is None else strata
    lengths = (len(values), len(prompts), len(launches), len(groups))
    if len(set(lengths)) != 1:
        raise ValueError(f"values, prompts, launches and strata differ in length: {lengths}")
    if not lengths[0]:
        raise ValueError("an interval needs at least one value, saw none")
    if not np.isfinite(np.asarray(values, dtype=np.float64)).all():
        raise ValueError("values must be finite; drop or repair what is not before asking for an interval")
    seen: dict[tuple[Hashable, Hashable], list[float]] = {}
    stratum_of: dict[Hashable, Hashable] = {}
    for value, prompt, launch, group in zip(values, prompts, launches, groups, strict=True):
        seen.setdefault((prompt, launch), []).append(value)
        if stratum_of.setdefault(prompt, group) != group:
            raise ValueError(f"prompt {prompt!r} is in two strata: {stratum_of[prompt]!r} and {group!r}")
    prompt_ids = {prompt: index for index, prompt in enumerate(stratum_of)}
    launch_ids = {launch: index for index, launch in enumerate(dict.fromkeys(launches))}
    stratum_ids = merged_strata(list(stratum_of.values()))
    return Table(
        values=np.array([math.fsum(cell) / len(cell) for cell in seen.values()]),
        prompt=np.array([prompt_ids[prompt] for prompt, _ in seen], dtype=np.intp),
        launch=np.array([launch_ids[launch] for _, launch in seen], dtype=np.intp),
        stratum=np.array([stratum_ids[prompt_ids[prompt]] for prompt, _ in seen], dtype=np.intp),
        prompts=len(prompt_ids),
        launches=len(launch_ids),
        strata=len(set(stratum_ids)),
    )


def mean_over_prompts(table: Table) -> float:
    totals = np.bincount(table.prompt, weights=table.values)
    return float(np.mean(totals / np.bincount(table.prompt)))


def mean_squares(table: Table, evenness: Evenness = EVEN) -> MeanSquares:
    """Henderson's method 3: SS(launch | prompt), SS(prompt | launch, stratum) and the additive residual.

    Degrees of freedom are ranks, so that a table whose launches share few prompts is not flattered; a mean square
    that few of its terms carry has as many fewer.
    """
    centred = table.values - table.values.mean()
    is_launch = np.eye(table.launches)[table.launch]
    cells_per_prompt = np.bincount(table.prompt).astype(np.float64)

    launch_within = is_launch - (_prompt_sums(table, is_launch) / cells_per_prompt[:, None])[table.prompt]
    values_within = centred - (np.bincount(table.prompt, weights=centred) / cells_per_prompt)[table.prompt]
    launch_basis = _orthonormal(launch_within)
    launch_ss = float(np.sum((launch_basis.T @ values_within) ** 2))
    residual = values_within - launch_basis @ (launch_basis.T @ values_within)
    residual_ss = float(residual @ residual)

    fixed = _orthonormal(np.hstack([is_launch, np.eye(table.strata)[table.stratum]]))
    unexplained = centred - fixed @ (fixed.T @ centred)
    prompt_ss = max(0.0, float(unexplained @ unexplained) - residual_ss)

    launch_df = launch_basis.shape[1]
    prompt_df = table.prompts + launch_df - fixed.shape[1]
    residual_df = len(centred) - table.prompts - launch_df
    prompt_trace = len(centred) - float(np.sum(_prompt_sums(table, fixed) ** 2))
    weight_per_cell = 1.0 / (table.prompts * cells_per_prompt[table.prompt])
    launch_weight = np.sum(np.bincount(table.launch, weights=weight_per_cell) ** 2)
    df = np.array([[launch_df], [prompt_df], [residual_df]], dtype=np.float64)
    divisor = np.maximum(df, 1.0)
    # No residual degrees of freedom make the residual 0 here, which can only widen the interval.
    return MeanSquares(
        square=np.array([[launch_ss], [prompt_ss], [residual_ss if residual_df else 0.0]]) / divisor,
        df=df * [[evenness.launches], [evenness.prompts], [1.0]],
        scale=np.array([[np.sum(launch_within**2)], [prompt_trace]]) / divisor[:2],
        weight=np.array([[launch_weight], [1.0 / table.prompts], [np.sum(weight_per_cell**2)]]),
    )


def _prompt_sums(table: Table, columns: Floats) -> Floats:
    """Each column summed within prompts; dummy columns of thousands of prompts would not fit in memory."""
    return np.stack([np.bincount(table.prompt, weights=column) for column in columns.T], axis=1)


def _orthonormal(columns: Floats) -> Floats:
    left, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    basis: Floats = left[:, lengths > RANK_TOLERANCE]
    return basis
