"""The GPU study, through the product's own commands, on a machine without a network.

`python benchmarks/gpu/study.py --python VLLM_PYTHON --shapes DIR --smollm DIR --out DIR STUDY...` with STUDY from
draft, ngram, heads, smollm. Shapes carry no weights (shapes.py), acceptance is imposed at 0.8 per position, all
servers of a study are up at once with the same KV budget and take turns. Run with speclift importable.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ALPHA = 0.8
PROMPTS = 256


def rates(k: int) -> str:
    return "/".join(f"{ALPHA**position:.4g}" for position in range(1, k + 1))


def methods(study: str, shapes: Path) -> list[str]:
    match study:
        case "draft":
            return [f"synthetic:draft,model={shapes / 'llama-1b'},rates={rates(k)}" for k in (1, 3, 5)]
        case "ngram":
            return [f"synthetic:ngram,n=3,n_min=1,rates={rates(k)}" for k in (1, 3, 5)]
        case "heads":
            parallel = shapes / "llama-1b-parallel"
            return [
                f"synthetic:draft,model={parallel},parallel_drafting=true,rates={rates(5)}",
                *(f"synthetic:eagle,model={shapes / 'eagle-head'},rates={rates(k)}" for k in (3, 5)),
            ]
        case _:
            raise SystemExit(f"no study {study}")


def command(study: str, options: argparse.Namespace) -> list[str]:
    shared = [
        *("--engine", "vllm", "--vllm-python", options.python, "--side-by-side", "on"),
        *("--study", str(options.out / study), "--json", "--launches", str(options.launches)),
        *("--budget", options.budget, "--engine-arg=--gpu-memory-utilization=0.05"),
    ]
    if study == "smollm":
        traffic = ["--concurrency", "1,16", "--temperature", "0", "--max-tokens", "128"]
        speculation = ["--method", "ngram,n=3,n_min=1", "--k", "3,5"]
        model = ["--model", str(options.smollm), "--engine-arg=--kv-cache-memory-bytes=4G"]
        return ["decide", *model, *speculation, *traffic, *shared]
    named = [word for method in methods(study, options.shapes) for word in ("--method", method)]
    return [
        *("measure", "--model", str(options.shapes / "llama-8b"), *named, "--concurrency", "1,16,64"),
        *("--prompts", str(options.prompts), "--engine-arg=--load-format=dummy"),
        *("--engine-arg=--kv-cache-memory-bytes=6G", *shared),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--shapes", type=Path, required=True)
    parser.add_argument("--smollm", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("studies", nargs="+")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # Neither is in every offline environment; the native sampler always is.
    environment = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    for study in options.studies:
        with (options.out / f"{study}.json").open("w") as document:
            words = [sys.executable, "-m", "speclift", *command(study, options)]
            subprocess.run(words, stdout=document, env=environment, check=False)


if __name__ == "__main__":
    main()
