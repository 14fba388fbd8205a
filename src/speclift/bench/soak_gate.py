"""The soak as a part of the gate: of verify for as long as asked, of decide for a share of its time.

From arms and an engine to servers under fire, what was seen kept in the study's folder, and what it came to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.soak_reproducing import Reproducing
from speclift.bench.soak_result import is_suspect, soak_of
from speclift.bench.soak_run import REPRODUCING_SHARE, SoakAsk, SoakRun
from speclift.bench.soak_sampling import Sampling
from speclift.bench.soak_study import SoakStudy, SoakTerms
from speclift.core.arm import Arm, baseline_arm
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import UsageError
from speclift.core.quantities import duration
from speclift.core.traffic import Request
from speclift.core.units import Seconds, Tokens
from speclift.engines.build import build_engine
from speclift.engines.kind import engine_kind
from speclift.engines.protocol import Engine
from speclift.lossless.questions import FULL
from speclift.lossless.soak.outcome import Soak
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, soak_traffic

# Fewer seconds do not even launch the servers.
SOAK_MIN_S = 5.0
LOGS = "logs"
TOKENS_MAX = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSettings:
    """What a soak is run with."""

    engine_spec: EngineSpec
    # Those that speculate.
    arms: Sequence[Arm]
    soak_s: Seconds
    levels: tuple[int, ...]
    launches: int
    seed: int
    # The user's own prompts, which are sent among the others.
    prompts: Sequence[Request] = ()
    # Prompts whose sampled answers are held against the target's probabilities; none: no such test.
    sampled: Sequence[Request] = ()
    detect: float = FULL.detect
    tokens_max: Tokens | None = None
    # As asked for; else those of the traffic itself.
    temperatures: tuple[float, ...] = ()
    keeps_text: bool = True
    study: Path
    resumes: bool = False
    leaves_out: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.soak_s < SOAK_MIN_S:
            raise UsageError(
                f"--soak must be at least {duration(SOAK_MIN_S)}, saw {duration(self.soak_s)}",
                hint="--soak 10m",
            )

    @property
    def spec_under_fire(self) -> EngineSpec:
        kind, streams = engine_kind(self.engine_spec.kind), max(self.levels)
        spec = self.engine_spec
        return replace(
            spec,
            settings=kind.under_fire(spec.settings, streams=streams),
            by_arm=tuple((name, kind.under_fire(own, streams=streams)) for name, own in spec.by_arm),
        )


def begin_soak(settings: SoakSettings) -> SoakSettings:
    """Its folder, before anything is asked: from then on it can be resumed."""
    if settings.resumes:
        return settings
    engine = build_engine(settings.spec_under_fire)
    arms = (baseline_arm(), *settings.arms)
    _opened(settings, engine, arms, _traffic(settings, engine)).close()
    return replace(settings, resumes=True)


def check_soak(settings: SoakSettings, observer: Observer, *, deadline: Deadline) -> Soak:
    """What was seen by the end of the time, or until a signal came: then it is partial, and --resume goes on."""
    engine = build_engine(settings.spec_under_fire)
    arms = (baseline_arm(), *settings.arms)
    traffic = _traffic(settings, engine)
    study = _opened(settings, engine, arms, traffic)
    run = SoakRun(
        engine,
        _ask(settings, arms, traffic),
        study,
        logs=study.folder / LOGS,
        observer=observer,
        deadline=deadline,
        is_suspect=lambda: is_suspect(study.record),
    )
    observer.say(
        f"soak: {duration(settings.soak_s)} with {', '.join(map(str, settings.levels))} requests at once on the "
        f"baseline and {len(settings.arms)} {'arm' if len(settings.arms) == 1 else 'arms'}"
    )

    def come_to() -> Soak:
        return soak_of(study.terms, study.record, settings.arms, study=settings.study)

    async def work() -> None:
        await run.run()
        if run.has_time_to_sample and not is_suspect(study.record):
            sampling = Sampling(
                engine,
                traffic,
                study,
                prompts=settings.sampled,
                detect=settings.detect,
                observer=observer,
                deadline=run.rest(settings.soak_s),
                elapsed_s=lambda: run.elapsed_s,
            )
            await sampling.run(settings.arms)
        reproducing = Reproducing(
            engine,
            traffic,
            study,
            observer=observer,
            deadline=run.rest(REPRODUCING_SHARE * settings.soak_s),
            elapsed_s=lambda: run.elapsed_s,
        )
        await reproducing.run(settings.arms, come_to().arms)

    is_interrupted = False
    try:
        run_until_signal(work())
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        study.close()
    return replace(come_to(), is_interrupted=is_interrupted)


def _ask(settings: SoakSettings, arms: Sequence[Arm], traffic: SoakTraffic) -> SoakAsk:
    kind = engine_kind(settings.engine_spec.kind)
    return SoakAsk(
        arms=arms,
        traffic=traffic,
        launch_guess_s=kind.launch_guess_s,
        samples=bool(settings.sampled) and any(traffic.temperatures),
        launches_anew=kind.launches,
    )


def _traffic(settings: SoakSettings, engine: Engine) -> SoakTraffic:
    kind = engine_kind(settings.engine_spec.kind)
    traffic = soak_traffic(
        seed=settings.seed,
        dialect=kind.soak_dialect(engine.version()),
        prompts=settings.prompts,
        tokens_max=min(settings.tokens_max or TOKENS_MAX, settings.engine_spec.settings.context_tokens // 4),
        context_tokens=settings.engine_spec.settings.context_tokens,
        honours_seeds=kind.honours_seeds,
    )
    asked = traffic.without(SoakKind(kind) for kind in settings.leaves_out)
    if not asked.kinds:
        raise UsageError(
            "--leave-out leaves nothing to send",
            hint=f"keep at least one of {', '.join(sorted(traffic.kinds))}",
        )
    return replace(asked, temperatures=settings.temperatures) if settings.temperatures else asked


def _opened(settings: SoakSettings, engine: Engine, arms: Sequence[Arm], traffic: SoakTraffic) -> SoakStudy:
    terms = SoakTerms(
        soak_s=settings.soak_s,
        levels=settings.levels,
        launches=settings.launches if engine_kind(settings.engine_spec.kind).launches else 1,
        seed=settings.seed,
        arms=tuple(arm.name for arm in arms),
        fingerprint=_fingerprint(engine, arms, traffic),
        keeps_text=settings.keeps_text,
    )
    if not settings.resumes:
        return SoakStudy.create(settings.study, terms)
    study = SoakStudy.reopen(settings.study)
    if study.terms.format != terms.format:
        study.close()
        raise UsageError(
            f"the soak in {settings.study} was begun by another version of speclift, which asked other things",
            hint="begin it anew in another --study",
        )
    if replace(study.terms, soak_s=terms.soak_s) != terms:
        study.close()
        raise UsageError(
            f"the soak in {settings.study} was begun with other settings",
            hint="repeat its command with --resume; only --soak and --budget may change",
        )
    study.terms = terms
    return study


def _fingerprint(engine: Engine, arms: Sequence[Arm], traffic: SoakTraffic) -> str:
    """Of everything that decides what is asked of whom."""
    kinds = sorted(traffic.kinds)
    asked = repr(replace(traffic, kinds=frozenset()))
    said = [engine.version(), *(engine.command(arm, port=0) for arm in arms), kinds, asked]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
