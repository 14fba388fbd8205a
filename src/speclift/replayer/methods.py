"""Which n-gram drafters can be replayed, what users call them, and how each is run over a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from speclift.core.errors import UsageError, unknown_name
from speclift.core.speculation import HEAD_KINDS
from speclift.replayer.batch import Batch, LoggedAnswer
from speclift.replayer.counts import Counts, walk
from speclift.replayer.lookup import simple_offers, simple_offers_at, vllm_gpu_offers, vllm_offers
from speclift.replayer.ngram_cache import DRAFT_TOKENS, NgramCache
from speclift.replayer.ngram_map import NgramMap
from speclift.replayer.ngram_mod import TABLE_BYTES, NgramMod
from speclift.replayer.stepwise import Drafter, replay_stepwise

VLLM, LLAMACPP = "vllm", "llamacpp"
LLAMACPP_METHODS = ("ngram:simple", "ngram:map-k", "ngram:map-k4v", "ngram:mod", "ngram:cache")
# Whose drafters these are, each by its own name; what is plain ngram there comes first.
DRAFTERS = {VLLM: ("ngram", "ngram:gpu"), LLAMACPP: LLAMACPP_METHODS}
METHODS = tuple(method for methods in DRAFTERS.values() for method in methods)
# Drafters that also look up fewer tokens than n.
TAKE_N_MIN = DRAFTERS[VLLM]
# They carry something from one request to the next.
REMEMBERING = frozenset(LLAMACPP_METHODS) - {"ngram:simple"}
SETTINGS = ("k", "min_hits", "n", "n_min")
NEED_A_MODEL = ("draft", "suffix", *HEAD_KINDS)

K_MAX = 128  # vLLM's sampler takes no more per request and step (v1/sample/rejection_sampler.py, 0.32.0)
N_MAX = 256
# ngram:mod has a table for every n and k.
TABLES_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSetting:
    """One drafter to replay at several k. `n` is None for ngram:cache, which has sizes of its own.

    `method` is what the user wrote, `variant` what the engine does: plain ngram is ngram:simple on llama.cpp.
    """

    engine: str
    method: str
    variant: str
    n: int | None
    ks: tuple[int, ...]
    n_min: int | None = None
    min_hits: int = 1


class Replay(Protocol):
    def counts(self, batch: Batch, answers: Sequence[LoggedAnswer]) -> list[Counts]:
        """One entry per k. Batches must come in the order of the log."""


def settings_for(
    methods: Sequence[str],
    *,
    engine: str | None,
    ks: Sequence[int],
    ngrams: Sequence[int],
) -> tuple[DrafterSetting, ...]:
    """Every method at every n; a method's own n= and k= win over the lists."""
    if engine is not None and engine not in DRAFTERS:
        raise unknown_name(what="engine", seen=engine, allowed=tuple(DRAFTERS))
    found: list[DrafterSetting] = []
    for text in methods:
        name, own = _parsed(text)
        variant, runs_on = _variant(name, engine)
        if "n_min" in own and variant not in TAKE_N_MIN:
            raise UsageError(f"--method {text}: n_min is vLLM's; llama.cpp looks up n tokens and no fewer")
        if "min_hits" in own and variant != "ngram:map-k4v":
            raise UsageError(f"--method {text}: only ngram:map-k4v uses min_hits")
        chosen_ks = _ks(variant, own, ks)
        for n in _ngrams(variant, own, ngrams):
            if n is not None and own.get("n_min", n) > n:
                raise UsageError(f"--method {text}: n_min must lie in 1..n={n}, saw {own['n_min']}")
            setting = DrafterSetting(
                engine=runs_on,
                method=name,
                variant=variant,
                n=n,
                ks=chosen_ks,
                n_min=own.get("n_min"),
                min_hits=own.get("min_hits", 1),
            )
            if setting not in found:
                found.append(setting)
    tables = sum(len(setting.ks) for setting in found if setting.variant == "ngram:mod")
    if tables * TABLE_BYTES > TABLES_BYTES_MAX:
        raise UsageError(
            f"ngram:mod keeps a table of {TABLE_BYTES >> 20} MiB for every n and k, {tables} of them here",
            hint="name fewer: --k 8,16 --ngram 16",
        )
    return tuple(found)


def replay_of(setting: DrafterSetting) -> Replay:
    if setting.variant in REMEMBERING:
        return _Stepwise(setting)
    return _Prefix(setting)


