"""What a replay counts per answer, and the walk from offers to those counts.

Where a draft depends on nothing but the text before it, one table of offers serves every k: from a context the
step takes min(accepted, k) drafted tokens and one of the target's own, and the next step begins after them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speclift.replayer.batch import Batch, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """The contexts at which something is drafted, in order: how much, and how much of it the answer confirms."""

    contexts: Ints
    drafted: Ints
    accepted: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Per answer, in the order of the batch. `decoded` tokens came from `steps`, `drafting` of which drafted."""

    decoded: Ints
    steps: Ints
    drafting: Ints
    drafted: Ints
    accepted: Ints


def offers_from(batch: Batch, contexts: Ints, source: Ints, drafted: Ints) -> Offers:
    """Of contexts that each copy `drafted` tokens from `source` on."""
    accepted = confirmed(batch, contexts, source, drafted)
    return Offers(contexts=contexts, drafted=drafted, accepted=accepted)


def confirmed(batch: Batch, contexts: Ints, source: Ints, drafted: Ints) -> Ints:
    """How many of the drafted tokens are what the answer really went on with."""
    tokens = batch.tokens
    limit = np.minimum(drafted, batch.end[batch.owner[contexts]] - contexts)
    accepted = np.zeros(len(contexts), dtype=np.int64)
    alive = np.flatnonzero(limit > 0)
    depth = 0
    while len(alive):
        alive = alive[tokens[source[alive] + depth] == tokens[contexts[alive] + depth]]
        depth += 1
        accepted[alive] = depth
        alive = alive[limit[alive] > depth]
    return accepted


def walk(batch: Batch, offers: Offers, k: int) -> Counts:
    """The decode steps of every answer at one k. An offer of nothing accepted costs a draft and no detour."""
    taken = np.minimum(offers.accepted, k)
    hits = np.flatnonzero(taken)
    visited = hits[_visited(offers.contexts[hits].tolist(), taken[hits].tolist())]
    at, took = offers.contexts[visited], taken[visited]
    owner = batch.owner[at]
    accepted = _sum(owner, took, batch.answers)
    # The answer ended inside a draft: that step had no token of the target's own left to add.
    cut = _sum(owner, (at + took == batch.end[owner]).astype(np.int64), batch.answers)
    offered = batch.owner[offers.contexts]
    lengths = np.minimum(offers.drafted, k)
    drafting_before, drafted_before = _running(np.ones_like(lengths)), _running(lengths)
    # Offers at contexts inside a step were never asked for.
    inside = np.searchsorted(offers.contexts, at + took, side="right")
    passed_drafting = drafting_before[inside] - drafting_before[visited + 1]
    passed_drafted = drafted_before[inside] - drafted_before[visited + 1]
    return Counts(
        decoded=batch.decoded,
        steps=batch.decoded - accepted + cut,
        drafting=np.bincount(offered, minlength=batch.answers) - _sum(owner, passed_drafting, batch.answers),
        drafted=_sum(offered, lengths, batch.answers) - _sum(owner, passed_drafted, batch.answers),
        accepted=accepted,
    )


def _visited(contexts: list[int], taken: list[int]) -> Ints:
    """Which of the contexts with something to take a walk really stops at."""
    reached = -1
    stops = []
    for index, (context, take) in enumerate(zip(contexts, taken, strict=True)):
        if context > reached:
            stops.append(index)
            reached = context + take
    return np.array(stops, dtype=np.int64)


def _running(values: Ints) -> Ints:
    """Sum of everything before each place, and of all at the end."""
    return np.concatenate(([0], np.cumsum(values)))


def _sum(owner: Ints, values: Ints, answers: int) -> Ints:
    # bincount adds floats; counts below 2^53 stay exact.
    return np.bincount(owner, weights=values, minlength=answers).astype(np.int64)
