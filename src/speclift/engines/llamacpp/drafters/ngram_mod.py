"""llama.cpp's ngram-mod: one hash table from n tokens to the token that followed, shared by all requests.

common/ngram-mod.cpp and common/speculative.cpp (b10586). It forgets everything when a quarter full, and after
five drafts in a row of which less than a quarter was accepted.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from speclift.core.units import Bytes
from speclift.engines.llamacpp.drafters.ngram_places import ngram_places
from speclift.replayer.counts import Text

TABLE_SIZE = 4 << 20
TABLE_BYTES: Bytes = 4 * TABLE_SIZE
HASH_FACTOR = 6364136223846793005
EMPTY = -1
FULL_SHARE = 0.25
# New tokens are entered once this many have come.
CHUNK_TOKENS = 32
LOW_ACCEPTANCE = 0.25
LOW_STREAK_MAX = 5


class NgramMod:
    """`n_min` is the shortest draft worth verifying; what comes out shorter is dropped."""

    def __init__(self, *, n: int, k: int, n_min: int) -> None:
        self.n, self.k, self.n_min = n, k, n_min
        self._table = _empty_table()
        self._used = 0
        self._leaving_factor = pow(HASH_FACTOR, n, TABLE_SIZE)
        self._entered_to = 0
        self._drafted = 0
        self._low_streak = 0
        self._tokens: list[int] = []
        self._hashes: list[int] = []

    def begin(self, text: Text) -> None:
        self._tokens = text.tokens
        # common_ngram_mod::idx
        self._hashes = ngram_places(text.tokens, self.n, factor=HASH_FACTOR, size=TABLE_SIZE, word=np.uint64)
        self._entered_to = self._drafted = 0
        if text.prompt_length < self.n:
            return
        self._enter(0, text.prompt_length - self.n)
        self._entered_to = text.prompt_length - self.n
        if self._used / TABLE_SIZE > FULL_SHARE:
            self._forget()

    def draft(self, context: int) -> Sequence[int]:
        self._drafted = 0
        length = context - 1  # the newest token is not in the history yet
        if length < self.n:
            return ()
        if self._entered_to + CHUNK_TOKENS < length:
            self._enter(self._entered_to, length - self.n)
            self._entered_to = length - self.n
        drafted: list[int] = []
        window = self._tokens[context - self.n : context]
        place = self._hashes[context - self.n]
        for index in range(self.k):
            token = self._table[place]
            if token == EMPTY:
                if index < self.n_min:
                    return ()
                break
            drafted.append(token)
            leaving = window[index] if index < self.n else drafted[index - self.n]
            place = (place * HASH_FACTOR - leaving * self._leaving_factor + token) % TABLE_SIZE
        self._drafted = len(drafted)
        return drafted

    def accepted(self, count: int) -> None:
        if self._drafted == 0:
            return
        if count / self._drafted >= LOW_ACCEPTANCE:
            self._low_streak = 0
            return
        self._low_streak += 1
        if self._low_streak >= LOW_STREAK_MAX:
            self._forget()
            self._low_streak = self._entered_to = 0

    def _enter(self, start: int, end: int) -> None:
        table, n = self._table, self.n
        for index in range(start, end):
            place = self._hashes[index]
            if table[place] == EMPTY:
                self._used += 1
            table[place] = self._tokens[index + n]

    def _forget(self) -> None:
        self._table = _empty_table()
        self._used = 0


def _empty_table() -> array[int]:
    return array("i", [EMPTY]) * TABLE_SIZE
