"""What a llama.cpp command means: read, judged by a build, and taken apart into what speclift measures. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
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
from speclift.engines.llamacpp.dialect.tables import (
    CLI,
    DEFAULTS,
    FLAGS,
    KEPT_ALIASES,
    NO_IMPLIED_DRAFT,
    PROGRAMS,
    RENAMES,
    SELF_SPECULATION,
    TYPES,
    TYPES_SINCE,
    VARIABLES,
)
from speclift.linter.pasted import Pasted, Setting, TakenApart
from speclift.linter.row_rules import finding, judge_flag, shown
from speclift.linter.rows import Life, LintFinding, Release, Status, dotted, nearest

K = "--spec-draft-n-max"
K_NAMES = (K, "--draft-max", "--draft", "--draft-n")
K_VARIABLES = {"LLAMA_ARG_DRAFT_MAX", "LLAMA_ARG_SPEC_DRAFT_N_MAX"}
TYPE_VARIABLE = "LLAMA_ARG_SPEC_TYPE"
DRAFT_NAMES = ("--spec-draft-model", "--spec-draft-hf")
WITH_DRAFT_FILE = ("draft-simple", "draft-eagle3", "draft-dflash")
# Sizes that belong to a type: without the type they are read by nothing.
SIZES = {
    "--spec-ngram-simple-": "ngram-simple",
    "--spec-ngram-map-k4v-": "ngram-map-k4v",
    "--spec-ngram-map-k-": "ngram-map-k",
    "--spec-ngram-mod-": "ngram-mod",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaReading:
    """What a command says about speculation, whichever flags and variables it was spread over."""

    pasted: Pasted
    program: str
    asked: tuple[
        tuple[Setting, tuple[str, ...]], ...
    ]  # every --spec-type with its types; a repeated one adds
    types: tuple[str, ...]  # of flags and variables
    draft: Setting | None
    has_k: bool

    @property
    def drafting(self) -> tuple[str, ...]:
        return tuple(name for name in self.types if name.startswith("draft-"))


def read_llamacpp(pasted: Pasted) -> LlamaReading:
    named = pasted.program[0] if pasted.program else "llama-server"
    variables = dict(pasted.environment)
    asked = [
        (setting, tuple(part.strip() for part in shown(setting.value).split(",")))
        for setting in pasted.settings
        if setting.name == "--spec-type"
    ]
    listed = [name for _, types in asked for name in types] + variables.get(TYPE_VARIABLE, "").split(",")
    names = {setting.name for setting in pasted.settings}
    if "--spec-default" in names:
        listed.append("ngram-mod")
    return LlamaReading(
        pasted=pasted,
        program=PurePosixPath(named).name.removesuffix(".exe"),
        asked=tuple(asked),
        types=tuple(name for name in dict.fromkeys(listed) if name and name != "none"),
        draft=next((setting for setting in pasted.settings if today(setting.name) in DRAFT_NAMES), None),
        has_k=not K_VARIABLES.isdisjoint(variables) or not names.isdisjoint(K_NAMES),
    )


def today(name: str) -> str:
    """A flag's newest name."""
    row = FLAGS.find(name)
    if row is None:
        return name
    return row.renamed_to or KEPT_ALIASES.get(row.name, row.name)


def owner_of(name: str) -> str | None:
    """The type that a size belongs to."""
    return next((owner for prefix, owner in SIZES.items() if name.startswith(prefix)), None)


def length_flag(types: tuple[str, ...]) -> str | None:
    """What limits the drafts of the first of these types, where k does not: they all look n-grams up."""
    prefix = next((prefix for prefix, owner in SIZES.items() if owner == types[0]), None)
    return None if prefix is None else f"{prefix}{'n-max' if types[0] == 'ngram-mod' else 'size-m'}"


def are_ngrams(types: tuple[str, ...]) -> bool:
    return bool(types) and all(name.startswith("ngram-") for name in types)


def _on_flags(reading: LlamaReading, release: Release) -> Iterator[LintFinding]:
    for setting in reading.pasted.settings:
        yield judge_flag(setting, FLAGS.find(setting.name), FLAGS, release)


def _on_program(reading: LlamaReading, release: Release) -> Iterator[LintFinding]:
    row = PROGRAMS.find(reading.program)
    if row is not None and row.gone is not None and row.life(release) is Life.GONE:
        yield LintFinding(
            flag=row.name,
            status=Status.RENAMED if row.renamed_to else Status.REMOVED,
            message=f"{row.note} ({dotted(row.gone)})",
            replacement=row.renamed_to or row.replacement,
            changed_in=dotted(row.gone),
            source=row.source,
        )


def _on_foreign_flags(reading: LlamaReading, _release: Release) -> Iterator[LintFinding]:
    if reading.program not in ("llama-server", "server"):
        return
    for setting in reading.pasted.settings:
        row = FLAGS.find(setting.name)
        if row is not None and row.program == CLI:
            said = "llama-cli has this flag, llama-server rejects it"
            yield finding(setting, Status.CONFLICT, said, source=row.source)


def _on_equals_signs(reading: LlamaReading, _release: Release) -> Iterator[LintFinding]:
    for setting in reading.pasted.settings:
        if setting.is_one_word:
            said = "llama.cpp takes no equals sign: it looks for a flag with this whole name"
            instead = f"{setting.spelled} {shown(setting.value)}"
            yield finding(
                setting, Status.CONFLICT, said, replacement=instead, source="llama.cpp common/arg.cpp"
            )


