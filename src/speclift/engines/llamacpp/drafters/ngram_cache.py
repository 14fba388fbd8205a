"""llama.cpp's ngram-cache: how often each token followed the last one to four, kept by a slot for ever.

common/ngram-cache.cpp and common/speculative.cpp (b10586), without lookup files. A slot counts only tokens beyond
the longest text it has seen, and of those only n-grams that came in one step: a later, shorter request drafts
from the statistics of an earlier one and adds none of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from speclift.replayer.counts import Text

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
