"""plan: before anything runs."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any

import typer

from speclift.cli.options import Json, numbers
from speclift.cli.screens import screen
from speclift.core.errors import UsageError

MODELS, MACHINE, REQUESTS, EXPECTED = "Models", "Machine", "Requests", "What is expected"
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _flag(panel: str, metavar: str, help_text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=panel, help=help_text)


Target = Annotated[
    str,
    _flag(
        MODELS,
        "MODEL",
        "Hugging Face folder or cached id, .gguf file, or catalogue name such as llama-3.1-70b.",
        "--target",
        "--model",
    ),
]
Draft = Annotated[
    list[str] | None, _flag(MODELS, "MODEL", "The same; repeatable, the first is the one planned.")
]
TargetQuant = Annotated[
    str | None, _flag(MODELS, "NAME", "bf16, fp8, int8, int4, awq, q4_k_m, ...; else as it is stored.")
]
DraftQuant = Annotated[str | None, _flag(MODELS, "NAME", "The same of the draft.")]
EngineName = Annotated[str | None, _flag(MACHINE, "NAME", "vllm or llamacpp; else by the model's format.")]
Gpu = Annotated[
    str | None, _flag(MACHINE, "NAME", "Such as h100-80gb, or cpu; else what the driver reports.")
]
Gpus = Annotated[int, _flag(MACHINE, "N", "How many of them.")]
Tp = Annotated[int | None, _flag(MACHINE, "N", "Tensor-parallel size; else all GPUs.")]
DraftTp = Annotated[int | None, _flag(MACHINE, "N", "The same of the draft; else the target's.")]
Pp = Annotated[int, _flag(MACHINE, "N", "Pipeline-parallel size.")]
Utilisation = Annotated[
    float, _flag(MACHINE, "X", "Share of the memory the engine may use.", "--utilisation", "--utilization")
]
KvMemory = Annotated[
    str | None, _flag(MACHINE, "SIZE", "Keys and values, such as 256M, whatever --utilisation leaves.")
]
Context = Annotated[int, _flag(REQUESTS, "N", "Longest request, tokens.")]
Loads = Annotated[str, _flag(REQUESTS, "N,...", "Concurrencies; else 1,8,32.")]
KvDtype = Annotated[str, _flag(REQUESTS, "TYPE", "auto, fp8; llama.cpp: f16, q8_0, q4_0, ...")]
MaxNumSeqs = Annotated[int, _flag(REQUESTS, "N", "Most requests in one step (vLLM).")]
TokenBudget = Annotated[int | None, _flag(REQUESTS, "N", "Most tokens in one step (vLLM).")]
Acceptance = Annotated[
    str | None,
    _flag(
        EXPECTED,
        "RATES",
        "0.6,0.8 or 0.8/0.6/0.5 by position, a study, or a replay's JSON; else a curve is shown.",
    ),
]
Ks = Annotated[str, _flag(EXPECTED, "N,...", "Draft lengths, such as 1,3,5.")]


def plan_command(
    target: Target,
    draft: Draft = None,
    target_quant: TargetQuant = None,
    draft_quant: DraftQuant = None,
    engine: EngineName = None,
    gpu: Gpu = None,
    gpus: Gpus = 1,
    tp: Tp = None,
    draft_tp: DraftTp = None,
    pp: Pp = 1,
    utilisation: Utilisation = 0.9,
    kv_cache_memory_bytes: KvMemory = None,
    context: Context = 8192,
    concurrency: Loads = "",
    kv_dtype: KvDtype = "auto",
    max_num_seqs: MaxNumSeqs = 256,
    token_budget: TokenBudget = None,
    acceptance: Acceptance = None,
    k: Ks = "",
    as_json: Json = False,
) -> None:
    """Before anything runs: does it fit, do they pair, when would it pay?"""
    from speclift.bench.deployment import PlanAsk
    from speclift.planner.plan_document import plan_document
    from speclift.verbs.plan import DOES_NOT_FIT, plan

    found = plan(
        PlanAsk(
            target=target,
            drafts=tuple(draft or ()),
            engine=engine,
            gpu=gpu,
            gpus=gpus,
            target_quant=target_quant,
            draft_quant=draft_quant,
            context=context,
            concurrency=numbers(concurrency, int, flag="--concurrency"),
            kv_dtype=kv_dtype,
            tp=tp,
            draft_tp=draft_tp,
            pp=pp,
            utilisation=utilisation,
            acceptance=acceptance,
            ks=numbers(k, int, flag="--k"),
            max_num_seqs=max_num_seqs,
            token_budget=token_budget,
            kv_cache_memory_bytes=size_bytes(kv_cache_memory_bytes) if kv_cache_memory_bytes else None,
        )
    )
    document = plan_document(found)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        from speclift.views.plan_terminal import plan_view

        screen(stderr=True).print(plan_view(document))
    if not found.fits:
        raise typer.Exit(DOES_NOT_FIT)


def size_bytes(text: str) -> int:
    """256M and 1G are powers of two, as vLLM reads them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--kv-cache-memory-bytes takes a size such as 256M or 1G, saw {text!r}")
    return round(float(match[1]) * _SIZES[match[2]])