def _on_types(reading: LlamaReading, release: Release) -> Iterator[LintFinding]:
    for setting, names in reading.asked:
        if setting.value is None or release < SELF_SPECULATION:
            continue
        if len(names) > 1 and release < TYPES_SINCE:
            said = f"several types need {dotted(TYPES_SINCE)} or newer"
            yield finding(setting, Status.CONFLICT, said, changed_in=TYPES_SINCE, source="llama.cpp PR 22964")
        for name in names:
            yield from _on_type(setting, name, release)


def _on_type(setting: Setting, name: str, release: Release) -> Iterator[LintFinding]:
    row = TYPES.find(name)
    if row is None:
        near = nearest(name, TYPES.rows) or ("draft-simple" if name == "draft" else None)
        said = f"no type {name!r}" + (f"; did you mean {near}?" if near else "")
        known = ", ".join(TYPES.names_at(release))
        yield finding(
            setting, Status.UNKNOWN, f"{said} ({known})", replacement=near and f"--spec-type {near}"
        )
    elif not row.holds(release):
        said = f"type {name} needs {dotted(row.since)} or newer"
        yield finding(setting, Status.UNKNOWN, said, changed_in=row.since)
    elif name == "ngram-mod":
        said = "all slots and requests share one n-gram pool: acceptance depends on earlier requests"
        yield finding(setting, Status.RISKY, said, source=row.source)


def _on_draft(reading: LlamaReading, release: Release) -> Iterator[LintFinding]:
    draft, types, drafting = reading.draft, reading.types, reading.drafting
    if draft is not None and not drafting and release >= NO_IMPLIED_DRAFT:
        said = (
            "the draft model is loaded but never used: --spec-type is missing, and it is required since"
            f" {dotted(NO_IMPLIED_DRAFT)} (MTP, DFlash and DSpark files contain their type)"
            if not types
            else f"the draft model is never used: --spec-type {','.join(types)} drafts without one"
        )
        yield finding(
            draft,
            Status.DEAD,
            said,
            replacement=f"{draft.spelled} {shown(draft.value)} --spec-type {','.join((*types, 'draft-simple'))}",
            changed_in=NO_IMPLIED_DRAFT,
            source="llama.cpp PR 23988",
        )
    if draft is None and not set(drafting).isdisjoint(WITH_DRAFT_FILE):
        by_variable = Setting(name=TYPE_VARIABLE, spelled=TYPE_VARIABLE)
        asked = reading.asked[0][0] if reading.asked else by_variable
        said = f"{drafting[0]} has no draft model: the server starts without speculation and reports it only in its log"
        yield finding(
            asked,
            Status.CONFLICT,
            said,
            replacement="--spec-draft-model DRAFT.gguf",
            source="llama.cpp common/speculative.cpp",
        )


def _on_k(reading: LlamaReading, release: Release) -> Iterator[LintFinding]:
    is_drafting = bool(reading.drafting) or release < NO_IMPLIED_DRAFT
    if reading.draft is None or not is_drafting or reading.has_k or release < DEFAULTS:
        return
    yield LintFinding(
        flag=K,
        status=Status.RISKY,
        message=f"k is not given: the default is 3 draft tokens since {dotted(DEFAULTS)}, before it was 16",
        replacement=f"{K} 5",
        changed_in=dotted(DEFAULTS),
        source="llama.cpp PR 23269",
    )


def _on_sizes(reading: LlamaReading, release: Release) -> Iterator[LintFinding]:
    if release < RENAMES:
        return
    for setting in reading.pasted.settings:
        owner, value = owner_of(setting.name), shown(setting.value)
        if owner is not None and owner not in reading.types:
            said = f"only --spec-type {owner} reads it, and that is not set"
            yield finding(setting, Status.DEAD, said, replacement=f"--spec-type {owner}")
        elif setting.name == K and are_ngrams(reading.types):
            said = "does not limit n-gram drafts: use size-m, or n-max for ngram-mod"
            flag = length_flag(reading.types)
            yield finding(setting, Status.DEAD, said, replacement=flag and f"{flag} {value}")
        elif setting.name == "--spec-ngram-mod-n-match" and value.isdigit() and int(value) < 16:
            yield finding(setting, Status.RISKY, "below 16 llama.cpp itself warns of poor drafts")


def _on_synthetic(reading: LlamaReading, _release: Release) -> Iterator[LintFinding]:
    given = [setting for setting in reading.pasted.settings if setting.name.startswith("--spec-synth-")]
    if len({setting.name for setting in given}) > 1:
        yield finding(
            given[-1], Status.CONFLICT, "--spec-synth-len and --spec-synth-rates exclude each other"
        )
    if given and not reading.types:
        yield finding(given[0], Status.CONFLICT, "it has no effect without speculation")


def _on_environment(reading: LlamaReading, release: Release) -> Iterator[LintFinding]:
    for name, _ in reading.pasted.environment:
        row = VARIABLES.find(name)
        if row is not None and row.gone is not None and row.life(release) is Life.GONE:
            yield LintFinding(
                flag=name,
                status=Status.RENAMED,
                message=f"stops the server since {dotted(row.gone)}: its flag was removed",
                replacement=row.renamed_to,
                changed_in=dotted(row.gone),
                source=row.source,
            )


RULES = (
    *(_on_program, _on_flags, _on_foreign_flags, _on_equals_signs, _on_types),
    *(_on_draft, _on_k, _on_sizes, _on_synthetic, _on_environment),
)


# A command of today taken apart: its drafters, and what it says of the server


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
