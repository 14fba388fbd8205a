"""llama-server's command line for an arm. Pure; names as of build b11549.

The embedded server (llamacpp_server.py) reads the same flags, so what is measured is what gets pasted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import structs

from speclift.core.arm import Arm, ServerSettings
from speclift.core.errors import UsageError
from speclift.core.speculation import (
    Attached,
    Combined,
    Drafter,
    DraftModel,
    Equalised,
    Head,
    NGram,
    Off,
    Suffix,
    Synthetic,
    drafters_of,
    require_no_extra,
)
from speclift.core.user_command import HUB_TOKEN_FLAGS, OwnLine
from speclift.engines.llamacpp.dialect.judgement import (
    DRAFT,
    DRAFT_HUB,
    HUB_FLAGS,
    KV_K_FLAGS,
    KV_V_FLAGS,
    LAYER_FLAGS,
    MODEL_FLAGS,
    is_drafter_flag,
)
from speclift.engines.llamacpp.dialect.tables import LISTENING
from speclift.engines.process import listening

_HEAD_TYPES = {
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
}


def server_flags(settings: ServerSettings, *, port: int) -> tuple[str, ...]:
    """What every arm shares. Context and offload are explicit: llama.cpp's fitting would shrink them silently
    for the arm that also loads a draft (common/fit.cpp)."""
    settings.require_only(("gpu_layers",), engine="llama.cpp")
    if settings.line is not None:
        line = own_line(settings.line, settings)
        address: tuple[str, ...] = ("--host", "127.0.0.1", "--port", str(port))
        if line.is_in_container:
            address = listening(line.start, port=port)
        asked = [flag for flag in ("--metrics", "--slots") if not line.has(flag)]
        return (
            *line.words(without={*LISTENING, *HUB_TOKEN_FLAGS, "--no-slots"}),
            *address,
            *asked,
            *settings.engine_args,
        )
    flags = [
        *("--model", settings.model, "--host", "127.0.0.1", "--port", str(port)),
        *("--ctx-size", str(settings.context_tokens * settings.slots), "--parallel", str(settings.slots)),
        *("--metrics", "--slots", "--cache-ram", "0", "--fit", "off"),
    ]
    for flag, value in (
        ("--threads", settings.threads),
        ("--threads-batch", settings.threads),
        ("--gpu-layers", settings.gpu_layers),
        ("--cache-type-k", settings.kv_type_k),
        ("--cache-type-v", settings.kv_type_v),
    ):
        if value is not None:
            flags += [flag, str(value)]
    return (*flags, *settings.engine_args)


def own_line(line: OwnLine, settings: ServerSettings) -> OwnLine:
    """The user's own line with what differs from it in the settings."""
    if not line.has(*HUB_FLAGS):
        line = _saying(line, MODEL_FLAGS, settings.model)
    ordinary = ServerSettings()
    for field, names in (
        ("gpu_layers", LAYER_FLAGS),
        ("kv_type_k", KV_K_FLAGS),
        ("kv_type_v", KV_V_FLAGS),
    ):
        value = getattr(settings, field)
        if value is not None and value != getattr(ordinary, field):
            line = _saying(line, names, str(value))
    return line


def _saying(line: OwnLine, names: tuple[str, ...], value: str) -> OwnLine:
    return line if line.value(*names) == value else line.saying(names, value)


def speculation_flags(arm: Arm) -> tuple[str, ...]:
    """Always names the type: a draft model without --spec-type is loaded and never used (b11549)."""
    match arm.speculation:
        case Off() | Equalised() | Attached():
            return ()
        case Combined(parts=parts):
            if len({_type_name(part) for part in parts}) != len(parts):
                raise UsageError(f"arm {arm.name} names the same llama.cpp method twice")
            if sum(isinstance(part, (DraftModel, Head)) for part in parts) > 1:
                # Both would read --spec-draft-model and --spec-draft-n-max; the last one given wins silently.
                raise UsageError(f"arm {arm.name} combines two draft models; llama.cpp loads only one")
            types = ",".join(_type_name(part) for part in parts)
            flags = [flag for part in parts for flag in _drafter_flags(part)]
            return ("--spec-type", types, *flags)
        case Synthetic(inner=inner, rates=rates):
            listed = ",".join(f"{rate:.6g}" for rate in rates)
            return ("--spec-type", _type_name(inner), *_drafter_flags(inner), "--spec-synth-rates", listed)
        case _:
            return ("--spec-type", _type_name(arm.speculation), *_drafter_flags(arm.speculation))


