"""llama.cpp's ngram-map-k and ngram-map-k4v: a map from n-grams to where they stood, kept by a slot.

common/ngram-map.cpp (b10586). What makes them unlike ngram-simple: a key drafts no more than was accepted of it
last time, so a key that failed once is silent ever after; the last n + k + 1 tokens of the prompt are never
looked at; and a slot's next request does not look at the part of its prompt that the previous one had covered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from speclift.engines.llamacpp.drafters.ngram_places import ngram_places
from speclift.replayer.counts import Text

# COMMON_NGRAM_HASH_MAP_SIZE, LCG_FACTOR, COMMON_NGRAM_MAX_VALUES, COMMON_NGRAM_MAX_VALUE_COUNT.
BUCKETS = 1 << 18
HASH_FACTOR = 2654435761
VALUES_MAX = 4
COUNT_MAX = 16380


@dataclass(slots=True)
class _Value:
    """One continuation of a key; index 0 means the place is free."""

    index: int = 0
    seen: int = 0
    accepted: int = 0


@dataclass(slots=True)
class _Key:
    index: int
    counted_to: int = 0
    hits: int = 0
    values: list[_Value] = field(default_factory=list)


class NgramMap:
    """`keys_only` is map-k: what followed the match is drafted. map-k4v drafts only where one of up to four
    continuations clearly leads."""

    def __init__(self, *, n: int, k: int, keys_only: bool, min_hits: int = 1) -> None:
        self.n, self.k, self.keys_only, self.min_hits = n, k, keys_only, min_hits
        self._places: dict[int, int] = {}
        self._placed_to = 0
        self._keys: list[_Key] = []
        self._begun_at = 0
        self._checked_to = 0
        self._last: _Value | None = None
        self._tokens: list[int] = []
        self._buckets: list[int] = []
        self._by_tokens: dict[tuple[int, ...], _Key] = {}
        self._occurrences: dict[tuple[int, ...], list[int]] = {}

    def begin(self, text: Text) -> None:
        length = text.prompt_length
        reach = self.n + self.k
        kept_to = self._begun_at
        if kept_to > length:
            kept_to = length - reach if length > reach else 0
        if length < self._checked_to:
            self._places = {bucket: place for bucket, place in self._places.items() if place < kept_to}
            self._placed_to = max(kept_to - 1, 0)
            self._keys = [key for key in self._keys if self._survives(key, kept_to)]
        self._checked_to = self._begun_at = length
        self._tokens = text.tokens
        # common_ngram_map_hash
        self._buckets = ngram_places(text.tokens, self.n, factor=HASH_FACTOR, size=BUCKETS, word=np.uint32)
        self._by_tokens = {}
        for key in self._keys:
            self._by_tokens.setdefault(self._ngram(key.index), key)
        self._occurrences = {} if self.keys_only else self._all_occurrences()

    def _survives(self, key: _Key, kept_to: int) -> bool:
        if key.index >= kept_to:
            return False
        if self.keys_only:
            return True
        kept = [value for value in key.values if not (value.index and value.index >= kept_to)]
        key.values = kept + [_Value() for _ in range(VALUES_MAX - len(kept))]
        return key.values[0].index != 0

    def draft(self, context: int) -> Sequence[int]:
        self._last = None
        length = context - 1  # the newest token is not in the history yet
        if length < 2 * self.n + self.k:
            return ()
        self._checked_to = length
        match = self._match(context)
        self._place(length)
        if match == 0:
            return ()
        tokens = self._ngram(context - self.n)
        key = self._by_tokens.get(tokens)
        if key is None:
            key = _Key(index=match, values=[_Value(accepted=self.k) for _ in range(VALUES_MAX)])
            self._keys.append(key)
            self._by_tokens[tokens] = key
        key.hits = min(key.hits + 1, COUNT_MAX)
        value = key.values[0] if self.keys_only else self._leading_value(key, tokens, match)
        if value is None:
            return ()
        self._last = value
        start = match + self.n
        return self._tokens[start : start + max(min(self.k, value.accepted), 0)]

    def accepted(self, count: int) -> None:
        if self._last is not None:
            self._last.accepted = count

    def _match(self, context: int) -> int:
        length, reach = context - 1, self.n + self.k + 1
        wanted = self._ngram(context - self.n)
        bucket = self._buckets[context - self.n]
        place = self._places.get(bucket, 0)
        if place and place < length - reach and self._ngram(place) == wanted:
            return place
        for candidate in self._unplaced(length):
            if self._buckets[candidate] == bucket and self._ngram(candidate) == wanted:
                return candidate
        return 0

    def _place(self, length: int) -> None:
        for place in self._unplaced(length):
            self._places.setdefault(self._buckets[place], place)
        self._placed_to = max(length - self.n - self.k - 1, self._placed_to)

    def _unplaced(self, length: int) -> list[int]:
        """What no earlier draft has put into the map: the prompt's part first, each from its end."""
        reach = self.n + self.k + 1
        prompt = range(self._begun_at - reach, self._placed_to, -1) if self._begun_at > reach else range(0)
        answer = range(length - reach, max(self._begun_at, self._placed_to), -1)
        return [*prompt, *answer]

    def _leading_value(self, key: _Key, tokens: tuple[int, ...], match: int) -> _Value | None:
        if key.hits < self.min_hits:
            return None
        places = self._occurrences.get(tokens, [])
        # From where counting ended, that place once more.
        for place in places[bisect_left(places, key.counted_to) : bisect_right(places, match)]:
            self._count(key, place + self.n)
        key.counted_to = match
        leading = max(key.values, key=lambda value: value.seen)
        others = sum(value.seen for value in key.values if value is not leading)
        return None if others > 0 and leading.seen < 2 * others else leading

    def _count(self, key: _Key, start: int) -> None:
        continuation = self._tokens[start : start + self.k]
        for value in key.values:
            if value.index == 0:
                value.index, value.seen, value.accepted = start, 1, self.k
                return
            if self._tokens[value.index : value.index + self.k] == continuation:
                value.seen = min(value.seen + 1, COUNT_MAX)
                return

    def _ngram(self, start: int) -> tuple[int, ...]:
        return tuple(self._tokens[start : start + self.n])

    def _all_occurrences(self) -> dict[tuple[int, ...], list[int]]:
        found: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for start in range(len(self._tokens) - self.n + 1):
            found[self._ngram(start)].append(start)
        return found
