"""From what a plan was asked for to what the planner takes: models found and read, devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speclift.bench.ask import CONTEXT_DEFAULT, PlanAsk
from speclift.bench.planned_methods import (
    head_options,
    is_parallel,
    named_drafts,
    planned_methods,
    speculations_of,
)
from speclift.client.provenance import cpu_device, found_gpus
from speclift.core.errors import UsageError, unknown_name
from speclift.core.hardware import Device
from speclift.core.speculation import DraftModel, Speculation
from speclift.engines.kind import engine_kind, usable_kinds
from speclift.planner.memory import Layout, Placed
from speclift.planner.prediction import K_DEFAULT, LOADS_DEFAULT, Acceptance
from speclift.planner.request import DraftOption, EngineTerms, PlanRequest
from speclift.weights.catalogue_files import find_gpu
from speclift.weights.named_models import (
    Source,
    compare_sources,
    find_source,
    offered_drafts,
    place,
)

_WIDE = ("bf16", "fp16", "fp32")


def request_for(ask: PlanAsk, acceptances: tuple[Acceptance, ...] = ()) -> PlanRequest:
    if not ask.target:
        raise UsageError("no model was given", hint="--target MODEL, or your own line: -- vllm serve MODEL …")
    _check_numbers(ask)
    prefers_gguf = ask.engine is not None and terms_of(ask.engine).reads_gguf
    target = find_source(ask.target, prefers_gguf=prefers_gguf)
    speculations = speculations_of(ask)
    named = named_drafts(ask, speculations)
    drafts = [find_source(draft, prefers_gguf=prefers_gguf) for draft in named]
    engine = _engine(ask, target, drafts)
    k_max = engine_kind(engine.name).k_max
    if max(ask.ks, default=1) > k_max:
        raise UsageError(f"--k is at most {k_max}, saw {max(ask.ks)}")
    layout = _layout(ask, target, engine)
    placed = place(target, ask.target_quant, flag="--target-quant")
    device = _device(ask, engine)
    options = _options(ask, engine, target, drafts)
    options = _in_one_pass(options, speculations)
    asked = [option for option in options if option.is_asked_for]
    methods = planned_methods(ask, speculations, placed, dict(zip(named, asked, strict=True)))
    heads = head_options(methods, placed)
    return PlanRequest(
        engine=engine,
        device=device,
        layout=layout,
        target=placed,
        reference=target.reference,
        drafts=(*heads, *options),
        loads=tuple(sorted(set(ask.concurrency))) or LOADS_DEFAULT,
        ks=tuple(sorted(set(ask.ks))) or K_DEFAULT,
        acceptances=acceptances,
        gpu_count=ask.gpus,
        is_gguf=target.gguf is not None,
        engine_version=ask.engine_version,
        others=tuple(plan_terms().values()),
        methods=methods,
        has_target=target.is_nameable,
        assumptions=tuple(note for source in (target, *drafts) if (note := source.assumption)),
    )


def _in_one_pass(
    options: tuple[DraftOption, ...], speculations: Sequence[Speculation]
) -> tuple[DraftOption, ...]:
    """Drafts that were trained to guess all tokens at once: --method draft,parallel_drafting=true."""
    are_parallel = any(is_parallel(each) for each in speculations if isinstance(each, DraftModel))
    return tuple(replace(option, is_parallel=are_parallel) for option in options) if are_parallel else options


def _check_numbers(ask: PlanAsk) -> None:
    if not 0.0 < ask.utilisation <= 1.0:
        raise UsageError(f"--utilisation is a share in 0..1, saw {ask.utilisation:g}")
    lowest = {
        "--gpus": ask.gpus,
        "--context": 1 if ask.context is None else ask.context,
        "--pp": ask.pp,
        "--max-num-seqs": ask.max_num_seqs,
        "--concurrency": min(ask.concurrency, default=1),
        "--k": min(ask.ks, default=1),
        "--tp": 1 if ask.tp is None else ask.tp,
        "--draft-tp": 1 if ask.draft_tp is None else ask.draft_tp,
        "--token-budget": 1 if ask.token_budget is None else ask.token_budget,
    }
    for flag, value in lowest.items():
        if value < 1:
            raise UsageError(f"{flag} must be at least 1, saw {value}")


def terms_of(engine: str) -> EngineTerms:
    planned = plan_terms()
    if engine not in planned:
        raise unknown_name(what="engine", seen=engine, allowed=tuple(planned))
    return planned[engine]


def plan_terms() -> dict[str, EngineTerms]:
    """Of the engines whose memory can be counted."""
    return {kind.name: kind.plan_terms for kind in usable_kinds() if kind.plan_terms is not None}


def _engine(ask: PlanAsk, target: Source, drafts: list[Source]) -> EngineTerms:
    has_gguf = any(source.gguf for source in (target, *drafts))
    if ask.engine is None:
        return next(terms for terms in plan_terms().values() if terms.reads_gguf == has_gguf)
    terms = terms_of(ask.engine)
    if has_gguf and not terms.reads_gguf:
        raise UsageError(
            "only llama.cpp reads GGUF files",
            hint="use --engine llamacpp, or give a model name instead of the file",
        )
    return terms


def _layout(ask: PlanAsk, target: Source, engine: EngineTerms) -> Layout:
    tensor = ask.tp if ask.tp is not None else max(1, ask.gpus // ask.pp)
    if tensor * ask.pp > ask.gpus:
        raise UsageError(
            f"--tp {tensor} x --pp {ask.pp} need {tensor * ask.pp} GPUs, --gpus says {ask.gpus}",
            hint=f"--gpus {tensor * ask.pp}",
        )
    engine.check_split(target.shape, tensor)
    return Layout(
        tensor_parallel=tensor,
        draft_tensor_parallel=ask.draft_tp,
        pipeline_parallel=ask.pp,
        utilisation=ask.utilisation,
        context=min(CONTEXT_DEFAULT, target.shape.max_positions or CONTEXT_DEFAULT)
        if ask.context is None
        else ask.context,
        kv_dtype=ask.kv_dtype,
        batched_tokens=ask.token_budget,
        max_num_seqs=ask.max_num_seqs,
        kv_cache_bytes=ask.kv_cache_memory_bytes,
    )


def _device(ask: PlanAsk, engine: EngineTerms) -> Device:
    if ask.gpu is not None:
        return cpu_device() if ask.gpu.strip().lower() == "cpu" else find_gpu(ask.gpu)
    found = found_gpus()
    if found:
        known = find_gpu(found[0].name)
        # The driver counts what it keeps for itself; a smaller variant of the same name counts less.
        return replace(known, memory_bytes=min(known.memory_bytes, found[0].memory_bytes))
    if engine.runs_without_gpu:
        return cpu_device()
    raise UsageError("no GPU was given and none was found here", hint="--gpu h100-80gb, or --gpu cpu")


def _options(
    ask: PlanAsk, engine: EngineTerms, target: Source, drafts: list[Source]
) -> tuple[DraftOption, ...]:
    options = []
    for source in (_like(draft, target) for draft in drafts):
        if source.reference == target.reference and len(drafts) == 1 and source.gguf is None:
            raise UsageError(
                f"{source.reference} cannot draft for itself", hint="give a smaller model of the same family"
            )
        placed = place(source, ask.draft_quant, flag="--draft-quant")
        options.append(_option(source, placed, target, engine, asked=True))
        if source.gguf is None and placed.weights.precision in _WIDE:
            narrow = place(source, engine.quantised_draft, flag="--draft-quant")
            options.append(_option(source, narrow, target, engine, asked=False))
    if target.gguf is None:
        options += [
            _option(source, place(source, ask.draft_quant, flag="--draft-quant"), target, engine, asked=False)
            for source in offered_drafts(target.shape, without=[source.shape for source in drafts])
        ]
    return tuple(options)


def _like(draft: Source, target: Source) -> Source:
    """A model of which only the size is known is taken to have the other one's vocabulary."""
    if not (draft.assumption or target.assumption):
        return draft
    return replace(draft, shape=replace(draft.shape, vocabulary=target.shape.vocabulary))


def _option(
    source: Source, placed: Placed, target: Source, engine: EngineTerms, *, asked: bool
) -> DraftOption:
    return DraftOption(
        placed=placed,
        reference=source.reference if source.is_nameable else "",
        comparison=compare_sources(target, source) if asked else None,
        is_asked_for=asked,
        is_gguf=source.gguf is not None,
        objection=_file_objection(target, source, engine) if asked else "",
    )


def _file_objection(target: Source, draft: Source, engine: EngineTerms) -> str:
    if target.gguf is None or draft.gguf is None or target.digest == draft.digest:
        return ""
    return engine.file_objection(target.gguf, draft.gguf)
