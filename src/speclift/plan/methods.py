"""`--method`, `--k` and `--draft` to arms: the small language users type. Pure.

ngram                     ngram:map-k             ngram,n=4
draft,p_min=0.5           ngram+draft             synthetic:draft,rates=0.8/0.6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from speclift.core.arm import Arm, baseline_arm
from speclift.core.errors import UsageError, unknown_name
from speclift.core.speculation import (
    HEAD_KINDS,
    NGRAM_VARIANTS,
    Combined,
    Drafter,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    Synthetic,
)

METHODS = ("off", "draft", "ngram", "suffix", *HEAD_KINDS, "synthetic")
_CLASSES: dict[str, type[Any]] = {"draft": DraftModel, "ngram": NGram, "suffix": Suffix}


def arms_for(*, methods: Sequence[str], ks: Sequence[int], drafts: Sequence[str]) -> tuple[Arm, ...]:
    """The baseline and one arm per method x draft x k; `ks` empty means each method's default."""
    arms = {arm.name: arm for method in methods for arm in _arms_of(method, ks or (None,), drafts)}
    arms.pop(baseline_arm().name, None)
    return (baseline_arm(), *arms.values())


def _arms_of(method: str, ks: Sequence[int | None], drafts: Sequence[str]) -> list[Arm]:
    arms = []
    for draft in drafts if _needs_draft(method) else (None,):
        for k in ks:
            speculation = parse_method(method, k=k, draft=draft)
            label = PurePath(draft).stem if draft is not None and len(drafts) > 1 else None
            arms.append(Arm(name=_name(method, speculation, label), speculation=speculation))
    if not arms:
        raise UsageError(f"--method {method} needs a draft model", hint="add --draft PATH.gguf")
    return arms


def parse_method(text: str, *, k: int | None = None, draft: str | None = None) -> Speculation:
    if "+" in text:
        parts = [parse_method(part, k=k, draft=draft) for part in text.split("+")]
        return Combined(parts=tuple(_drafter(part, text) for part in parts))
    name, _, settings_text = text.partition(",")
    kind, _, subtype = name.strip().partition(":")
    if kind not in METHODS:
        raise unknown_name(what="method", seen=kind, allowed=METHODS)
    settings = _settings(settings_text, text)
    if kind == "off":
        return Off()
    if kind == "synthetic":
        rates = tuple(float(rate) for rate in str(settings.pop("rates", "")).split("/") if rate)
        inner = parse_method(subtype or "ngram", k=len(rates) or k, draft=draft)
        return Synthetic(inner=_drafter(inner, text), rates=rates)
    if k is not None:
        settings.setdefault("k", k)
    if kind == "ngram" and subtype:
        if subtype not in NGRAM_VARIANTS:
            raise unknown_name(what="n-gram variant", seen=subtype, allowed=NGRAM_VARIANTS)
        settings["variant"] = subtype
    elif subtype:
        raise UsageError(f"--method {text}: {kind} has no subtypes, saw {subtype!r}")
    if kind in HEAD_KINDS:
        settings["kind"] = kind
    if draft is not None and (kind == "draft" or kind in HEAD_KINDS):
        settings.setdefault("model", draft)
    return _build(_CLASSES.get(kind, Head), settings, text)


def _build(cls: type[Any], settings: dict[str, Any], text: str) -> Speculation:
    known = {field.name for field in fields(cls)}
    for key in settings:
        if key not in known:
            raise unknown_name(what=f"setting in --method {text}", seen=key, allowed=sorted(known))
    if cls is DraftModel and "model" not in settings:
        raise UsageError(f"--method {text} needs a draft model", hint="add --draft PATH.gguf")
    speculation: Speculation = cls(**settings)
    return speculation


def _settings(text: str, whole: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--method {whole}: expected key=value, saw {pair!r}")
        settings[key.strip()] = _value(value.strip())
    return settings


def _value(text: str) -> int | float | str:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _drafter(speculation: Speculation, text: str) -> Drafter:
    if isinstance(speculation, (Off, Combined, Synthetic)):
        raise UsageError(f"--method {text}: only drafting methods can be combined or forced")
    return speculation


def _needs_draft(method: str) -> bool:
    kinds = [part.partition(",")[0].strip() for part in method.split("+")]
    return any(kind in ("draft", "synthetic:draft") for kind in kinds) and "model=" not in method


def _name(method: str, speculation: Speculation, draft_label: str | None) -> str:
    """Short and unique: ngram-k8, draft-k4, draft-k4-tiny, ngram-k8-n4."""
    if isinstance(speculation, Off):
        return baseline_arm().name
    base = Arm(name="", speculation=speculation)
    settings = [
        pair.replace("=", "").replace("_", "-").replace("/", "-")
        for part in method.split("+")
        for pair in part.split(",")[1:]
        if not pair.strip().startswith(("k=", "rates=", "model="))
    ]
    return "-".join(filter(None, [base.method, f"k{base.k}", *settings, draft_label]))
