"""Where did the last n tokens stand before? For every place of a batch at once, by one sort.

Each n-gram's hash shares a 64-bit word with its place, so that sorting the words brings equal n-grams together
in the order they came. Neighbours are then compared token by token; a collision means another multiplier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from speclift.replayer.batch import Batch, Ints

# Odd, with their bits well spread: the golden ratio of 2^64 and its next odd multiples.
_MULTIPLIER = 0x9E3779B97F4A7C15
NONE = -1
# A batch of 2^18 tokens has 46 bits of hash left: one in two thousand meets a collision, and none two.
ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """For every n-gram by its first index: where it stood first and where it stood last before; -1 nowhere."""

    first: Ints
    previous: Ints


def matches(batch: Batch, n: int) -> Matches:
    size = len(batch.tokens)
    first, previous = np.full(size, NONE), np.full(size, NONE)
    index = np.arange(max(size - n + 1, 0))
    places = index[index + n <= batch.end[batch.owner[: len(index)]]]
    if len(places) == 0:
        return Matches(first=first, previous=previous)
    order, is_same = _grouped(batch, places, n)
    previous[order[1:]] = np.where(is_same, order[:-1], NONE)
    leader = np.maximum.accumulate(np.where(np.append(False, is_same), 0, np.arange(len(order))))
    first[order] = np.where(order[leader] == order, NONE, order[leader])
    return Matches(first=first, previous=previous)


def _grouped(batch: Batch, places: Ints, n: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Places so ordered that equal n-grams are neighbours, and which neighbours are equal."""
    place_bits = len(batch.tokens).bit_length()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        words = _hashes(batch, places, n, attempt) >> np.uint64(place_bits) << np.uint64(place_bits)
        words |= places.astype(np.uint64)
        words.sort()
        order = (words & np.uint64((1 << place_bits) - 1)).astype(np.int64)
        hashes = words >> np.uint64(place_bits)
        is_same = hashes[1:] == hashes[:-1]
        left, right = order[:-1][is_same], order[1:][is_same]
        equal = batch.owner[left] == batch.owner[right]
        for offset in range(n):
            equal &= batch.tokens[left + offset] == batch.tokens[right + offset]
        if equal.all():
            return order, is_same
    raise AssertionError(f"n-grams still collide after {ATTEMPTS_MAX} hashes")


def _hashes(batch: Batch, places: Ints, n: int, attempt: int) -> NDArray[np.uint64]:
    multiplier = np.uint64((_MULTIPLIER * (2 * attempt - 1)) & 0xFFFFFFFFFFFFFFFF)
    tokens = batch.tokens.astype(np.uint64)
    hashes = (batch.owner[places].astype(np.uint64) + np.uint64(1)) * multiplier
    hashes ^= hashes >> np.uint64(29)
    for offset in range(n):
        hashes = (hashes + tokens[places + offset] + np.uint64(1)) * multiplier
        hashes ^= hashes >> np.uint64(29)
    return np.asarray(hashes * multiplier)
