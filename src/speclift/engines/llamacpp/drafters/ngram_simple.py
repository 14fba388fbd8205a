"""llama.cpp's ngram-simple: looks up the last n tokens of the text so far and offers what followed them."""

from __future__ import annotations

import numpy as np

from speclift.replayer.counts import NONE, Batch, Offers, matches, offers_from


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