class _Prefix:
    """One look at the batch serves every k."""

    def __init__(self, setting: DrafterSetting) -> None:
        self._setting = setting

    def counts(self, batch: Batch, answers: Sequence[LoggedAnswer]) -> list[Counts]:
        setting = self._setting
        assert setting.n is not None
        n, n_min, k_max = setting.n, setting.n_min or setting.n, max(setting.ks)
        if setting.variant == "ngram:simple":
            offers = simple_offers(batch, n=n, k_max=k_max)
            return [walk(batch, simple_offers_at(batch, offers, n=n, k=k), k) for k in setting.ks]
        lookup = vllm_gpu_offers if setting.variant == "ngram:gpu" else vllm_offers
        if setting.variant == "ngram:gpu":
            # What fills a short draft depends on k, so nothing is shared.
            return [walk(batch, lookup(batch, n_min=n_min, n_max=n, k_max=k), k) for k in setting.ks]
        offers = lookup(batch, n_min=n_min, n_max=n, k_max=k_max)
        return [walk(batch, offers, k) for k in setting.ks]


class _Stepwise:
    def __init__(self, setting: DrafterSetting) -> None:
        self._drafters = [_drafter(setting, k) for k in setting.ks]

    def counts(self, batch: Batch, answers: Sequence[LoggedAnswer]) -> list[Counts]:
        return [replay_stepwise(drafter, answers) for drafter in self._drafters]


def _drafter(setting: DrafterSetting, k: int) -> Drafter:
    if setting.n is None:
        return NgramCache()
    if setting.variant == "ngram:mod":
        # As engines/llamacpp/flags.py launches it: n-min above n-max would drop every draft.
        return NgramMod(n=setting.n, k=k, n_min=min(k, setting.n))
    keys_only = setting.variant == "ngram:map-k"
    return NgramMap(n=setting.n, k=k, keys_only=keys_only, min_hits=setting.min_hits)


def _variant(name: str, engine: str | None) -> tuple[str, str]:
    """What the engine does under this name, and which engine that is: vLLM where neither is said."""
    owner = next(owner for owner, methods in DRAFTERS.items() if name in methods)
    if engine is None or engine == owner:
        return name, owner
    if name == "ngram":
        return DRAFTERS[engine][0], engine
    allowed = dict.fromkeys(("ngram", *DRAFTERS[engine]))
    raise UsageError(f"{name} is not {engine}'s", hint=f"--engine {engine} has: {', '.join(allowed)}")


def _parsed(text: str) -> tuple[str, dict[str, int]]:
    name, *pairs = (part.strip() for part in text.split(","))
    if name.partition(":")[0] in NEED_A_MODEL or "+" in name:
        raise UsageError(
            f"--method {name} cannot be replayed: what it drafts is not in a log",
            hint=f"replay knows {', '.join(METHODS)}; for {name}: speclift measure --method {name}",
        )
    if name not in METHODS:
        raise unknown_name(what="method", seen=name, allowed=METHODS)
    own: dict[str, int] = {}
    for pair in pairs:
        key, _, value = (word.strip() for word in pair.partition("="))
        if key not in SETTINGS:
            raise unknown_name(what=f"setting in --method {text}", seen=key, allowed=SETTINGS)
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise UsageError(f"--method {text}: {key} takes a whole number of at least 1, saw {value!r}")
        own[key] = int(value)
    return name, own


def _ks(variant: str, own: dict[str, int], ks: Sequence[int]) -> tuple[int, ...]:
    if variant == "ngram:cache":
        return (DRAFT_TOKENS,)
    return _within((own["k"],) if "k" in own else ks, flag="--k", highest=K_MAX)


def _ngrams(variant: str, own: dict[str, int], ngrams: Sequence[int]) -> tuple[int | None, ...]:
    if variant == "ngram:cache":
        return (None,)
    return _within((own["n"],) if "n" in own else ngrams, flag="--ngram", highest=N_MAX)


def _within(values: Sequence[int], *, flag: str, highest: int) -> tuple[int, ...]:
    for value in values:
        if not 1 <= value <= highest:
            raise UsageError(f"{flag} takes numbers in 1..{highest}, saw {value}")
    if not values:
        raise UsageError(f"{flag} names no number", hint=f"for example {flag} 2,3,5 or {flag} 1..5")
    return tuple(sorted(set(values)))
