"""The tables of docs/gpu.md from the kept records: `python benchmarks/gpu/table.py` prints them."""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RECORDS = Path(__file__).parent / "records"
STUDIES = ("draft", "heads", "ngram", "schedule")
LOOPS = ("loop-vllm-0.24.0", "loop-vllm-0.26.0")


def main() -> None:
    for name in STUDIES:
        sys.stdout.write(f"\n{name}\n\n" + "\n".join(study_rows(name)) + "\n")
    sys.stdout.write("\nloop\n\n" + "\n".join(loop_rows()) + "\n")


def read(name: str) -> list[dict[str, Any]]:
    with gzip.open(RECORDS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def study_rows(name: str) -> Iterator[str]:
    """TPOT P50 per arm and load, and the paired speedup: geometric mean over prompts of baseline / arm."""
    tpot: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in read(name):
        if line["kind"] == "record" and line["outcome"] == "ok":
            per_token = (line["last_token_s"] - line["first_token_s"]) / (line["output_tokens"] - 1)
            tpot[(line["load"], line["arm"])][line["request_id"]] = per_token
    yield "| concurrency | arm | requests | TPOT P50 | speedup |"
    yield "|---|---|---|---|---|"
    for (load, arm), values in tpot.items():
        baseline = tpot[(load, "baseline")]
        ratios = [baseline[prompt] / value for prompt, value in values.items() if prompt in baseline]
        speedup = float(np.exp(np.mean(np.log(ratios))))
        streams = json.loads(load)["concurrency"]
        p50_ms = float(np.median(list(values.values()))) * 1000
        yield f"| {streams} | {arm} | {len(values)} | {p50_ms:.2f} ms | {speedup:.2f}x |"


def loop_rows() -> Iterator[str]:
    yield "| vLLM | variant | step at 1 / 16 / 64 | TPOT at 1 / 16 / 64 | launches per step | graphs per step |"
    yield "|---|---|---|---|---|---|"
    for name in LOOPS:
        for line in (RECORDS / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            calls = row["trace"]["launches_per_step"]
            graphs = calls.get("cudaGraphLaunch", 0.0)
            single = sum(count for call, count in calls.items() if "LaunchKernel" in call)
            steps = " / ".join(f"{cell['step_s'] * 1000:.1f}" for cell in row["cells"])
            tokens = " / ".join(f"{cell['tpot_s'] * 1000:.2f}" for cell in row["cells"])
            yield f"| {row['vllm']} | {row['variant']} | {steps} ms | {tokens} ms | {single:.0f} | {graphs:.0f} |"


if __name__ == "__main__":
    main()
