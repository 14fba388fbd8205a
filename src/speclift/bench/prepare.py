"""From what was asked to a plan and an engine: models resolved, prompts read, arms named, pairs checked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from speclift import __version__
from speclift.bench.ask import Ask
from speclift.bench.draft_files import draft_files, with_files
from speclift.bench.limits import require_sane
from speclift.bench.observer import Observer
from speclift.bench.search_space import named_methods, require_fit
from speclift.client.provenance import host_facts
from speclift.core.arm import CONTROL, EMBEDDED_MODEL, YOURS, Arm, baseline_arm, control_arm
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import AttachSettings, EngineSpec
from speclift.core.errors import EngineError, UsageError, unknown_name
from speclift.core.quantities import duration
from speclift.core.records import Provenance
from speclift.core.results import Finding, inform, warn
from speclift.core.speculation import Attached, Combined, DraftModel, Head, Speculation, Synthetic
from speclift.core.traffic import Concurrency, Load, Rate, Workload
from speclift.core.units import Seconds
from speclift.engines.build import build_engine, losing_scheduling
from speclift.engines.installed import default_threads
from speclift.engines.kind import EngineKind, engine_kind
from speclift.engines.protocol import Engine
from speclift.planner.methods import arms_for
from speclift.search.space import Candidate, Space
from speclift.studies.prompt_files import bundled_workload, read_workload
from speclift.studies.study import Study
from speclift.weights import models
from speclift.weights.models import folder_fingerprint
from speclift.workload.experiment import StudyPlan
from speclift.workload.laps import interim_plan_for
from speclift.workload.prompts import TEMPERATURE_MAX, select

# Servers that share one GPU and are still told from one that has it alone by what their speculation does.
SIDE_BY_SIDE_MAX = 3
ARRIVALS = ("poisson", "constant", "replay")
# The quick look: copy-heavy, ordinary and free text, one arm, so that five minutes settle something.
QUICK_SEGMENTS = ("verbatim-rewrite", "chat", "creative")
QUICK_PROMPTS_PER_SEGMENT = 18
QUICK_MAX_TOKENS = 64
QUICK_BUDGET_S = 300.0
QUICK_TUNING_PER_SEGMENT = 4
# Of search, confirmation and lossless gate together: a model of the user's own is larger than the embedded one.
QUICK_SEARCH_BUDGET_S = 360.0
QUICK_EMBEDDED_BUDGET_S = 228.0


# So few arms are all confirmed; there is nothing to search.
CONFIRMED_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is to be measured, where, and how long at the most."""

    plan: StudyPlan
    engine_spec: EngineSpec
    engine: Engine
    workload: Workload
    budget_s: Seconds | None
    findings: tuple[Finding, ...]
    # The candidates that may be searched; None where the arms were named.
    space: Space | None = None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return () if self.space is None else self.space.candidates

    @property
    def is_search(self) -> bool:
        return is_worth_searching(self.candidates)


