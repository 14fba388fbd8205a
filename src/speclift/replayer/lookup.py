"""The n-gram drafters that look only at the text so far: vLLM's two and llama.cpp's ngram-simple.

Each looks up the last n tokens, picks one place where they stood before and offers what followed there. They
differ in which place, in how near it may be, and in what they do when little follows it.
"""

from __future__ import annotations

import numpy as np

from speclift.replayer.batch import Batch, Ints
from speclift.replayer.counts import Offers
from speclift.replayer.matches import NONE, matches


def vllm_offers(batch: Batch, *, n_min: int, n_max: int, k_max: int) -> Offers:
    """vLLM's ngram: the longest of n_max..n_min tokens found, where they stood first; what follows, up to now.

    v1/spec_decode/ngram_proposer.py (0.32.0), used by the V1 model runner: CPU builds, older releases on GPUs.
    """
    contexts, source = _sources(batch, n_min=n_min, n_max=n_max, which="first")
    found = source != NONE
    contexts, source = contexts[found], source[found]
    drafted = np.minimum(contexts - source, k_max)
    return _offers(batch, contexts, source, drafted)


def vllm_gpu_offers(batch: Batch, *, n_min: int, n_max: int, k_max: int) -> Offers:
    """vLLM's ngram on its V2 model runner: the latest place, and always k tokens.

    v1/worker/gpu/spec_decode/ngram/speculator.py (0.32.0): what is missing is filled with the last token, all
    of the draft where nothing was found.
    """
    contexts, source = _sources(batch, n_min=n_min, n_max=n_max, which="previous")
    found = source != NONE
    copied = np.where(found, np.minimum(contexts - source, k_max), 0)
    accepted = _confirmed(batch, contexts, np.where(found, source, 0), copied)
    filled = np.flatnonzero((accepted == copied) & (copied < k_max))
    at = contexts[filled]
    accepted[filled] += _repeats(batch, at, at + copied[filled], k_max - copied[filled])
    return Offers(contexts=contexts, drafted=np.full(len(contexts), k_max), accepted=accepted)


def simple_offers(batch: Batch, *, n: int, k_max: int) -> Offers:
    """llama.cpp's ngram-simple, all but the two rules that depend on k (see simple_offers_at).

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
    return _offers(batch, contexts, source, drafted)


def simple_offers_at(batch: Batch, offers: Offers, *, n: int, k: int) -> Offers:
    """A text of up to n + k + 2 tokens is too short for ngram-simple, and a k below n too small for any draft."""
    length = offers.contexts - batch.start[batch.owner[offers.contexts]]
    kept = (length - 1 > n + k + 1) & (k >= n)
    return Offers(
        contexts=offers.contexts[kept], drafted=offers.drafted[kept], accepted=offers.accepted[kept]
    )


def _sources(batch: Batch, *, n_min: int, n_max: int, which: str) -> tuple[Ints, Ints]:
    """Every context and the index of what it would copy, -1 for nothing: the longest match decides."""
    contexts = batch.contexts()
    source = np.full(len(contexts), NONE)
    for n in range(n_max, n_min - 1, -1):
        open_ones = np.flatnonzero(source == NONE)
        at = contexts[open_ones]
        long_enough = at - n >= batch.start[batch.owner[at]]
        open_ones, at = open_ones[long_enough], at[long_enough]
        found = matches(batch, n)
        place = (found.first if which == "first" else found.previous)[at - n]
        source[open_ones] = np.where(place == NONE, NONE, place + n)
    return contexts, source


def _offers(batch: Batch, contexts: Ints, source: Ints, drafted: Ints) -> Offers:
    accepted = _confirmed(batch, contexts, source, drafted)
    return Offers(contexts=contexts, drafted=drafted, accepted=accepted)


def _confirmed(batch: Batch, contexts: Ints, source: Ints, drafted: Ints) -> Ints:
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


def _repeats(batch: Batch, contexts: Ints, start: Ints, limit: Ints) -> Ints:
    """How often the token before each context comes again from `start` on."""
    tokens = batch.tokens
    limit = np.minimum(limit, batch.end[batch.owner[contexts]] - start)
    repeated = np.zeros(len(contexts), dtype=np.int64)
    alive = np.flatnonzero(limit > 0)
    depth = 0
    while len(alive):
        alive = alive[tokens[start[alive] + depth] == tokens[contexts[alive] - 1]]
        depth += 1
        repeated[alive] = depth
        alive = alive[limit[alive] > depth]
    return repeated
