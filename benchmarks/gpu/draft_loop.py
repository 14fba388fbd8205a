"""Where the time of a speculative step goes on a GPU: is a draft pass bound by bytes or by launching kernels?

`python benchmarks/gpu/draft_loop.py SHAPES OUT.jsonl VARIANT...` with the interpreter of vLLM's environment. All
variants start at once, then each is measured while the others wait: 128 tokens at 1, 16 and 64 requests, three times,
acceptance imposed; then one traced run, from which come the GPU's busy share and the launches per step.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

ALPHA, K = 0.8, 5
CONCURRENCY = (1, 16, 64)
OUTPUT_TOKENS, PROMPT_TOKENS = 128, 256
REPEATS = 3
KV_BYTES = 6 * 1024**3
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Not in every environment; the native sampler is always there.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


def _drafting(draft: str, method: str = "draft_model", **extra: Any) -> dict[str, Any]:
    return {"method": method, "model": draft, **extra}


# name: speculative settings, engine settings, environment
VARIANTS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], dict[str, str]]] = {
    "baseline": (None, {}, {}),
    "baseline-not-ahead": (None, {"async_scheduling": False}, {}),
    "draft": (_drafting("llama-1b"), {}, {}),
    "draft-ahead": (_drafting("llama-1b"), {"async_scheduling": True}, {}),
    "draft-eager": (_drafting("llama-1b", enforce_eager=True), {"async_scheduling": True}, {}),
    "draft-wide": (_drafting("wide-4-layers"), {"async_scheduling": True}, {}),
    "draft-parallel": (
        _drafting("llama-1b-parallel", parallel_drafting=True),
        {"async_scheduling": True},
        {},
    ),
    "eagle": (_drafting("eagle-head", "eagle"), {}, {}),
    "eagle-v2": (_drafting("eagle-head", "eagle"), {}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    "eagle-v1": (_drafting("eagle-head", "eagle"), {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    "ngram": ({"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}, {}, {}),
    "ngram-gpu": ({"method": "ngram_gpu", "prompt_lookup_max": 3, "prompt_lookup_min": 1}, {}, {}),
}


def main(shapes: Path, out: Path, names: list[str]) -> None:
    children = {name: _start(shapes, name) for name in names}
    with out.open("a") as kept:
        for name, child in children.items():
            assert child.stdin is not None
            row: dict[str, Any] = {"variant": name, "failure": "did not start"}
            if _wait_for(child, "READY") is not None:
                for other in children.values():  # measured only once nobody loads any more
                    if other is not child:
                        _wait_for(other, "READY")
                child.stdin.write("GO\n")
                child.stdin.flush()
                answer, trace = _wait_for(child, "ROW "), _wait_for(child, "TRACE ")
                row = json.loads(answer) if answer else {"variant": name, "failure": "died while measured"}
                row["trace"] = json.loads(trace) if trace else None
            child.stdin.close()
            child.wait()
            kept.write(json.dumps(row) + "\n")
            kept.flush()
            sys.stderr.write(json.dumps(row) + "\n")


def _start(shapes: Path, name: str) -> subprocess.Popen[str]:
    log = Path(f"draft_loop-{name}.log").open("w")  # noqa: SIM115  the child keeps it
    return subprocess.Popen(
        [sys.executable, __file__, "--child", str(shapes), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, **ENVIRONMENT, **VARIANTS[name][2]},
    )


_seen: dict[int, list[str]] = {}


def _wait_for(child: subprocess.Popen[str], word: str) -> str | None:
    """The rest of the first line that starts with `word`, however often it is asked for; None at the end."""
    lines = _seen.setdefault(child.pid, [])
    while True:
        for line in lines:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            return None
        lines.append(line)


def child(shapes: Path, name: str) -> None:
    import torch

    vllm: Any = import_module("vllm")

    speculation, settings, _ = VARIANTS[name]
    traces = tempfile.mkdtemp()
    if speculation is not None:
        rates = [ALPHA**position for position in range(1, K + 1)]
        forced = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        speculation = {**speculation, "num_speculative_tokens": K, **forced}
        if "model" in speculation:
            speculation["model"] = str(shapes / speculation["model"])
    begun_s = time.perf_counter()
    engine = vllm.LLM(
        model=str(shapes / "llama-8b"),
        load_format="dummy",
        speculative_config=speculation,
        gpu_memory_utilization=0.05,
        kv_cache_memory_bytes=KV_BYTES,
        max_model_len=2048,
        max_num_seqs=256,
        enable_prefix_caching=False,
        disable_log_stats=False,
        profiler_config={
            "profiler": "torch",
            "torch_profiler_dir": traces,
            "torch_profiler_with_stack": False,
        },
        **settings,
    )
    for concurrency in CONCURRENCY:
        _generate(engine, concurrency)
    start_s = time.perf_counter() - begun_s
    print("READY", flush=True)
    if sys.stdin.readline().strip() != "GO":
        return
    row = {
        "variant": name,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "k": K,
        "alpha": ALPHA,
        "start_s": start_s,
        "cells": [_measured(engine, concurrency) for concurrency in CONCURRENCY],
    }
    print("ROW " + json.dumps(row), flush=True)
    print("TRACE " + json.dumps(_traced(engine, Path(traces))), flush=True)


def _generate(engine: Any, concurrency: int, tokens: int = OUTPUT_TOKENS) -> float:
    # Text that repeats itself, so that a look-up finds something to copy.
    prompts = [
        {
            "prompt_token_ids": [
                1000 + (7 * request + position % 30) % 5000 for position in range(PROMPT_TOKENS)
            ]
        }
        for request in range(concurrency)
    ]
    begun_s = time.perf_counter()
    engine.generate(
        prompts,
        import_module("vllm").SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        ),
        use_tqdm=False,
    )
    return time.perf_counter() - begun_s


def _counters(engine: Any) -> dict[str, float]:
    found = {}
    for metric in engine.get_metrics():
        if metric.name.startswith("vllm:spec_decode") and hasattr(metric, "value"):
            found[metric.name.removeprefix("vllm:spec_decode_")] = metric.value
    return found


def _measured(engine: Any, concurrency: int) -> dict[str, Any]:
    before = _counters(engine)
    walls = [_generate(engine, concurrency) for _ in range(REPEATS)]
    after = _counters(engine)
    counted = {key: after[key] - before.get(key, 0.0) for key in after}
    # The time of the tokens after the first: prefill is the same with and without speculation.
    first_s = min(_generate(engine, concurrency, tokens=1) for _ in range(REPEATS))
    decode_s = sorted(walls)[REPEATS // 2] - first_s
    emitted = REPEATS * concurrency * (OUTPUT_TOKENS - 1)
    steps = emitted - counted.get("num_accepted_tokens", 0.0)
    length = emitted / steps
    return {
        "concurrency": concurrency,
        "walls_s": walls,
        "first_s": first_s,
        "tpot_s": decode_s / (OUTPUT_TOKENS - 1),
        "tok_s": concurrency * OUTPUT_TOKENS / sorted(walls)[REPEATS // 2],
        "accepted_length": length,
        "step_s": decode_s / (OUTPUT_TOKENS - 1) * length,
        "counted": counted,
    }


def _traced(engine: Any, folder: Path) -> dict[str, Any]:
    before = _counters(engine)
    engine.start_profile()
    wall_s = _generate(engine, 1, tokens=64)
    engine.stop_profile()
    accepted = _counters(engine).get("num_accepted_tokens", 0.0) - before.get("num_accepted_tokens", 0.0)
    steps = 63 - accepted
    kernels_s = 0.0
    launches: dict[str, int] = {}
    for path in folder.rglob("*.json.gz"):
        with gzip.open(path, "rt") as stream:
            events = json.load(stream)["traceEvents"]
        spans = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        kernels_s += sum(event["dur"] for event in spans) / 1e6
        for event in events:
            if event.get("cat") in ("cuda_runtime", "cuda_driver"):
                launches[event["name"]] = launches.get(event["name"], 0) + 1
    return {
        "traced_wall_s": wall_s,
        "steps": steps,
        "gpu_busy_s_per_step": kernels_s / steps,
        "launches_per_step": {name: count / steps for name, count in launches.items() if count >= steps / 2},
    }


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(Path(sys.argv[2]), sys.argv[3])
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