def is_worth_searching(candidates: Sequence[Candidate]) -> bool:
    return sum(not each.is_baseline for each in candidates) > CONFIRMED_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is handed on from preparing to judging: a study that is open, and until when."""

    ask: Ask
    # What is measured next: the search's own study first, where there is one.
    study: Study
    # The end of the time for everything that is still to come.
    deadline: Deadline
    searches: bool = False


def prepare(ask: Ask, observer: Observer, *, samples_anyway: bool = False) -> Experiment:
    """`samples_anyway`: for the lossless gate, whose task it is to find out what a study must not time."""
    if ask.has_variants:
        raise UsageError(
            "several values of a server setting need a search", hint="speclift tune, or one value here"
        )
    ask = as_quick_look(ask, observer) if ask.is_quick_look else ask
    workload, spec = read_inputs(ask, observer)
    return prepare_arms(ask, workload, spec, named_arms(ask, observer), samples_anyway=samples_anyway)


def as_quick_look(ask: Ask, observer: Observer, *, searches: bool = False) -> Ask:
    """A search takes its prompts on top, so that as many are left to confirm on."""
    prompts = QUICK_PROMPTS_PER_SEGMENT + (QUICK_TUNING_PER_SEGMENT if searches else 0)
    budget_s = QUICK_SEARCH_BUDGET_S if searches else QUICK_BUDGET_S
    if searches and engine_kind(ask.engine).is_embedded and ask.server.model == EMBEDDED_MODEL:
        budget_s = QUICK_EMBEDDED_BUDGET_S
    observer.say(
        f"quick look: {', '.join(QUICK_SEGMENTS)} x {prompts} bundled prompts x {QUICK_MAX_TOKENS} tokens, "
        f"at most {duration(budget_s)} (--prompts, --segment, --requests or --budget change it)"
    )
    has_arms = searches or ask.ks or ask.drafts or ask.yours
    methods = () if has_arms else engine_kind(ask.engine).quick_methods
    return replace(
        ask,
        segments=QUICK_SEGMENTS,
        requests=prompts * len(QUICK_SEGMENTS),
        max_tokens=QUICK_MAX_TOKENS,
        budget_s=budget_s,
        methods=ask.methods or methods,
    )


def read_inputs(ask: Ask, observer: Observer) -> tuple[Workload, EngineSpec]:
    """The prompts as they are read, and the engine with its model found."""
    engine_kind(ask.engine)  # what is no engine is wrong usage, seen before any file is read
    require_sane(ask)
    everything = read_workload(ask.prompts) if ask.prompts else bundled_workload()
    if everything.left_out:
        observer.say(f"left out of {everything.source}: {everything.left_out}")
    workload = select(
        everything,
        segments=ask.segments,
        max_tokens=ask.max_tokens,
        limit=ask.requests,
        seed=ask.seed,
    )
    spec = _engine_spec(ask, _loads(ask), observer)
    if not ask.is_elsewhere:
        require_fit(ask, spec.settings)
    return workload, spec


def prepare_arms(
    ask: Ask,
    workload: Workload,
    spec: EngineSpec,
    arms: tuple[Arm, ...],
    *,
    samples_anyway: bool = False,
    searches: bool = False,
) -> Experiment:
    """`searches`: the arms are candidates, and what is chosen of them gets its control when it is confirmed."""
    spec, together = placed(spec, arms, ask.side_by_side, searches=searches)
    if not searches and not samples_anyway:
        spec, arms = with_control(spec, arms)
    engine, shared = build_engine(spec), build_engine(replace(spec, by_arm=()))
    kind = engine_kind(spec.kind)
    require_drafting(kind, arms)
    if not ask.is_elsewhere:
        kind.check_pairs(arms, spec.settings.model)
    if shared.samples_wrongly and not samples_anyway:
        require_greedy(ask, workload, why=shared.samples_wrongly)
    for arm in arms:  # what this engine cannot express is wrong usage, seen before any launch
        engine.command(arm, port=0)
    rounds = ask.launches if kind.launches else 1
    requests = request_count(ask, workload)
    plan = StudyPlan(
        arms=arms,
        loads=_loads(ask),
        requests=workload.requests,
        temperatures=temperatures(ask),
        rounds=rounds,
        together=together,
        seed=ask.seed,
        request_count=requests,
        looks=None
        if ask.fixed
        # A node of a fleet runs whole rounds: every lap sends all requests.
        else interim_plan_for(rounds, together=together, repeats=requests is not None or ask.on is not None),
    )
    return Experiment(
        plan=plan,
        engine_spec=spec,
        engine=engine,
        workload=workload,
        budget_s=ask.budget_s,
        findings=(*forewarnings(arms, shared), *(() if searches else crowding(plan, spec))),
    )


def crowding(plan: StudyPlan, spec: EngineSpec) -> tuple[Finding, ...]:
    """Of many servers on one GPU; a search has fewer of its candidates up at a time."""
    if not plan.together or len(plan.arms) <= SIDE_BY_SIDE_MAX or not engine_kind(spec.kind).is_on_gpu(spec):
        return ()
    return (
        warn(
            "crowded-gpu",
            f"{len(plan.arms)} servers side by side on one GPU: while one is warmed up or measured the others"
            " hold memory that its KV cache would have, and share the GPU's cores and memory bandwidth whenever they"
            " work",
            then="measure one after the other: --side-by-side off",
        ),
    )


def placed(
    spec: EngineSpec, arms: Sequence[Arm], asked: bool | None, *, searches: bool = False
) -> tuple[EngineSpec, bool]:
    """Whether these arms are up side by side, and their servers as they then are. As asked, else where they fit; in a
    search each arm beside a baseline is enough."""
    spec = spec.sharing(None)
    engine = build_engine(spec)
    groups = [(baseline_arm(), arm) for arm in arms] if searches else [tuple(arms)]
    if not (all(map(engine.fits_together, groups)) if asked is None else asked):
        return spec, False
    return engine_kind(spec.kind).side_by_side(spec, arms), True


def request_count(ask: Ask, workload: Workload) -> int | None:
    """Where more requests are asked for than there are prompts; None where each is sent once."""
    is_beyond = ask.requests is not None and ask.requests > len(workload.requests)
    return ask.requests if is_beyond else None


def with_control(spec: EngineSpec, arms: tuple[Arm, ...]) -> tuple[EngineSpec, tuple[Arm, ...]]:
    """With a server that lacks what an arm's speculation switches off, where one does."""
    if not losing_scheduling(build_engine(replace(spec, by_arm=())), arms):
        return spec, arms
    settings = replace(spec.settings, async_scheduling=False)
    return replace(spec, by_arm=(*spec.by_arm, (CONTROL, settings))), (*arms, control_arm())


