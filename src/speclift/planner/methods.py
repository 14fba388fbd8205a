"""`--method`, `--k` and `--draft` to arms: the small language users type. Pure.

ngram                     ngram:map-k             ngram,n=4
draft,p_min=0.5           ngram+draft             synthetic:draft,rates=0.8/0.6
draft,quantization=fp8    ngram,num_speculative_tokens_per_batch_size=[[1,8,5],[9,64,0]]

A setting that speclift has no word for is kept under the engine's own name; its adapter judges it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import PurePath
from typing import get_args, get_type_hints

from speclift.core.arm import Arm, baseline_arm
from speclift.core.errors import UsageError, unknown_name
from speclift.core.json_reading import built
from speclift.core.speculation import (
    HEAD_KINDS,
    NGRAM_VARIANTS,
    Attached,
    Combined,
    Drafter,
    DraftModel,
    Equalised,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    Synthetic,
    drafters_of,
)

SETTING_LABEL_MAX = 40
METHODS = ("off", "draft", "ngram", "suffix", *HEAD_KINDS, "synthetic")
_CLASSES: dict[str, Callable[..., Drafter]] = {"draft": DraftModel, "ngram": NGram, "suffix": Suffix}


def arms_for(*, methods: Sequence[str], ks: Sequence[int], drafts: Sequence[str]) -> tuple[Arm, ...]:
    """The baseline and one arm per method x draft x k; `ks` empty means each method's default."""
    arms = [baseline_arm()]
    for method in methods:
        for arm in _arms_of(method, ks or (None,), drafts):
            if all(arm.speculation != other.speculation for other in arms):
                arms.append(replace(arm, name=_free_name(arm.name, {other.name for other in arms})))
    return tuple(arms)


def _free_name(name: str, taken: set[str]) -> str:
    """Two drafts may share a file name, two synthetic arms a k: neither may push the other out."""
    numbered = (f"{name}-{number}" for number in count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _arms_of(method: str, ks: Sequence[int | None], drafts: Sequence[str]) -> list[Arm]:
    arms = []
    kinds = {part.partition(",")[0].strip() for part in method.split("+")}
    names_model = "model=" in method
    needs_draft = bool(kinds & {"draft", "synthetic:draft"}) and not names_model
    # A head may stand in the target itself (MTP) or come as a model of its own.
    may_take_draft = bool(kinds & set(HEAD_KINDS)) and not names_model
    for draft in drafts if needs_draft or (may_take_draft and drafts) else (None,):
        for k in ks:
            speculation = parse_method(method, k=k, draft=draft)
            label = _label(draft) if draft is not None and len(drafts) > 1 else None
            arms.append(Arm(name=_name(method, speculation, label), speculation=speculation))
    if not arms:
        raise UsageError(f"--method {method} needs a draft model", hint="add --draft PATH")
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
        if subtype or settings:
            raise UsageError(f"--method {text}: off has no subtypes and no settings")
        return Off()
    if kind == "synthetic":
        return _synthetic(subtype or "ngram", settings, text, k=k, draft=draft)
    if subtype:
        _require_variant(kind, subtype, text)
        settings["variant"] = subtype
    if kind in HEAD_KINDS:
        settings["kind"] = kind
    if k is not None:
        settings.setdefault("k", str(k))
    if draft is not None and kind in ("draft", *HEAD_KINDS):
        settings.setdefault("model", draft)
    return _build(_CLASSES.get(kind, Head), settings, text)


def _synthetic(
    drafter: str, settings: dict[str, str], text: str, *, k: int | None, draft: str | None
) -> Synthetic:
    """Any drafting method with its acceptance forced: as many drafted tokens as there are rates."""
    rates = _rates(settings.pop("rates", ""), text)
    pairs = [f"{key}={value}" for key, value in settings.items()]
    inner = parse_method(",".join([drafter, *pairs]), k=len(rates) or k, draft=draft)
    return Synthetic(inner=_drafter(inner, text), rates=rates)


def _require_variant(kind: str, subtype: str, text: str) -> None:
    if kind != "ngram":
        raise UsageError(f"--method {text}: {kind} has no subtypes, saw {subtype!r}")
    if subtype not in NGRAM_VARIANTS:
        raise unknown_name(what="n-gram variant", seen=subtype, allowed=NGRAM_VARIANTS)


def with_fitting_n(method: str, *, ks: Sequence[int]) -> str:
    """The method with the longest look-up that can draft at each of its k, where it names none itself.

    One n for all k, because a search tells the other k from the run of one. Without any k the default pair stands.
    """
    return "+".join(_part_with_fitting_n(part, ks) for part in method.split("+"))


def _part_with_fitting_n(part: str, ks: Sequence[int]) -> str:
    name, _, settings_text = part.partition(",")
    if name.strip() not in ("ngram", "ngram:simple", "synthetic", "synthetic:ngram"):
        return part
    settings = _settings(settings_text, part)
    drafted = _drafted_lengths(settings, ks, part)
    if "n" in settings or not drafted or min(drafted) >= NGram().n:
        return part
    return f"{part},n={max(1, min(drafted))}"


def _drafted_lengths(settings: dict[str, str], ks: Sequence[int], part: str) -> Sequence[int]:
    if "rates" in settings:
        return (len(_rates(settings["rates"], part)),)
    return (int(_value(settings["k"], int, f"--method {part}: k")),) if "k" in settings else ks


def _build(kind: Callable[..., Drafter], settings: dict[str, str], text: str) -> Speculation:
    hints = get_type_hints(kind)
    foreign = tuple((key, _json_text(settings.pop(key))) for key in sorted(settings.keys() - hints.keys()))
    if kind is DraftModel and "model" not in settings:
        raise UsageError(f"--method {text} needs a draft model", hint="add --draft PATH")
    values = {key: _value(value, hints[key], f"--method {text}: {key}") for key, value in settings.items()}
    return built(kind, {**values, "extra": foreign})


def _json_text(text: str) -> str:
    try:
        return json.dumps(json.loads(text))
    except ValueError:
        return json.dumps(text)


def _settings(text: str, whole: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in _split(text))):
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--method {whole}: expected key=value, saw {pair!r}")
        settings[key.strip()] = value.strip()
    return settings


