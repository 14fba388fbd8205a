"""What a server that somebody else started says about itself: which engine it is, whether it speculates, how much
KV cache it has. What it does not say is None, never guessed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from speclift.core.address import joined, shown, without_secrets
from speclift.core.engine_totals import DRAFTED, engine_total
from speclift.core.errors import EngineError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import as_list, as_object, as_objects, as_text, as_whole
from speclift.core.records import Counters
from speclift.core.units import Seconds, Tokens
from speclift.engines.metrics import labels_of, parse_counters
from speclift.engines.vllm.output import kv_tokens
from speclift.http.client import fetch

PROBE_LIMIT_S = 10.0
# No server has room for more tokens than that, and no version or setting has a longer name.
TOKENS_MAX = 1 << 40
WORD_CHARACTERS = 100
UNKNOWN = "unknown"
VLLM, LLAMACPP, SGLANG = "vllm", "llama.cpp", "sglang"
# Where each engine tells its version: path, engine, field. SGLang renamed its own (docs.sglang.io, native API).
VERSION_FIELDS = (
    ("/version", VLLM, "version"),
    ("/props", LLAMACPP, "build_info"),
    ("/server_info", SGLANG, "version"),
    ("/get_server_info", SGLANG, "version"),
)
# Settings that must be the same on both servers for a fair comparison: our name, and where it stands in the labels
# of vLLM's cache_config_info (0.32) or among SGLang's server arguments.
VLLM_LABELS = {"kv_cache_dtype": "cache_dtype", "enable_prefix_caching": "enable_prefix_caching"}
SGLANG_ARGUMENTS = ("context_length", "kv_cache_dtype", "disable_radix_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What a server says it is."""

    kind: str
    version: str
    # The names it serves, each with the longest sequence where it says so (vLLM does).
    models: dict[str, Tokens | None]

    def __str__(self) -> str:
        return UNKNOWN if self.kind == UNKNOWN else f"{self.kind} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What it runs with."""

    speculates: bool | None = None
    kv_tokens: Tokens | None = None
    settings: dict[str, str] = field(default_factory=dict)


def detect(base: str, key: str | None, *, limit_s: Seconds = PROBE_LIMIT_S) -> Detected:
    """EngineError where nobody answers or what answers is no OpenAI-compatible server."""
    url = joined(base, "/v1/models")
    text = fetch(url, api_key=key, limit_s=limit_s)
    listed = _listed_models(text)
    if listed is None:
        raise EngineError(
            f"{shown(url)} does not list models: {without_secrets(text[:80])!r}",
            hint="is it an OpenAI-compatible server? give its address without /v1",
        )
    models = {name: _tokens(entry.get("max_model_len")) for name, entry in listed}
    owners = {owner for _, entry in listed if (owner := as_text(entry.get("owned_by"))) is not None}
    # The pages that a server need not have share one limit: those that hang must not add up.
    until_s = time.monotonic() + limit_s
    for path, kind, name in VERSION_FIELDS:
        # Other programs have a /version too; vLLM signs its models.
        if kind == VLLM and owners - {VLLM}:
            continue
        left_s = until_s - time.monotonic()
        page = _json_or_none(joined(base, path), key, left_s) if left_s > 0 else None
        version = as_text(as_object(page).get(name))
        if version:
            return Detected(kind=kind, version=version[:WORD_CHARACTERS], models=models)
    return Detected(kind=UNKNOWN, version=UNKNOWN, models=models)


def version_at(base: str, key: str | None, *, limit_s: Seconds) -> str | None:
    """What a server says its version is, whichever engine it is; None where it does not within the limit."""
    until_s = time.monotonic() + limit_s
    for path, _kind, name in VERSION_FIELDS:
        left_s = until_s - time.monotonic()
        page = _json_or_none(joined(base, path), key, left_s) if left_s > 0 else None
        version = as_text(as_object(page).get(name))
        if version:
            return version[:WORD_CHARACTERS]
    return None


def facts(
    found: Detected,
    *,
    base: str,
    metrics_url: str,
    model: str,
    key: str | None,
    limit_s: Seconds = PROBE_LIMIT_S,
) -> Facts:
    match found.kind:
        case "vllm":
            try:
                page = parse_counters(fetch(metrics_url, api_key=key, limit_s=limit_s))
            except EngineError:  # behind a gateway that shows only the API
                page = Counters()
            return vllm_facts(page, longest=found.models.get(model))
        case "llama.cpp":
            return llamacpp_facts(_json_or_none(joined(base, "/slots"), key, limit_s))
        case "sglang":
            paths = (path for path, kind, _ in VERSION_FIELDS if kind == SGLANG)
            told = (_json_or_none(joined(base, path), key, limit_s) for path in paths)
            return sglang_facts(next(filter(None, map(as_object, told)), {}))
        case _:
            return Facts()


def vllm_facts(metrics: Counters, *, longest: Tokens | None) -> Facts:
    settings = {} if longest is None else {"max_seq_len": str(longest)}
    for name in metrics.values:
        if name.startswith("vllm:cache_config_info{"):
            labels = labels_of(name)
            settings |= {
                own: labels[theirs][:WORD_CHARACTERS]
                for own, theirs in VLLM_LABELS.items()
                if theirs in labels
            }
    is_vllms = any(name.startswith("vllm:") for name in metrics.values)
    return Facts(
        # The draft counters are made with the speculative configuration and absent without one (0.32).
        speculates=engine_total(metrics, DRAFTED) is not None if is_vllms else None,
        kv_tokens=kv_tokens(metrics),
        settings=settings,
    )


def llamacpp_facts(page: object) -> Facts:
    """From /slots, which a server may have switched off."""
    slots = as_objects(page)
    if not slots or len(slots) < len(as_list(page)):
        return Facts()
    flags = [slot.get("speculative") for slot in slots]
    sizes = [_tokens(slot.get("n_ctx")) for slot in slots]
    settings = {"slots": str(len(slots))} | ({"slot_tokens": str(sizes[0])} if sizes[0] else {})
    return Facts(
        speculates=any(flags) if all(isinstance(flag, bool) for flag in flags) else None,
        # Several slots share one cache or have one each, and nothing tells which (b11549).
        kv_tokens=sizes[0] if len(sizes) == 1 else None,
        settings=settings,
    )


def sglang_facts(info: Mapping[str, object]) -> Facts:
    return Facts(
        speculates=bool(info["speculative_algorithm"]) if "speculative_algorithm" in info else None,
        kv_tokens=_tokens(info.get("max_total_num_tokens")),
        settings={
            name: str(info[name])[:WORD_CHARACTERS]
            for name in SGLANG_ARGUMENTS
            if isinstance(info.get(name), (str, bool)) or _tokens(info.get(name)) is not None
        },
    )


def _listed_models(text: str) -> list[tuple[str, Mapping[str, object]]] | None:
    """Each with its name; None where this is no list of models with names."""
    try:
        data = as_object(parse_json(text)).get("data")
    except ValueError:
        return None
    named = [(name, entry) for entry in as_objects(data) if (name := as_text(entry.get("id")))]
    return named if isinstance(data, list) and len(named) == len(data) else None


def _tokens(value: object) -> Tokens | None:
    count = as_whole(value)
    return count if count is not None and 0 < count <= TOKENS_MAX else None


def _json_or_none(url: str, key: str | None, limit_s: Seconds) -> object:
    """None where the server has no such endpoint: that is an answer, not a fault."""
    try:
        return parse_json(fetch(url, api_key=key, limit_s=limit_s))
    except (EngineError, ValueError):
        return None