def provenance(experiment: Experiment, ask: Ask) -> Provenance:
    model = experiment.engine_spec.settings.model
    return Provenance(
        speclift_version=__version__,
        engine=experiment.engine.name,
        engine_version=experiment.engine.version(),
        model=model,
        model_sha256=model_fingerprint(model),
        prompts_sha256=experiment.workload.sha256,
        seed=ask.seed,
        host=host_facts(),
        commands=tuple(experiment.engine.command(arm, port=0) for arm in experiment.plan.arms),
        argv=ask.argv,
    )


def model_fingerprint(model: str) -> str:
    """Empty where the model is a name that only its server can resolve."""
    path = Path(model)
    if path.is_file():
        return models.fingerprint(path)
    return folder_fingerprint(path) if model and path.is_dir() else ""


def named_arms(ask: Ask, observer: Observer) -> tuple[Arm, ...]:
    kind = engine_kind(ask.engine)
    if not kind.launches:
        spec = (Arm(name="spec", speculation=Attached()),) if ask.attach.spec_url else ()
        return (baseline_arm(), *spec)
    yours = () if ask.yours is None else (Arm(name=YOURS, speculation=ask.yours),)
    methods = named_methods(ask) or (() if yours else kind.default_methods)
    if not methods:
        return (baseline_arm(), *yours)
    arms = arms_for(methods=methods, ks=ask.ks, drafts=draft_paths(ask, observer))
    asked = [_with_draft_settings(arm.speculation, ask) for arm in arms]
    files = draft_files(asked, ask.draft_quants[:1], ask, observer)
    named = (
        replace(arm, speculation=with_files(speculation, files))
        for arm, speculation in zip(arms, asked, strict=True)
    )
    return (*(arm for arm in named if arm.speculation != ask.yours), *yours)


def draft_paths(ask: Ask, observer: Observer) -> tuple[str, ...]:
    if ask.is_elsewhere:
        return ask.drafts
    return tuple(
        engine_kind(ask.engine).model_path(draft, say=observer.say, fetches=ask.fetches)
        for draft in ask.drafts
    )


def _with_draft_settings(speculation: Speculation, ask: Ask) -> Speculation:
    """--draft-quant and --draft-tp, for whatever has a draft model of its own; vLLM's names, which others refuse."""
    given = {
        "quantization": next(iter(ask.draft_quants), None),
        "draft_tensor_parallel_size": next(iter(ask.draft_tps), None),
    }
    extra = tuple((key, json.dumps(value)) for key, value in given.items() if value is not None)
    match speculation:
        case DraftModel() | Head() if extra:
            return structs.replace(speculation, extra=(*speculation.extra, *extra))
        case Synthetic(inner=DraftModel() | Head() as inner) if extra:
            return structs.replace(speculation, inner=structs.replace(inner, extra=(*inner.extra, *extra)))
        case Combined(parts=parts) if extra:
            held = (
                structs.replace(part, extra=(*part.extra, *extra)) if isinstance(part, DraftModel) else part
                for part in parts
            )
            return structs.replace(speculation, parts=tuple(held))
        case _:
            return speculation