def _split(text: str) -> list[str]:
    """At commas, but not inside brackets: a value may be a JSON list."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _value(text: str, hint: object, where: str) -> int | float | str:
    wanted = get_args(hint) or (hint,)
    for kind, words in ((int, "a whole number"), (float, "a number")):
        if kind in wanted:
            try:
                return kind(text)
            except ValueError:
                raise UsageError(f"{where} takes {words}, saw {text!r}") from None
    return text


def _rates(text: str, whole: str) -> tuple[float, ...]:
    return tuple(float(_value(rate, float, f"--method {whole}: rates")) for rate in text.split("/") if rate)


def _drafter(speculation: Speculation, text: str) -> Drafter:
    if isinstance(speculation, (Off, Equalised, Combined, Synthetic, Attached)):
        raise UsageError(f"--method {text}: only drafting methods can be combined or forced")
    return speculation


def _name(method: str, speculation: Speculation, draft_label: str | None) -> str:
    """Short and unique: ngram-k8, draft-k4, draft-k4-tiny, ngram-k8-n4, ngram+draft-k15+3."""
    if isinstance(speculation, Off):
        return baseline_arm().name
    base = Arm(name="", speculation=speculation)
    pairs = [pair.partition("=") for part in method.split("+") for pair in _split(part)[1:]]
    settings = [
        re.sub(r"[^A-Za-z0-9.]+", "-", f"{key.strip()}{value.strip()}").strip("-")[:SETTING_LABEL_MAX]
        for key, _, value in pairs
        if key.strip() not in ("k", "rates", "model")
    ]
    ks = dict.fromkeys(part.k for part in drafters_of(speculation)) or {base.k: None}
    return "-".join(filter(None, [base.method, f"k{'+'.join(map(str, ks))}", *settings, draft_label]))


def _label(draft: str) -> str:
    """File names need not be UTF-8; names of arms are stored and shown."""
    return PurePath(draft).stem.encode("utf-8", "backslashreplace").decode("utf-8")
