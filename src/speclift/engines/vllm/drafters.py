"""vLLM's n-gram drafters as it does them, on logs: both look only at the text so far.

Each looks up the last n tokens, picks one place where they stood before and offers what followed there. They differ in
which place, and in what they do when little follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from speclift.core.json_reading import as_number
from speclift.core.results import Finding, inform
from speclift.engines.vllm.dialect.tables import K_MAX
from speclift.replayer.counts import NONE, Batch, Counts, Ints, Offers, confirmed, matches, offers_from, walk
from speclift.replayer.methods import DrafterSetting, LogDrafters, NgramDrafter

# Sampling parameters that vLLM refuses as soon as the server speculates (sampling_params.py, 0.32.0).
REFUSED = ("min_p", "logit_bias", "trace_decode_token_ids")
_MIN_P_SEEN = 1e-5  # below it vLLM takes min_p for 0


def first_match_offers(batch: Batch, *, n_min: int, n_max: int, k_max: int) -> Offers:
    """ngram: the longest of n_max..n_min tokens found, where they stood first; what follows, up to now.

    v1/spec_decode/ngram_proposer.py (0.32.0), used by the V1 model runner: CPU builds, older releases on GPUs.
    """
    contexts, source = _sources(batch, n_min=n_min, n_max=n_max, which="first")
    found = source != NONE
    contexts, source = contexts[found], source[found]
    drafted = np.minimum(contexts - source, k_max)
    return offers_from(batch, contexts, source, drafted)


def latest_match_offers(batch: Batch, *, n_min: int, n_max: int, k_max: int) -> Offers:
    """ngram on the V2 model runner: the latest place, and always k tokens.

    v1/worker/gpu/spec_decode/ngram/speculator.py (0.32.0): what is missing is filled with the last token, all
    of the draft where nothing was found.
    """
    contexts, source = _sources(batch, n_min=n_min, n_max=n_max, which="previous")
    found = source != NONE
    copied = np.where(found, np.minimum(contexts - source, k_max), 0)
    accepted = confirmed(batch, contexts, np.where(found, source, 0), copied)
    filled = np.flatnonzero((accepted == copied) & (copied < k_max))
    at = contexts[filled]
    accepted[filled] += _repeats(batch, at, at + copied[filled], k_max - copied[filled])
    return Offers(contexts=contexts, drafted=np.full(len(contexts), k_max), accepted=accepted)


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


def _ngram(batch: Batch, setting: DrafterSetting) -> list[Counts]:
    """One look at the batch serves every k."""
    n = setting.size
    offers = first_match_offers(batch, n_min=setting.n_min or n, n_max=n, k_max=max(setting.ks))
    return [walk(batch, offers, k) for k in setting.ks]


def _ngram_gpu(batch: Batch, setting: DrafterSetting) -> list[Counts]:
    """What fills a short draft depends on k, so nothing is shared."""
    n = setting.size
    return [
        walk(batch, latest_match_offers(batch, n_min=setting.n_min or n, n_max=n, k_max=k), k)
        for k in setting.ks
    ]


class VllmDrafters(LogDrafters):
    engine = "vllm"
    k_max = K_MAX
    drafters = (
        NgramDrafter(method="ngram", looks_up=_ngram, takes_n_min=True),
        NgramDrafter(method="ngram:gpu", looks_up=_ngram_gpu, takes_n_min=True),
    )

    def refused(self, params: Mapping[str, object]) -> tuple[str, ...]:
        min_p = as_number(params.get("min_p"))
        is_set = {
            "min_p": min_p is not None and min_p > _MIN_P_SEEN,
            "logit_bias": bool(params.get("logit_bias")),
            "trace_decode_token_ids": params.get("trace_decode_token_ids") is not None,
        }
        return tuple(name for name in REFUSED if is_set[name])

    def findings(self, settings: Sequence[DrafterSetting]) -> Iterator[Finding]:
        if any(setting.drafter.method == "ngram" for setting in settings):
            yield inform(
                "vllm-runner",
                "ngram means vLLM's V1 model runner (CPU, older GPU releases); the V2 runner, the default "
                "on GPUs in 0.32, uses the latest match and always drafts k tokens",
                then="for a GPU server with vLLM 0.32 use --method ngram:gpu",
            )
