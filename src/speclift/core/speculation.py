"""The speculation methods as one sum type: what an arm adds to the baseline server.

`k` is the largest number of tokens drafted per step: num_speculative_tokens in vLLM, n_max of a
llama.cpp draft, size_m of a llama.cpp n-gram drafter. `extra` holds what only one engine knows, under that
engine's own name, each value as JSON text; its adapter judges it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import fields

from speclift.core.errors import UsageError, unknown_name

NGRAM_VARIANTS = ("simple", "map-k", "map-k4v", "mod", "cache", "gpu")
REMEMBERING_VARIANTS = ("map-k", "map-k4v", "mod", "cache")
DRAFT_SAMPLINGS = ("greedy", "probabilistic")
# Far above any use: engines draft a few tokens, look-ups some dozens.
K_MAX = 1_000
HEAD_KINDS = ("eagle", "eagle3", "mtp", "medusa", "dflash", "dspark", "custom_class")

Extra: TypeAlias = tuple[tuple[str, str], ...]


class _Method(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """The base of all methods: JSON tells them apart by `kind`."""


class Off(_Method, frozen=True, kw_only=True, tag="off"):
    """No speculative configuration at all: the baseline."""


class Equalised(_Method, frozen=True, kw_only=True, tag="equalised"):
    """No speculation either, and without what another arm's speculation switches off: it explains, never decides."""


class DraftModel(_Method, frozen=True, kw_only=True, tag="draft"):
    """A smaller model with the same vocabulary drafts; the target verifies."""

    model: str
    k: int = 4
    k_min: int = 0
    p_min: float = 0.0
    sampling: Literal["greedy", "probabilistic"] = "greedy"
    gpu_layers: int | None = None
    device: str | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    extra: Extra = ()

    def __post_init__(self) -> None:
        _require_k(self.k)
        if not 0 <= self.k_min <= self.k:
            raise UsageError(f"k_min must lie in 0..k={self.k}, saw {self.k_min}")
        if not 0.0 <= self.p_min <= 1.0:
            raise UsageError(f"p_min is a probability in 0..1, saw {self.p_min}")
        if self.sampling not in DRAFT_SAMPLINGS:
            raise unknown_name(what="draft sampling", seen=self.sampling, allowed=DRAFT_SAMPLINGS)


class NGram(_Method, frozen=True, kw_only=True, tag="ngram"):
    """Copies from the text so far: the last `n` tokens are looked up, what followed is drafted.

    `n_min`: where those are not found, fewer are tried, down to this many; None tries `n` alone.
    """

    variant: str = "simple"
    k: int = 48
    n: int = 12
    n_min: int | None = None
    min_hits: int = 1
    extra: Extra = ()

    def __post_init__(self) -> None:
        _require_k(self.k)
        if self.variant not in NGRAM_VARIANTS:
            raise unknown_name(what="n-gram variant", seen=self.variant, allowed=NGRAM_VARIANTS)
        if self.n < 1:
            raise UsageError(f"an n-gram looks up at least 1 token, saw n={self.n}")
        if self.n_min is not None and not 1 <= self.n_min <= self.n:
            raise UsageError(f"n_min must lie in 1..n={self.n}, saw {self.n_min}")


class Suffix(_Method, frozen=True, kw_only=True, tag="suffix"):
    """Suffix-tree lookup over the request and earlier outputs (vLLM's suffix decoding)."""

    k: int = 32
    extra: Extra = ()

    def __post_init__(self) -> None:
        _require_k(self.k)


class Head(_Method, frozen=True, kw_only=True, tag="head", rename={"kind": "head"}):
    """A trained head (EAGLE, MTP, Medusa, ...) drafts from the target's hidden states."""

    kind: str
    k: int = 3
    model: str | None = None
    extra: Extra = ()

    def __post_init__(self) -> None:
        _require_k(self.k)
        if self.kind not in HEAD_KINDS:
            raise unknown_name(what="head kind", seen=self.kind, allowed=HEAD_KINDS)


