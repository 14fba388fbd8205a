"""Which n-gram drafters llama.cpp has, by the names of --method, and what a reader of their replay must know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speclift.core.results import Finding, inform
from speclift.engines.llamacpp.drafters.ngram_cache import DRAFT_TOKENS, NgramCache
from speclift.engines.llamacpp.drafters.ngram_map import NgramMap
from speclift.engines.llamacpp.drafters.ngram_mod import TABLE_BYTES, NgramMod
from speclift.engines.llamacpp.drafters.ngram_simple import simple_offers, simple_offers_at
from speclift.replayer.counts import Batch, Counts, walk
from speclift.replayer.methods import DrafterSetting, LogDrafters, NgramDrafter

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
