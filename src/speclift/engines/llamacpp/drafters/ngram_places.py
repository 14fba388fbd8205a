"""Where llama.cpp's hash tables put each n-gram of a text: a polynomial in its tokens, in fixed-width arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def ngram_places(
    tokens: list[int], n: int, *, factor: int, size: int, word: type[np.uint32 | np.uint64]
) -> list[int]:
    """The place of every n-gram, by its first index; `word` is the width at which the engine's sums wrap."""
    count = len(tokens) - n + 1
    if count < 1:
        return []
    words: npt.NDArray[np.unsignedinteger] = np.array(tokens, dtype=word)
    hashes: npt.NDArray[np.unsignedinteger] = np.zeros(count, dtype=word)
    for offset in range(n):
        hashes = hashes * word(factor) + words[offset : offset + count]
    places: list[int] = (hashes % word(size)).tolist()
    return places