def forewarnings(arms: tuple[Arm, ...], engine: Engine) -> tuple[Finding, ...]:
    """What is known before anything is launched to make the arms differ by more than speculation."""
    found = engine.risks(arms)
    losing = losing_scheduling(engine, arms)
    if not losing:
        return found
    names = ", ".join(arm.name for arm in losing)
    said = inform(
        "async-scheduling",
        f"{names}: the engine turns asynchronous scheduling off for these drafts. The baseline keeps it, so "
        "the loss counts as a cost of speculation",
        then="if your own server runs without it, add --async-scheduling off",
    )
    return (*found, said)


def _attach(ask: Ask) -> AttachSettings | None:
    if engine_kind(ask.engine).launches:
        if ask.attach.baseline_url or ask.attach.spec_url:
            raise UsageError("--baseline-url and --spec-url need --engine attach")
        return None
    if ask.attach.baseline_url is None:
        raise UsageError("--engine attach needs --baseline-url", hint="give the server without speculation")
    return ask.attach


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


def _engine_spec(ask: Ask, loads: tuple[Load, ...], observer: Observer) -> EngineSpec:
    # As many slots as the heaviest closed loop; an open loop gets a few and queues beyond them.
    slots = max(load.streams if isinstance(load, Concurrency) else 4 for load in loads)
    # A line of the user's own has the engine's default where it says nothing.
    line = ask.server.line
    threads = ask.server.threads if line is not None or ask.server.threads is not None else default_threads()
    if threads is not None and threads < 1:
        raise UsageError(f"--threads must be at least 1, saw {threads}")
    kind = engine_kind(ask.engine)
    settings = replace(
        ask.server,
        model=kind.model_path(ask.server.model, say=observer.say, fetches=ask.fetches)
        if _is_file_here(ask, kind)
        else ask.server.model,
        slots=slots,
        threads=threads,
        kv_type_k=ask.kv_dtype or ask.server.kv_type_k,
        kv_type_v=ask.kv_dtype or ask.server.kv_type_v,
        target_quant=next(iter(ask.target_quants), ask.server.target_quant),
        token_budget=next(iter(ask.token_budgets), ask.server.token_budget),
    )
    return EngineSpec(
        kind=ask.engine,
        settings=settings,
        binary=ask.llama_server,
        python=ask.vllm_python,
        attach=_attach(ask),
        version=_told_version(kind, ask) if ask.is_elsewhere or _is_in_container(ask) else None,
    )


def _is_in_container(ask: Ask) -> bool:
    """EngineError where this machine has no program to start it with, unless nothing will be started."""
    line = ask.server.line
    if line is not None and line.is_remote and not ask.is_elsewhere:
        raise EngineError(
            f"your line starts its server elsewhere, with {' '.join((*line.wrapper, *line.start)[:2])}",
            hint="run speclift there, with the server's own command",
        )
    if line is None or not line.is_in_container:
        return False
    if not ask.is_elsewhere and shutil.which(line.start[0]) is None:
        raise EngineError(
            f"your line runs in a container, and there is no {line.start[0]} on this machine",
            hint="run speclift where it is, or give the server's own command",
        )
    return True


def _is_file_here(ask: Ask, kind: EngineKind) -> bool:
    """Whether the model's name is for this machine to resolve: in a container it is one of its own files."""
    line = ask.server.line
    return not (
        ask.is_elsewhere or (line is not None and (line.is_in_container or kind.is_on_hub(ask.server)))
    )


def _told_version(kind: EngineKind, ask: Ask) -> str:
    """Of an engine that is not asked: its image's, else the newest that is known."""
    line, dialect = ask.server.line, kind.dialect
    if dialect is None:
        return ""
    pinned = dialect.image_release(line.start[-1]) if line is not None and line.is_in_container else None
    return dialect.newest_text if pinned is None else f"{kind.name} {pinned}"


def require_drafting(kind: EngineKind, arms: tuple[Arm, ...]) -> None:
    """An arm that starts and never drafts would fail its probe after the launch; it is not launched."""
    for arm in arms:
        why = kind.never_drafts(arm)
        if why is not None:
            raise UsageError(f"arm {arm.name} would never draft: {why}", hint="set n with --method ngram,n=N")


def require_greedy(ask: Ask, workload: Workload, *, why: str) -> None:
    asked = temperatures(ask)
    own = [request.temperature for request in workload.requests]
    if any(value != 0 for given in asked for value in ([given] if given is not None else own)):
        raise UsageError(f"{why}; some requests have a temperature above 0", hint="add --temperature 0")