def never_drafts(arm: Arm) -> str | None:
    """Why a part of this arm would never draft, although the server starts; None where all may."""
    for part in drafters_of(arm.speculation):
        if isinstance(part, NGram) and part.variant == "simple" and part.k < part.n:
            # common/ngram-map.cpp: what it would copy is cut to k and dropped where that is under n (b11549).
            return (
                f"llama.cpp's ngram-simple drafts nothing if k is below n: k={part.k}, n={part.n}; "
                f"n={part.n} works from k={part.n} on, k={part.k} with n up to {part.k}"
            )
    return None


def _type_name(drafter: Drafter) -> str:
    match drafter:
        case DraftModel():
            return "draft-simple"
        case NGram(variant="gpu"):
            raise UsageError(
                "only vLLM has ngram:gpu", hint="llama.cpp has: simple, map-k, map-k4v, mod, cache"
            )
        case NGram(variant=variant):
            return f"ngram-{variant}"
        case Head(kind=kind) if kind in _HEAD_TYPES:
            return _HEAD_TYPES[kind]
        case Head(kind=kind):
            raise UsageError(f"llama.cpp has no {kind} heads", hint=f"it has: {', '.join(_HEAD_TYPES)}")
        case Suffix():
            raise UsageError("llama.cpp has no suffix decoding", hint="use --method ngram, or --engine vllm")


def _drafter_flags(drafter: Drafter) -> tuple[str, ...]:
    """With the settings that only llama.cpp has, under its own names, over those of ours."""
    known, extra = _known_flags(drafter), _extra_flags(drafter)
    given = {flag[0] for flag in extra}
    if DRAFT_HUB in given:
        given.add(DRAFT)
    pairs = zip(known[::2], known[1::2], strict=True)
    kept = (word for name, value in pairs if name not in given for word in (name, value))
    return (*kept, *(word for flag in extra for word in flag))


def _extra_flags(drafter: Drafter) -> list[tuple[str, ...]]:
    foreign = tuple(pair for pair in drafter.extra if not is_drafter_flag(f"--{pair[0]}"))
    require_no_extra(structs.replace(drafter, extra=foreign), engine="llama.cpp")
    found: list[tuple[str, ...]] = []
    for key, text in drafter.extra:
        value = json.loads(text)
        found.append((f"--{key}",) if value is True else (f"--{key}", str(value)))
    return found


def _known_flags(drafter: Drafter) -> tuple[str, ...]:
    match drafter:
        case DraftModel():
            return _draft_model_flags(drafter)
        case NGram(n_min=int()):
            raise UsageError("n_min is a vLLM setting; llama.cpp always looks up n tokens")
        case NGram(variant="mod", k=k, n=n):
            # n-min above n-max would drop every draft.
            return (
                *("--spec-ngram-mod-n-match", str(n), "--spec-ngram-mod-n-max", str(k)),
                *("--spec-ngram-mod-n-min", str(min(k, n))),
            )
        case NGram(variant="cache"):
            return ()
        case NGram(variant=variant, k=k, n=n, min_hits=min_hits):
            prefix = f"--spec-ngram-{variant}"
            return (
                *(f"{prefix}-size-n", str(n), f"{prefix}-size-m", str(k)),
                *(f"{prefix}-min-hits", str(min_hits)),
            )
        case Head(model=model, k=k):
            source = ("--spec-draft-model", model) if model is not None else ()
            return (*source, "--spec-draft-n-max", str(k))
        case Suffix():
            return ()


def _draft_model_flags(draft: DraftModel) -> tuple[str, ...]:
    flags = [
        *("--spec-draft-model", draft.model, "--spec-draft-n-max", str(draft.k)),
        *("--spec-draft-n-min", str(draft.k_min), "--spec-draft-p-min", f"{draft.p_min:g}"),
    ]
    if draft.sampling != "greedy":
        flags += ["--spec-draft-sampling", draft.sampling]
    for flag, value in (
        ("--spec-draft-ngl", draft.gpu_layers),
        ("--spec-draft-device", draft.device),
        ("--spec-draft-type-k", draft.kv_type_k),
        ("--spec-draft-type-v", draft.kv_type_v),
    ):
        if value is not None:
            flags += [flag, str(value)]
    return tuple(flags)


def flag_pairs(words: Sequence[str]) -> dict[str, str]:
    """`--a 1 --b` by name without dashes; "on" for a switch."""
    pairs: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            pairs[name] = "on"
        else:
            pairs[name] = word
    return pairs
