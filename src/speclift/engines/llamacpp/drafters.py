"""llama.cpp's n-gram drafters, token by token as it drafts them, for replay. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from speclift.core.results import Finding, inform
from speclift.core.units import Bytes
from speclift.replayer.counts import NONE, Batch, Counts, Offers, Text, matches, offers_from, walk
from speclift.replayer.methods import DrafterSetting, LogDrafters, NgramDrafter


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


# ngram-simple


def simple_offers(batch: Batch, *, n: int, k_max: int) -> Offers:
    """All but the two rules that depend on k (see simple_offers_at).

    common/ngram-map.cpp, common_ngram_simple_draft: the latest place that ends before the last token but one
    and does not begin the text; what followed it, without the last token; nothing where that is under n tokens.
    """
    contexts = batch.contexts()
    contexts = contexts[contexts - n >= batch.start[batch.owner[contexts]]]
    previous = matches(batch, n).previous
    place = previous[contexts - n]
    # Shifted by one token against itself: the search starts one further back.
    shifted = place == contexts - n - 1
    place[shifted] = previous[place[shifted]]
    begins_text = place == batch.start[batch.owner[contexts]]
    available = contexts - 1 - (place + n)
    room = batch.room(contexts)
    offered = (place != NONE) & ~begins_text & (available >= n) & (room > 0)
    contexts, source = contexts[offered], place[offered] + n
    drafted = np.minimum(np.minimum(available, room)[offered], k_max)
    return offers_from(batch, contexts, source, drafted)


def simple_offers_at(batch: Batch, offers: Offers, *, n: int, k: int) -> Offers:
    """A text of up to n + k + 2 tokens is too short for ngram-simple, and a k below n too small for any draft."""
    length = offers.contexts - batch.start[batch.owner[offers.contexts]]
    kept = (length - 1 > n + k + 1) & (k >= n)
    return Offers(
        contexts=offers.contexts[kept], drafted=offers.drafted[kept], accepted=offers.accepted[kept]
    )


# ngram-map-k and ngram-map-k4v


# COMMON_NGRAM_HASH_MAP_SIZE, LCG_FACTOR, COMMON_NGRAM_MAX_VALUES, COMMON_NGRAM_MAX_VALUE_COUNT.
BUCKETS = 1 << 18
MAP_HASH_FACTOR = 2654435761
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
        self._buckets = ngram_places(
            text.tokens, self.n, factor=MAP_HASH_FACTOR, size=BUCKETS, word=np.uint32
        )
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


# ngram-mod


TABLE_SIZE = 4 << 20
TABLE_BYTES: Bytes = 4 * TABLE_SIZE
MOD_HASH_FACTOR = 6364136223846793005
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
        self._leaving_factor = pow(MOD_HASH_FACTOR, n, TABLE_SIZE)
        self._entered_to = 0
        self._drafted = 0
        self._low_streak = 0
        self._tokens: list[int] = []
        self._hashes: list[int] = []

    def begin(self, text: Text) -> None:
        self._tokens = text.tokens
        # common_ngram_mod::idx
        self._hashes = ngram_places(
            text.tokens, self.n, factor=MOD_HASH_FACTOR, size=TABLE_SIZE, word=np.uint64
        )
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
            place = (place * MOD_HASH_FACTOR - leaving * self._leaving_factor + token) % TABLE_SIZE
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


# ngram-cache


DRAFT_TOKENS = 8  # n_draft in create_state_ngram_cache; no flag changes it
SIZES = (1, 2, 3, 4)  # LLAMA_NGRAM_MIN..LLAMA_NGRAM_MAX
HISTORY_MIN = 2  # LLAMA_NGRAM_STATIC
# draft_min_sample_size_lax and draft_min_percent_lax, by n-gram size.
SEEN_MIN = {1: 2, 2: 2, 3: 1, 4: 1}
PERCENT_MIN = {1: 66, 2: 50, 3: 50, 4: 50}


class NgramCache:
    def __init__(self) -> None:
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}
        self._counted_to = 0
        self._tokens: list[int] = []

    def begin(self, text: Text) -> None:
        self._tokens = text.tokens

    def draft(self, context: int) -> Sequence[int]:
        if self._counted_to < context:
            self._count(self._tokens[self._counted_to : context])
            self._counted_to = context
        if context < HISTORY_MIN:
            return ()
        recent = self._tokens[max(context - SIZES[-1], 0) : context]
        drafted: list[int] = []
        while len(drafted) < DRAFT_TOKENS:
            token = self._likely(recent)
            if token is None:
                break
            drafted.append(token)
            recent = [*recent, token][-SIZES[-1] :]
        return drafted

    def accepted(self, count: int) -> None: ...

    def _count(self, new: list[int]) -> None:
        for size in SIZES:
            for index in range(size, len(new)):
                followers = self._followers.setdefault(tuple(new[index - size : index]), {})
                followers[new[index]] = followers.get(new[index], 0) + 1

    def _likely(self, recent: list[int]) -> int | None:
        """The most frequent follower of the longest n-gram that has a clear one."""
        for size in reversed(SIZES):
            followers = self._followers.get(tuple(recent[-size:])) if len(recent) >= size else None
            if not followers:
                continue
            # Of equals the one seen last for the first time: the order in which libstdc++ walks a hash map.
            token = max(reversed(followers), key=followers.__getitem__)
            total = sum(followers.values())
            if total >= SEEN_MIN[size] and 100 * followers[token] >= PERCENT_MIN[size] * total:
                return token
        return None


# All of them, for a log


SIMPLE = "ngram:simple"


def _simple(batch: Batch, setting: DrafterSetting) -> list[Counts]:
    n = setting.size
    offers = simple_offers(batch, n=n, k_max=max(setting.ks))
    return [walk(batch, simple_offers_at(batch, offers, n=n, k=k), k) for k in setting.ks]


def _map_k(setting: DrafterSetting, k: int) -> NgramMap:
    return NgramMap(n=setting.size, k=k, keys_only=True, min_hits=setting.min_hits)


def _map_k4v(setting: DrafterSetting, k: int) -> NgramMap:
    return NgramMap(n=setting.size, k=k, keys_only=False, min_hits=setting.min_hits)


def _mod(setting: DrafterSetting, k: int) -> NgramMod:
    # As engines/llamacpp/flags.py launches it: n-min above n-max would drop every draft.
    return NgramMod(n=setting.size, k=k, n_min=min(k, setting.size))


def _cache(_setting: DrafterSetting, _k: int) -> NgramCache:
    return NgramCache()


class LlamaCppDrafters(LogDrafters):
    engine = "llamacpp"
    drafters = (
        NgramDrafter(method=SIMPLE, looks_up=_simple),
        NgramDrafter(method="ngram:map-k", makes=_map_k),
        NgramDrafter(method="ngram:map-k4v", makes=_map_k4v, takes_min_hits=True),
        NgramDrafter(method="ngram:mod", makes=_mod, table_bytes=TABLE_BYTES),
        NgramDrafter(method="ngram:cache", makes=_cache, own_k=DRAFT_TOKENS),
    )

    def findings(self, settings: Sequence[DrafterSetting]) -> Iterator[Finding]:
        remembering = sorted({setting.method for setting in settings if setting.drafter.remembers})
        if remembering:
            yield inform(
                "log-order",
                f"{', '.join(remembering)} remember earlier requests: the log is replayed in order, as in one "
                "slot of a new server",
                then="with several slots only ngram:mod shares its memory",
            )
        too_short = sorted(
            {
                setting.size
                for setting in settings
                if setting.drafter.method == SIMPLE and min(setting.ks) < setting.size
            }
        )
        if too_short:
            yield inform(
                "k-below-n",
                "llama.cpp's ngram-simple drafts nothing if k is below n "
                f"(n = {', '.join(map(str, too_short))} here)",
                then="choose k of at least n",
            )