class Combined(_Method, frozen=True, kw_only=True, tag="combined"):
    """Several drafters on one server; each step uses the first that offers a draft."""

    parts: tuple[DraftModel | NGram | Suffix | Head, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise UsageError("a combination needs at least two methods")


class Synthetic(_Method, frozen=True, kw_only=True, tag="synthetic"):
    """Forces acceptance to survival rates S_1..S_k to measure step cost. The text is garbage."""

    inner: DraftModel | NGram | Suffix | Head
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        falling = all(a >= b for a, b in zip(self.rates, self.rates[1:], strict=False))
        if not self.rates or not falling or not all(0 <= r <= 1 for r in self.rates):
            raise UsageError(f"synthetic acceptance needs non-increasing rates in 0..1, saw {self.rates}")
        if len(self.rates) != self.inner.k:
            raise UsageError(
                f"synthetic acceptance needs one rate per drafted position: k={self.inner.k}, "
                f"saw {len(self.rates)} rates"
            )


class Attached(_Method, frozen=True, kw_only=True, tag="attached"):
    """Whatever a server that somebody else started does; nothing about it is assumed."""


Drafter: TypeAlias = DraftModel | NGram | Suffix | Head
Speculation: TypeAlias = Off | Equalised | Drafter | Combined | Synthetic | Attached


def method_name(speculation: Speculation) -> str:
    """The one word users know: off, draft, ngram, ngram:map-k, eagle, ngram+draft, ..."""
    match speculation:
        case Off():
            return "off"
        case Equalised():
            return "control"
        case DraftModel():
            return "draft"
        case NGram(variant="simple"):
            return "ngram"
        case NGram(variant=variant):
            return f"ngram:{variant}"
        case Suffix():
            return "suffix"
        case Head(kind=kind):
            return kind
        case Combined(parts=parts):
            return "+".join(method_name(part) for part in parts)
        case Synthetic(inner=inner):
            return f"synthetic-{method_name(inner)}"
        case Attached():
            return "attached"


def method_text(speculation: Speculation) -> str | None:
    """What --method takes to mean exactly this; None where it has no words for it."""
    match speculation:
        case Off() | Equalised() | Attached():
            return None
        case Combined(parts=parts):
            texts = [text for part in parts if (text := _drafter_text(part)) is not None]
            return "+".join(texts) if len(texts) == len(parts) else None
        case Synthetic(inner=inner, rates=rates):
            text = _drafter_text(inner)
            return None if text is None else f"synthetic:{text},rates={'/'.join(map(str, rates))}"
        case _:
            return _drafter_text(speculation)


def _drafter_text(drafter: Drafter) -> str | None:
    named = [field for field in fields(drafter) if field.name not in ("variant", "kind", "extra")]
    values = [(field.name, getattr(drafter, field.name), field.default) for field in named]
    settings = [(name, str(value)) for name, value, usual in values if name == "k" or value != usual]
    if any(character in value for _, value in (*settings, *drafter.extra) for character in ",+ "):
        return None  # the language has no quotes
    return ",".join(
        (method_name(drafter), *(f"{name}={value}" for name, value in (*settings, *drafter.extra)))
    )


def draft_length(speculation: Speculation) -> int:
    """The largest number of tokens one step may draft; 0 without speculation."""
    match speculation:
        case Off() | Equalised() | Attached():
            return 0
        case Combined(parts=parts):
            return max(part.k for part in parts)
        case Synthetic(inner=inner):
            return inner.k
        case _:
            return speculation.k


def draft_limit(speculation: Speculation) -> int | None:
    """No step drafts more than this; None where nothing says so: a server that others started, llama.cpp's n-gram
    cache, which has a length of its own, settings that only the engine understands."""
    drafters = drafters_of(speculation)
    is_known = all(not d.extra and not (isinstance(d, NGram) and d.variant == "cache") for d in drafters)
    return draft_length(speculation) if drafters and is_known else None


def is_lossy(speculation: Speculation) -> bool:
    """True where the method gives up the target's distribution by design."""
    return isinstance(speculation, Synthetic)


def remembers_answers(speculation: Speculation) -> bool:
    """True where drafts may come from answers to earlier requests: vLLM's suffix decoding, and llama.cpp's n-gram
    drafters but the simple one (docs/replay.md)."""
    match speculation:
        case NGram(variant=variant):
            return variant in REMEMBERING_VARIANTS
        case Suffix():
            return True
        case Combined(parts=parts):
            return any(remembers_answers(part) for part in parts)
        case _:
            return False


def drafters_of(speculation: Speculation) -> tuple[Drafter, ...]:
    match speculation:
        case Off() | Equalised() | Attached():
            return ()
        case Combined(parts=parts):
            return parts
        case Synthetic(inner=inner):
            return (inner,)
        case _:
            return (speculation,)


def require_no_extra(drafter: Drafter, *, engine: str) -> None:
    """For engines that have no settings beyond those every engine shares."""
    for key, _ in drafter.extra:
        known = [field.name for field in fields(drafter) if field.name != "extra"]
        raise unknown_name(what=f"setting of {method_name(drafter)} on {engine}", seen=key, allowed=known)


def _require_k(k: int) -> None:
    # llama.cpp aborts the process on n_max < 1 at the first request (b11549), so it never gets that far.
    if k < 1:
        raise UsageError(f"k counts drafted tokens and must be at least 1, saw {k}")
    if k > K_MAX:
        raise UsageError(f"k counts drafted tokens and is at most {K_MAX:,}, saw a larger number")
