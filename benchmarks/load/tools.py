"""The load generators under test: how each is called on one load, and where it says what it measured.

Time per token is (last - first) / (tokens - 1) for all of them: vLLM's TPOT, GuideLLM's and AIPerf's inter-token
latency. Times are seconds; None where a tool does not say.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import VLLM, environment_python, hub_home, model_folder

WORDS = ("river", "kettle", "garden", "window", "ladder", "button", "mirror", "ticket", "basket", "harbour")
PROMPT_TOKENS = 100
MODEL = "reference"
OUTPUT = "output.log"
Percentiles = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One load: `streams` at a time, or `rate_per_s` arrivals at constant gaps."""

    tokens: int
    tpot_s: float
    requests: int
    streams: int | None = None
    rate_per_s: float | None = None

    @property
    def name(self) -> str:
        return f"c={self.streams}" if self.streams else f"{self.rate_per_s:g}/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    succeeded: int
    ttft_s: Percentiles
    tpot_s: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    # The arguments are the server's URL, the load and a folder for files.
    command: Callable[[str, Work, Path], list[str]]
    report: Callable[[Path], Reported]


def environment() -> dict[str, str]:
    """Nobody may look for models or report usage on a network."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HOME": str(hub_home()),
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


# speclift


def _speclift(url: str, work: Work, folder: Path) -> list[str]:
    prompts = folder / "prompts.jsonl"
    rng = random.Random(0)
    with prompts.open("w") as out:
        for index in range(work.requests):
            text = " ".join(rng.choices(WORDS, k=PROMPT_TOKENS))
            line = {"id": f"r{index}", "messages": [{"role": "user", "content": text}], "temperature": 0.0}
            out.write(json.dumps(line) + "\n")
    load = (
        ["--concurrency", str(work.streams)]
        if work.streams
        else ["--qps", str(work.rate_per_s), "--arrivals", "constant"]
    )
    return [
        sys.executable, "-m", "speclift", "measure", "--engine", "attach", "--baseline-url", url,
        "--prompts", str(prompts), "--requests", str(work.requests), "--max-tokens", str(work.tokens),
        "--study", str(folder / "study"), "--json", *load,
    ]  # fmt: skip


def _speclift_report(folder: Path) -> Reported:
    text = (folder / OUTPUT).read_text()
    # The narrative shares the log; only the document begins a line with a brace.
    document = json.loads(text[text.index("{\n") if text.startswith("{\n") else text.index("\n{\n") :])
    cell = next(cell for cell in document["cells"] if cell["segment"] == "all")
    return Reported(
        succeeded=cell["requests"] - cell["failed"],
        ttft_s={key: cell["ttft_s"][key] for key in ("p50", "p99")},
        tpot_s={key: cell["tpot_s"][key] for key in ("p50", "p99")},
    )


# vllm bench serve


# The console script of the CPU package fails on its own metadata; this is what it would have called.
VLLM_BENCH = (
    "import sys; from vllm.utils.argparse_utils import FlexibleArgumentParser as P;"
    "from vllm.benchmarks.serve import add_cli_args, main;"
    "p = P(); add_cli_args(p); main(p.parse_args(sys.argv[1:]))"
)


def _vllm(url: str, work: Work, folder: Path) -> list[str]:
    load = (
        ["--max-concurrency", str(work.streams)]
        if work.streams
        # A large burstiness makes its gamma-distributed gaps constant.
        else ["--request-rate", str(work.rate_per_s), "--burstiness", "1e6"]
    )
    return [
        str(environment_python(VLLM)), "-c", VLLM_BENCH,
        "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url, "--model", MODEL,
        "--tokenizer", str(model_folder()), "--dataset-name", "random",
        "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(work.tokens), "--ignore-eos",
        "--num-prompts", str(work.requests), "--percentile-metrics", "ttft,tpot",
        "--metric-percentiles", "50,99", "--disable-tqdm",
        "--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json", *load,
    ]  # fmt: skip


def _vllm_report(folder: Path) -> Reported:
    found = json.loads((folder / "vllm.json").read_text())
    return Reported(
        succeeded=found["completed"],
        ttft_s={key: found[f"{key}_ttft_ms"] / 1e3 for key in ("p50", "p99")},
        tpot_s={key: found[f"{key}_tpot_ms"] / 1e3 for key in ("p50", "p99")},
    )


# GuideLLM


def _guidellm(url: str, work: Work, folder: Path) -> list[str]:
    profile = (
        f"kind=concurrent,streams={work.streams}"
        if work.streams
        else f"kind=constant,rate={work.rate_per_s:g}"
    )
    return [
        str(environment_python("guidellm-0.8.1").with_name("guidellm")), "run",
        "--backend", f"kind=openai_http,target={url},model={MODEL}", "--profile", profile,
        "--constraint", f"kind=max_requests,count={work.requests}",
        "--tokenizer", f"kind=hf_auto,model={model_folder()}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={work.tokens}",
        "--output", f"kind=json,path={folder / 'guidellm.json'}", "--disable-console-interactive",
    ]  # fmt: skip


def _guidellm_report(folder: Path) -> Reported:
    metrics = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]

    def percentiles(name: str) -> Percentiles:
        found = metrics[name]["successful"]["percentiles"]
        return {key: found[key] / 1e3 for key in ("p50", "p99")}

    return Reported(
        succeeded=metrics["request_totals"]["successful"],
        ttft_s=percentiles("time_to_first_token_ms"),
        tpot_s=percentiles("inter_token_latency_ms"),
    )


# AIPerf


def _aiperf(url: str, work: Work, folder: Path) -> list[str]:
    load = (
        ["--concurrency", str(work.streams)]
        if work.streams
        else ["--request-rate", str(work.rate_per_s), "--arrival-pattern", "constant"]
    )
    return [
        str(environment_python("aiperf-0.13.0").with_name("aiperf")), "profile", "-m", MODEL, "--url", url,
        "--endpoint-type", "chat", "--streaming", "--request-count", str(work.requests),
        "--tokenizer", "local/smol", "--synthetic-input-tokens-mean", str(PROMPT_TOKENS),
        "--output-tokens-mean", str(work.tokens), "--ui", "none", "--output-artifact-dir", str(folder), *load,
    ]  # fmt: skip


def _aiperf_report(folder: Path) -> Reported:
    found = json.loads((folder / "profile_export_aiperf.json").read_text())

    def percentiles(entry: dict[str, Any]) -> Percentiles:
        return {key: entry[key] / 1e3 for key in ("p50", "p99")}

    return Reported(
        succeeded=round(found["request_count"]["avg"]),
        ttft_s=percentiles(found["time_to_first_token"]),
        tpot_s=percentiles(found["inter_token_latency"]),
    )


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(name="speclift", command=_speclift, report=_speclift_report),
        Tool(name="vllm-bench", command=_vllm, report=_vllm_report),
        Tool(name="guidellm", command=_guidellm, report=_guidellm_report),
        Tool(name="aiperf", command=_aiperf, report=_aiperf_report),
    )
}
TITLES = {
    "speclift": "speclift",
    "vllm-bench": "vllm bench serve 0.32",
    "guidellm": "GuideLLM 0.8.1",
    "aiperf": "AIPerf 0.13.0",
}
