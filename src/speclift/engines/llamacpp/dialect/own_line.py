"""A llama-server command of today taken apart: its drafters, and what it says of the server. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import structs

from speclift.core.errors import UsageError
from speclift.core.speculation import (
    Combined,
    Drafter,
    DraftModel,
    Extra,
    Head,
    NGram,
    Off,
    Speculation,
)
from speclift.engines.llamacpp.dialect.judgement import read_llamacpp, today
from speclift.engines.llamacpp.dialect.tables import FLAGS
from speclift.linter.pasted import Pasted, TakenApart
from speclift.linter.row_rules import shown

Number = TypeVar("Number", int, float)

MODEL_FLAGS = ("-m", "--model")
HUB_FLAGS = ("-hf", "-hfr", "--hf-repo")
DRAFT, DRAFT_HUB = "--spec-draft-model", "--spec-draft-hf"
HEAD_KINDS = {
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}
# Defaults of b11549 (engine facts, section 2).
K_DRAFT, K_NGRAM, N_NGRAM, K_MOD, N_MOD, N_MIN_MOD = 3, 48, 12, 64, 24, 48

CONTEXT_FLAGS, SLOT_FLAGS, THREAD_FLAGS = ("-c", "--ctx-size"), ("-np", "--parallel"), ("-t", "--threads")
LAYER_FLAGS = ("-ngl", "--gpu-layers", "--n-gpu-layers")
KV_K_FLAGS, KV_V_FLAGS = ("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v")


def is_speculative_flag(name: str) -> bool:
    return today(name).startswith(("--spec-", "--no-spec-", "--lookup-cache-"))


def is_drafter_flag(name: str) -> bool:
    """Whether it is a setting of a drafter that llama.cpp has, under today's name."""
    return (
        name in FLAGS and is_speculative_flag(name) and not name.startswith(("--spec-synth", "--spec-type"))
    )


def take_apart_llamacpp(pasted: Pasted) -> TakenApart:
    reading = read_llamacpp(pasted)
    given = {
        today(setting.name): setting.value for setting in pasted.settings if is_speculative_flag(setting.name)
    }
    speculation = _speculation(reading.types, given)
    file, hub = _text(pasted.last(*MODEL_FLAGS)), _text(pasted.last(*HUB_FLAGS))
    return TakenApart(
        model=file or hub,
        is_on_hub=file is None,
        speculation=speculation,
        settings=_settings(pasted),
    )


def _speculation(types: tuple[str, ...], given: Mapping[str, object]) -> Speculation:
    if "--spec-synth-rates" in given or "--spec-synth-len" in given:
        raise UsageError("this line forces acceptance, so its text is garbage", hint="remove --spec-synth-…")
    left = dict(given)
    left.pop("--spec-type", None)
    left.pop("--spec-default", None)
    parts = tuple(_drafter(name, left) for name in types)
    if not parts:
        return Off()
    if left:
        # Settings of the drafters that have no field of their own travel with the first that could read them.
        parts = (_with_extra(parts[0], left), *parts[1:])
    return parts[0] if len(parts) == 1 else Combined(parts=parts)


def _drafter(name: str, left: dict[str, object]) -> Drafter:
    """Takes the settings of one type off what is left."""
    if name == "draft-simple":
        return _draft_model(left)
    if name in HEAD_KINDS:
        model = left.pop(DRAFT, None)
        return Head(
            kind=HEAD_KINDS[name],
            k=_number(left, "--spec-draft-n-max", int, K_DRAFT),
            model=None if model is None else shown(model),
        )
    if name == "ngram-cache":
        return NGram(variant="cache")
    if name == "ngram-mod":
        k, n = (
            _number(left, "--spec-ngram-mod-n-max", int, K_MOD),
            _number(left, "--spec-ngram-mod-n-match", int, N_MOD),
        )
        least = _number(left, "--spec-ngram-mod-n-min", int, N_MIN_MOD)
        if least != min(k, n):  # what the adapter would say by itself
            left["--spec-ngram-mod-n-min"] = str(least)
        return NGram(variant="mod", k=k, n=n)
    variant = name.removeprefix("ngram-")
    prefix = f"--spec-ngram-{variant}"
    return NGram(
        variant=variant,
        k=_number(left, f"{prefix}-size-m", int, K_NGRAM),
        n=_number(left, f"{prefix}-size-n", int, N_NGRAM),
        min_hits=_number(left, f"{prefix}-min-hits", int, 1),
    )


def _draft_model(left: dict[str, object]) -> DraftModel:
    model = left.pop(DRAFT, None)
    if model is None and DRAFT_HUB not in left:
        raise UsageError("this line drafts with a model and names none", hint="add -md DRAFT.gguf")
    sampling = left.pop("--spec-draft-sampling", "greedy")
    layers = left.get("--spec-draft-ngl")
    has_layers = layers is not None and shown(layers).lstrip("-").isdigit()
    return DraftModel(
        model=shown(left[DRAFT_HUB] if model is None else model),
        k=_number(left, "--spec-draft-n-max", int, K_DRAFT),
        k_min=_number(left, "--spec-draft-n-min", int, 0),
        p_min=_number(left, "--spec-draft-p-min", float, 0.0),
        sampling="probabilistic" if sampling == "probabilistic" else "greedy",
        gpu_layers=int(shown(left.pop("--spec-draft-ngl"))) if has_layers else None,
        device=_optional(left, "--spec-draft-device"),
        kv_type_k=_optional(left, "--spec-draft-type-k"),
        kv_type_v=_optional(left, "--spec-draft-type-v"),
    )


def _with_extra(drafter: Drafter, left: Mapping[str, object]) -> Drafter:
    extra: Extra = tuple(
        (name.removeprefix("--"), json.dumps(True if value is None else shown(value)))
        for name, value in left.items()
    )
    return structs.replace(drafter, extra=extra)


def _settings(pasted: Pasted) -> dict[str, object]:
    found: dict[str, object] = {}
    slots = _whole(pasted.last(*SLOT_FLAGS))
    context = _whole(pasted.last(*CONTEXT_FLAGS))
    if context:
        found["context_tokens"] = context // max(1, slots or 1)
    for field, flags in (("threads", THREAD_FLAGS), ("gpu_layers", LAYER_FLAGS)):
        number = _whole(pasted.last(*flags))
        if number is not None and number > 0:
            found[field] = number
    for field, flags in (("kv_type_k", KV_K_FLAGS), ("kv_type_v", KV_V_FLAGS)):
        text = _text(pasted.last(*flags))
        if text is not None:
            found[field] = text
    return found


def _number(left: dict[str, object], name: str, kind: Callable[[str], Number], otherwise: Number) -> Number:
    value = left.pop(name, None)
    try:
        return otherwise if value is None else kind(shown(value))
    except ValueError:
        raise UsageError(f"{name} takes a number, saw {shown(value)!r}") from None


def _optional(left: dict[str, object], name: str) -> str | None:
    value = left.pop(name, None)
    return None if value is None else shown(value)


def _whole(value: object) -> int | None:
    text = "" if value is None else shown(value)
    return int(text) if text.isdigit() else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
