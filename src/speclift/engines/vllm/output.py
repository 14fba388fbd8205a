"""What vLLM says about itself, in its log and its metrics: why it did not start, what it really runs with, how
much KV it has and how full that is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from speclift.core.records import Counters, Usage
from speclift.engines.metrics import labels_of

_REASON_MAX = 300
# The product of two such numbers still has a place in a study.
DIGITS_MAX = 9
# `(EngineCore pid=7) ERROR 11-15 05:00:00 [core.py:8] ValueError: words`, a bare `ValueError: words`, and
# argparse's `api_server.py: error: words`.
_PREFIX = re.compile(r"^(?:\([^)]*\)\s*)?(?:(?:ERROR|CRITICAL)\s+[\d-]+\s+[\d:.]+\s+\[[^\]]*\]\s*)?")
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)):\s*(\S.*)$")
_ARGPARSE = re.compile(r"^\S*:\s+error:\s+(\S.*)$")
# pydantic says `ValidationError: 1 validation error for SpeculativeConfig`, the field, then the reason.
_INVALID = re.compile(r"validation errors? for (\w+)$")
_DETAIL = re.compile(r"^\s+(?:(?:Value|Assertion) error, )?(.*?)\s*\[type=")
# Says only that another process has said it above.
_ECHOES = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "EngineCore encountered an issue",
)
_CORE_DEAD = "EngineDeadError"  # v1/engine/exceptions.py; logged with the first answer that fails for it
# Printed by the interpreter of the dying process, thousands of characters of it (0.32).
_NOISE = "nanobind: leaked"


def engine_reason(log: str) -> str | None:
    """The engine's own reason in one line: the last error in the log that is not an echo of another."""
    found: list[str] = []
    before = ""
    for raw in log.splitlines():
        line = _PREFIX.sub("", raw.rstrip())
        error, argument, detail = _ERROR.match(line), _ARGPARSE.match(line), _DETAIL.match(line)
        invalid = _INVALID.search(found[-1]) if found else None
        if error is not None:
            found.append(f"{error[1]}: {error[2]}")
        elif argument is not None:
            found.append(argument[1])
        elif detail is not None and invalid is not None:
            field = "" if _INVALID.search(before) else f"{before.strip()}: "
            found[-1] = f"{invalid[1]}: {field}{detail[1]}"
        before = line
    said = [reason for reason in found if not any(echo in reason for echo in _ECHOES)] or found
    return said[-1][:_REASON_MAX] if said else None


def is_core_dead(log: str) -> bool:
    return _CORE_DEAD in log


def without_noise(log: str) -> str:
    return log.partition(_NOISE)[0].rstrip()


def kv_tokens(metrics: Counters) -> int | None:
    """Tokens of KV cache over all engine cores; None where the server does not say."""
    sizes = []
    for name in metrics.values:
        if name.startswith("vllm:cache_config_info{"):
            labels = labels_of(name)
            size = labels.get("kv_cache_size_tokens", "")
            if not _is_whole(size):  # before 0.24 only the blocks were told
                blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
                size = str(int(blocks) * int(block)) if _is_whole(blocks) and _is_whole(block) else ""
            sizes.append(size)
    return sum(map(int, sizes)) if sizes and all(sizes) else None


def _is_whole(text: str) -> bool:
    """Digits as an engine writes them, and not so many that no number holds them."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def totals_only(metrics: Counters) -> Counters:
    """Running totals, without histograms, gauges and the moments at which they were made."""
    return Counters(
        values={
            name: value
            for name, value in metrics.values.items()
            if name.startswith("vllm:") and name.partition("{")[0].endswith("_total")
        }
    )


# What it really runs with. The engine core prints its whole configuration as one line, `name=value, ...`.
_CONFIG_LINE = re.compile(r"Initializing a V1 LLM engine .*? with config: (.*)")
SETTINGS_IN_CONFIG = (
    "dtype",
    "max_seq_len",
    "quantization",
    "kv_cache_dtype",
    "enforce_eager",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
)
# What it decides while it starts, by the words it says it in (0.24 to 0.32); the last match counts.
_DECIDED = {
    "async_scheduling": re.compile(r"Asynchronous scheduling is (enabled|disabled)"),
    "cudagraph_mode": re.compile(
        r"'cudagraph_mode': <CUDAGraphMode\.(\w+)"
        r"|[Oo]verriding cudagraph_mode (?:from \S+ )?to (\w+)|setting cudagraph_mode=(?:CUDAGraphMode\.)?(\w+)"
        r"|(Cudagraph is disabled)"
    ),
    "max_num_batched_tokens": re.compile(r"max_num_batched_tokens=(\d+)"),
    "max_num_scheduled_tokens": re.compile(r"max_num_scheduled_tokens is set to (\d+)"),
    "max_model_len": re.compile(r"Auto-fit max_model_len: reduced from \d+ to (\d+)"),
    "attention_backend": re.compile(r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend"),
}
# Which of its two generations of model runner loads the model shows in the file that says so.
_RUNNER = re.compile(r"\[(gpu_|cpu_)?model_runner\.py:\d+\]")


def effective_settings(log: str) -> dict[str, str]:
    """The settings this server really got, so that two servers can be compared."""
    found: dict[str, str] = {}
    config = _CONFIG_LINE.search(log)
    if config is not None:
        for name in SETTINGS_IN_CONFIG:
            value = re.search(rf"(?:^|, ){name}=([^,]*)", config[1])
            if value is not None:
                found[name] = value[1]
    for name, pattern in _DECIDED.items():
        matches = list(pattern.finditer(log))
        if matches:
            # The attention backend is said for the target first, then for a draft.
            chosen = matches[0] if name == "attention_backend" else matches[-1]
            found[name] = next(group for group in chosen.groups() if group is not None)
    if found.get("cudagraph_mode") == "Cudagraph is disabled":
        found["cudagraph_mode"] = "NONE"
    runner = _RUNNER.search(log)
    if runner is not None:
        found["model_runner"] = "V1" if runner[1] else "V2"
    return found


_WARNING = re.compile(r"^(?:\([^)]*\)\s*)?WARNING\s+[\d-]+\s+[\d:.]+\s+\[[^\]]*\]\s*(\S.*)$", re.MULTILINE)
# Said on every start, or about the machine and not the engine's configuration.
_USUAL = re.compile(
    r"deprecat|sampling parameters|tcmalloc|libiomp|oneDNN|LD_PRELOAD|usage stat|NUMA|Tuned|ulimit"
    r"|JIT compilation|Failed to import",
    re.IGNORECASE,
)


def startup_notices(log: str) -> tuple[str, ...]:
    """What it warned of while it started, each once, in one line."""
    said = (match[1].strip() for match in _WARNING.finditer(log))
    return tuple(dict.fromkeys(line[:_REASON_MAX] for line in said if not _USUAL.search(line)))


_STATS = re.compile(
    r"INFO (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) .*Running: (\d+) reqs, Waiting: (\d+) reqs, "
    r"(?:\w+ )?KV cache usage: ([\d.]+)%"
)


def usage_over_time(log: str, *, year: int) -> tuple[Usage, ...]:
    """The statistics it logs by itself every few seconds; the log's times are local and have no year."""
    return tuple(_usage_points(log, year))


def _usage_points(log: str, year: int) -> Iterator[Usage]:
    for match in _STATS.finditer(log):
        month, day, hour, minute, second = (int(part) for part in match.groups()[:5])
        yield Usage(
            at_s=datetime(year, month, day, hour, minute, second).timestamp(),
            running=int(match[6]),
            waiting=int(match[7]),
            kv_share=float(match[8]) / 100,
        )
