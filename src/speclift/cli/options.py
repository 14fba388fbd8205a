"""The flags that every measuring verb shares, declared once, and their way into an Ask."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from speclift.core.errors import UsageError
from speclift.core.goals import MIN_SPEEDUP_DEFAULT, Goals, parse_duration_s, parse_slos
from speclift.pipeline.ask import EMBEDDED_MODEL, Ask
from speclift.plan.experiment import LAUNCHES_DEFAULT

Number = TypeVar("Number", int, float)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the exact server commands and stop.")]


def ask_from_options(
    engine: Annotated[str, typer.Option(help="llamacpp or fake.")] = "llamacpp",
    model: Annotated[
        str, typer.Option("--model", "--target", help="GGUF path or catalogue name.")
    ] = EMBEDDED_MODEL,
    draft: Annotated[list[str] | None, typer.Option(help="Draft model, repeatable.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="ngram, ngram:map-k, draft, ngram+draft, ... with settings: ngram,n=4. Repeatable."
        ),
    ] = None,
    k: Annotated[str, typer.Option(help="Draft lengths, such as 1,3,5.")] = "",
    concurrency: Annotated[str, typer.Option(help="Closed-loop loads, such as 1,8,32.")] = "",
    qps: Annotated[str, typer.Option(help="Open-loop rates in requests per second, such as 1,4,16.")] = "",
    arrivals: Annotated[str, typer.Option(help="With --qps: poisson, constant or replay.")] = "poisson",
    prompts: Annotated[Path | None, typer.Option(help="JSON lines; else the bundled set.")] = None,
    segment: Annotated[list[str] | None, typer.Option(help="Only this segment, repeatable.")] = None,
    temperature: Annotated[str, typer.Option(help="Such as 0,0.7; else each prompt's own.")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Cap on every answer.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests per cell and launch.")] = None,
    launches: Annotated[int, typer.Option(min=1, help="Fresh servers per arm.")] = LAUNCHES_DEFAULT,
    budget: Annotated[
        str, typer.Option(help="Time limit, such as 3m: a verdict on what exists by then.")
    ] = "",
    min_speedup: Annotated[float, typer.Option(help="The bar for shipping.")] = MIN_SPEEDUP_DEFAULT,
    metric: Annotated[str, typer.Option(help="tpot, e2e or throughput.")] = "tpot",
    slo: Annotated[str, typer.Option(help="Such as ttft_p99=1s,tpot_p99=50ms.")] = "",
    study: Annotated[Path | None, typer.Option(help="Study directory; else studies/DATE-TIME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where --study (or the latest) stopped.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Prompt order, arrivals and sampling.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Engine threads; else all cores but one.")
    ] = None,
    llama_server: Annotated[
        str | None, typer.Option(help="Your llama-server instead of the embedded one.")
    ] = None,
    engine_arg: Annotated[
        list[str] | None, typer.Option(help="Passed to every arm's server, repeatable.")
    ] = None,
    context: Annotated[int, typer.Option(min=128, help="Context tokens per request.")] = 2048,
    gpu_layers: Annotated[int | None, typer.Option(help="Target layers on the GPU (llama.cpp).")] = None,
    kv_type_k: Annotated[str | None, typer.Option(help="KV cache type of keys, such as q8_0.")] = None,
    kv_type_v: Annotated[str | None, typer.Option(help="KV cache type of values.")] = None,
) -> Ask:
    return Ask(
        engine=engine,
        model=model,
        drafts=tuple(draft or ()),
        methods=tuple(method or ()),
        ks=numbers(k, int, flag="--k"),
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
        goals=Goals(min_speedup=min_speedup, metric=metric, slos=parse_slos(slo)),
        study=study,
        resume=resume,
        seed=seed,
        threads=threads,
        llama_server=llama_server,
        engine_args=tuple(engine_arg or ()),
        context_tokens=context,
        gpu_layers=gpu_layers,
        kv_type_k=kv_type_k,
        kv_type_v=kv_type_v,
        argv=tuple(sys.argv[1:]),
    )


def takes_ask(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb(ask, ...) as a command whose flags are the shared ones and its own."""
    shared = inspect.signature(ask_from_options).parameters
    own = [p for p in inspect.signature(verb).parameters.values() if p.name != "ask"]

    @functools.wraps(verb)
    def command(**options: Any) -> None:
        extra = {parameter.name: options.pop(parameter.name) for parameter in own}
        verb(ask_from_options(**options), **extra)

    hints = {
        **typing.get_type_hints(ask_from_options, include_extras=True),
        **typing.get_type_hints(verb, include_extras=True),
    }
    parameters = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in (*shared.values(), *own)
    ]
    # typer reads the signature and the annotations of what it is given.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def numbers(text: str, kind: Callable[[str], Number], *, flag: str) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{flag} takes numbers with commas, such as 1,4,8; saw {text!r}") from None
