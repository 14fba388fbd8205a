"""The flags that every measuring verb shares, declared once, and their way into an Ask."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from speclift.bench.ask import Ask
from speclift.cli.study_file import STUDY_FILE, Commas, FileFlag, as_flags, read_study_file, settings_of
from speclift.core.engine_spec import EMBEDDED_MODEL
from speclift.core.errors import UsageError, unknown_name
from speclift.core.goals import (
    MIN_SPEEDUP_DEFAULT,
    TAIL_TOLERANCE_DEFAULT,
    Goals,
    parse_duration_s,
    parse_slos,
)
from speclift.core.quantities import printable
from speclift.workload.experiment import LAUNCHES_DEFAULT

Number = TypeVar("Number", int, float)

# Groups of --help.
COMPARED, ATTACH, TRAFFIC, GOALS, STUDY, SERVER = (
    "What is compared",
    "Servers already running (--engine attach)",
    "Traffic",
    "What is wanted",
    "Study",
    "Server, the same for every arm",
)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact server commands and stop.")]

# Filled by takes_ask: one study file serves every measuring verb, whichever flags a verb has of its own.
STUDY_SETTINGS: dict[str, FileFlag] = {}


def _flag(panel: str, help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **settings)


def ask_from_options(
    engine: Annotated[str, _flag(COMPARED, "llamacpp, vllm, attach or fake.", metavar="NAME")] = "llamacpp",
    model: Annotated[
        str,
        _flag(
            COMPARED,
            "GGUF path or catalogue name; for vllm a Hugging Face folder or id.",
            "--model",
            "--target",
            metavar="MODEL",
        ),
    ] = EMBEDDED_MODEL,
    draft: Annotated[list[str] | None, _flag(COMPARED, "Draft model, repeatable.", metavar="MODEL")] = None,
    method: Annotated[
        list[str] | None,
        _flag(
            COMPARED,
            "ngram, ngram:map-k, draft, ngram+draft, ... with settings: ngram,n=4. Repeatable.",
            metavar="NAME",
        ),
    ] = None,
    k: Annotated[str, _flag(COMPARED, "Draft lengths, such as 1,3,5.", metavar="N,..."), Commas(int)] = "",
    baseline_url: Annotated[
        str | None, _flag(ATTACH, "The server without speculation.", metavar="URL")
    ] = None,
    spec_url: Annotated[str | None, _flag(ATTACH, "The server with speculation.", metavar="URL")] = None,
    baseline_metrics_url: Annotated[
        str | None, _flag(ATTACH, "Its metrics, where not at /metrics.", metavar="URL")
    ] = None,
    spec_metrics_url: Annotated[
        str | None, _flag(ATTACH, "Its metrics, where not at /metrics.", metavar="URL")
    ] = None,
    api_key_env: Annotated[
        str | None, _flag(ATTACH, "Environment variable that holds the bearer key.", metavar="NAME")
    ] = None,
    prompts: Annotated[
        Path | None,
        _flag(
            TRAFFIC,
            "JSON lines, OpenAI batch lines or ShareGPT, also gzipped; else the bundled set.",
            metavar="FILE",
        ),
    ] = None,
    segment: Annotated[
        list[str] | None, _flag(TRAFFIC, "Only this segment, repeatable.", metavar="NAME")
    ] = None,
    requests: Annotated[
        int | None,
        _flag(TRAFFIC, "Requests per cell and launch; beyond the prompts they repeat.", metavar="N", min=1),
    ] = None,
    max_tokens: Annotated[int | None, _flag(TRAFFIC, "Cap on every answer.", metavar="N", min=1)] = None,
    temperature: Annotated[
        str, _flag(TRAFFIC, "Such as 0,0.7; else each prompt's own.", metavar="X,..."), Commas(float)
    ] = "",
    concurrency: Annotated[
        str, _flag(TRAFFIC, "Closed-loop loads, such as 1,8,32; else 1.", metavar="N,..."), Commas(int)
    ] = "",
    qps: Annotated[
        str,
        _flag(TRAFFIC, "Open-loop rates in requests per second, such as 1,4,16.", metavar="X,..."),
        Commas(float),
    ] = "",
    arrivals: Annotated[
        str, _flag(TRAFFIC, "With --qps: poisson, constant or replay.", metavar="NAME")
    ] = "poisson",
    seed: Annotated[int, _flag(TRAFFIC, "Prompt order, arrivals and sampling.", metavar="N")] = 0,
    workers: Annotated[
        int, _flag(TRAFFIC, "Processes that send, where one core is not enough.", metavar="N", min=1)
    ] = 1,
    min_speedup: Annotated[float, _flag(GOALS, "The bar for shipping.", metavar="X")] = MIN_SPEEDUP_DEFAULT,
    metric: Annotated[str, _flag(GOALS, "tpot, e2e or throughput.", metavar="NAME")] = "tpot",
    slo: Annotated[
        str, _flag(GOALS, "Such as ttft_p99=1s,tpot_p99=50ms.", metavar="NAME=TIME,..."), Commas(str)
    ] = "",
    tail_tolerance: Annotated[
        float, _flag(GOALS, "How fast the tail must be shown to stay, against the baseline's.", metavar="X")
    ] = TAIL_TOLERANCE_DEFAULT,
    study: Annotated[
        Path | None, _flag(STUDY, "Study directory; else studies/DATE-TIME.", metavar="DIR")
    ] = None,
    resume: Annotated[bool, _flag(STUDY, "Go on where --study (or the latest) stopped.", "--resume")] = False,
    no_text: Annotated[
        bool, _flag(STUDY, "Keep hashes instead of prompts and answers.", "--no-text")
    ] = False,
    launches: Annotated[int, _flag(STUDY, "Fresh servers per arm.", metavar="N", min=1)] = LAUNCHES_DEFAULT,
    budget: Annotated[
        str, _flag(STUDY, "Time limit, such as 3m: a verdict on what exists by then.", metavar="TIME")
    ] = "",
    threads: Annotated[
        int | None, _flag(SERVER, "Engine threads; else all cores but one.", metavar="N", min=1)
    ] = None,
    context: Annotated[int, _flag(SERVER, "Context tokens per request.", metavar="N", min=128)] = 2048,
    gpu_layers: Annotated[
        int | None, _flag(SERVER, "Target layers on the GPU (llama.cpp).", metavar="N")
    ] = None,
    kv_type_k: Annotated[
        str | None, _flag(SERVER, "KV cache type of keys, such as q8_0.", metavar="TYPE")
    ] = None,
    kv_type_v: Annotated[str | None, _flag(SERVER, "KV cache type of values.", metavar="TYPE")] = None,
    kv_dtype: Annotated[str | None, _flag(SERVER, "Both at once, such as fp8.", metavar="TYPE")] = None,
    target_quant: Annotated[
        str,
        _flag(
            SERVER,
            "Quantisation of the target (vLLM), such as fp8; tune takes several: none,fp8.",
            metavar="NAME,...",
        ),
        Commas(str),
    ] = "",
    draft_quant: Annotated[
        str, _flag(SERVER, "The same of every draft.", metavar="NAME,..."), Commas(str)
    ] = "",
    tp: Annotated[int, _flag(SERVER, "Tensor-parallel size (vLLM).", metavar="N", min=1)] = 1,
    draft_tp: Annotated[
        str, _flag(SERVER, "The same of every draft; else the target's.", metavar="N,..."), Commas(int)
    ] = "",
    pp: Annotated[int, _flag(SERVER, "Pipeline-parallel size (vLLM).", metavar="N", min=1)] = 1,
    max_num_seqs: Annotated[
        int | None, _flag(SERVER, "Most requests in one step (vLLM).", metavar="N", min=1)
    ] = None,
    token_budget: Annotated[
        str, _flag(SERVER, "Most tokens in one step (vLLM).", metavar="N,..."), Commas(int)
    ] = "",
    prefix_cache: Annotated[
        bool, _flag(SERVER, "Keep prompts' prefixes between requests (vLLM).", "--prefix-cache")
    ] = False,
    async_scheduling: Annotated[
        str, _flag(SERVER, "auto, on or off (vLLM); auto is up to it in each arm.", metavar="WHEN")
    ] = "auto",
    side_by_side: Annotated[
        str,
        _flag(SERVER, "auto, on or off: all servers up at once, measured in turn.", metavar="WHEN"),
    ] = "auto",
    llama_server: Annotated[
        str | None, _flag(SERVER, "Your llama-server instead of the embedded one.", metavar="PATH")
    ] = None,
    vllm_python: Annotated[
        str | None, _flag(SERVER, "The Python in whose environment vLLM is.", metavar="PATH")
    ] = None,
    engine_arg: Annotated[
        list[str] | None, _flag(SERVER, "Passed to every arm's server, repeatable.", metavar="ARG")
    ] = None,
) -> Ask:
    if kv_dtype and (kv_type_k or kv_type_v):
        raise UsageError(
            "--kv-dtype sets keys and values at once", hint="leave out --kv-type-k and --kv-type-v"
        )
    target_quants, draft_quants = words(target_quant), words(draft_quant)
    draft_tps = at_least_one(numbers(draft_tp, int, flag="--draft-tp"), flag="--draft-tp")
    token_budgets = at_least_one(numbers(token_budget, int, flag="--token-budget"), flag="--token-budget")
    return Ask(
        engine=engine,
        model=model,
        drafts=tuple(draft or ()),
        methods=tuple(method or ()),
        ks=numbers(k, int, flag="--k"),
        baseline_url=baseline_url,
        spec_url=spec_url,
        baseline_metrics_url=baseline_metrics_url,
        spec_metrics_url=spec_metrics_url,
        api_key_env=api_key_env,
        concurrency=numbers(concurrency, int, flag="--concurrency"),
        qps=numbers(qps, float, flag="--qps"),
        arrivals=arrivals,
        prompts=prompts,
        segments=tuple(segment or ()),
        temperatures=numbers(temperature, float, flag="--temperature"),
        max_tokens=max_tokens,
        requests=requests,
        launches=launches,
        budget_s=parse_duration_s(budget, flag="--budget") if budget else None,
        goals=Goals(
            min_speedup=min_speedup, metric=metric, slos=parse_slos(slo), tail_tolerance=tail_tolerance
        ),
        study=study,
        resume=resume,
        keeps_text=not no_text,
        seed=seed,
        workers=workers,
        threads=threads,
        llama_server=llama_server,
        vllm_python=vllm_python,
        engine_args=tuple(engine_arg or ()),
        context_tokens=context,
        gpu_layers=gpu_layers,
        kv_type_k=kv_dtype or kv_type_k,
        kv_type_v=kv_dtype or kv_type_v,
        target_quant=next(iter(target_quants), None),
        more_target_quants=target_quants[1:],
        draft_quant=next(iter(draft_quants), None),
        more_draft_quants=draft_quants[1:],
        tensor_parallel=tp,
        draft_tensor_parallel=next(iter(draft_tps), None),
        more_draft_tensor_parallels=draft_tps[1:],
        pipeline_parallel=pp,
        sequences_max=max_num_seqs,
        token_budget=next(iter(token_budgets), None),
        more_token_budgets=token_budgets[1:],
        keeps_prefixes=prefix_cache,
        schedules_ahead=switch(async_scheduling, flag="--async-scheduling"),
        together=switch(side_by_side, flag="--side-by-side"),
        argv=tuple(sys.argv[1:]),
    )


def use_study_file(ctx: typer.Context, config: Path | None) -> Path | None:
    """Runs before the other flags are looked at: what the file says becomes their defaults."""
    path = config or STUDY_FILE
    if ctx.resilient_parsing or (config is None and not path.is_file()):
        return None
    defaults = read_study_file(path, STUDY_SETTINGS)
    ctx.default_map = defaults
    # A file that was not named must not work unseen.
    sys.stderr.write(f"settings from {path}: {', '.join(defaults) or 'none'}\n")
    return path


Config = Annotated[
    Path | None,
    _flag(
        STUDY,
        "These flags as a TOML file, - in names as _; else ./speclift.toml where there is one. Flags win.",
        metavar="FILE",
        callback=use_study_file,
        is_eager=True,
    ),
]


def takes_ask(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb(ask, ...) as a command whose flags are the shared ones, --config and its own."""
    shared = inspect.signature(ask_from_options).parameters
    own = [p for p in inspect.signature(verb).parameters.values() if p.name != "ask"]
    hints = {
        **typing.get_type_hints(ask_from_options, include_extras=True),
        **typing.get_type_hints(verb, include_extras=True),
    }
    flags = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in (*shared.values(), *own)
    ]
    STUDY_SETTINGS.update(settings_of(flags))

    @functools.wraps(verb)
    def command(**options: Any) -> None:
        ctx: typer.Context = options.pop("ctx")
        options.pop("config")
        extra = {parameter.name: options.pop(parameter.name) for parameter in own}
        ask = ask_from_options(**options)
        from_file = {
            name: value
            for name, value in (ctx.default_map or {}).items()
            if (source := ctx.get_parameter_source(name)) is not None and source.name == "DEFAULT_MAP"
        }
        # The file may change later; the study keeps what it said.
        verb(replace(ask, argv=(*ask.argv, *as_flags(from_file, STUDY_SETTINGS))), **extra)

    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *flags,
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config),
    ]
    # typer reads the signature and the annotations of what it is given.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


SWITCH: dict[str, bool | None] = {"auto": None, "on": True, "off": False}


def switch(text: str, *, flag: str) -> bool | None:
    if text not in SWITCH:
        raise unknown_name(what=f"value of {flag}", seen=text, allowed=SWITCH)
    return SWITCH[text]


def numbers(text: str, kind: Callable[[str], Number], *, flag: str) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(
            f"{flag} takes numbers with commas, such as 1,4,8; saw {printable(text, limit=60)!r}"
        ) from None


def words(text: str) -> tuple[str | None, ...]:
    """Names with commas, each once; `none` is the server's own way and comes first."""
    found = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
    return tuple(
        sorted((None if word == "none" else word for word in found), key=lambda word: word is not None)
    )


def at_least_one(values: tuple[int, ...], *, flag: str) -> tuple[int, ...]:
    for value in values:
        if value < 1:
            raise UsageError(f"{flag} must be at least 1, saw {value}")
    return tuple(dict.fromkeys(values))
