"""What vLLM says about itself: why it did not start, from its log; how much KV it has, from its metrics. Pure."""

from __future__ import annotations

import re

from speclift.core.records import Counters

DRAFTED_TOTAL = "vllm:spec_decode_num_draft_tokens_total"
_REASON_MAX = 300
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
            labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
            size = labels.get("kv_cache_size_tokens", "")
            if not size.isdigit():  # before 0.24 only the blocks were told
                blocks, block = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
                size = str(int(blocks) * int(block)) if blocks.isdigit() and block.isdigit() else ""
            sizes.append(size)
    return sum(map(int, sizes)) if sizes and all(sizes) else None


def totals_only(metrics: Counters) -> Counters:
    """Running totals, without histograms, gauges and the moments at which they were made."""
    return Counters(
        values={
            name: value
            for name, value in metrics.values.items()
            if name.startswith("vllm:") and name.partition("{")[0].endswith("_total")
        }
    )
