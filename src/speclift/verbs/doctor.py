"""What doctor reports: facts of this machine that decide how a study on it will go."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import structs

from speclift import __version__
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.prepare import QUICK_PROMPTS_PER_SEGMENT, QUICK_SEGMENTS
from speclift.bench.self_test import (
    NOISE_BUDGET_S,
    NOISE_TOKENS,
    TTFT_S,
    measure_client,
    measure_noise,
    noise_requests,
)
from speclift.client.provenance import host_facts
from speclift.core.arm import EMBEDDED_MODEL, ServerSettings
from speclift.core.doctor import (
    ClientLevel,
    CommandFor,
    Doctor,
    Host,
    LoadGenerator,
    Milliseconds,
    Noise,
    Program,
)
from speclift.core.document import read
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError, OperatingError
from speclift.engines.installed import Installed, Programs, default_threads
from speclift.engines.kind import EngineKind, engine_kind, usable_kinds
from speclift.engines.named import engine_names
from speclift.statistics.checks import CLIENT_LAG_SHARE
from speclift.statistics.noise import noise_of
from speclift.weights import models

TIMER_PROBES = 200
TIMER_STEP_S = 0.002
NOT_INSTALLED = "the embedded engine is not installed"
FETCH_MODEL = f"speclift models fetch {EMBEDDED_MODEL}"
# The gain that a study should be able to see: a third of the usual bar of 1.3x.
SEEN_SPEEDUP = 1.1


def diagnose(
    observer: Observer,
    *,
    with_noise: bool = True,
    with_client: bool = False,
    vllm_python: str | None = None,
    llama_server: str | None = None,
) -> Doctor:
    """`with_client` measures the load generator in place of the machine's noise."""
    cache = models.models_directory()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    late_s = asyncio.run(_timer_lateness_s())
    embedded = next(kind for kind in usable_kinds() if kind.is_embedded)
    programs = Programs(llama_server=llama_server, vllm_python=vllm_python)
    installed = {name: _installed(name, programs) for name in engine_names()}
    listed = _listed()
    host = read(Host, host_facts())
    client = _client(observer) if with_client else None
    if with_client or not with_noise:
        noise = _not_measured(f"skipped ({'--client' if with_client else '--quick'})", "speclift doctor")
    else:
        noise = _noise(embedded, observer)
    return Doctor(
        schema=1,
        speclift=__version__,
        engines=dict(part for name, found in installed.items() for part in _parts(name, found).items()),
        programs=tuple(_program(part) for found in installed.values() for part in found),
        host=host,
        threads_for_the_engine=default_threads(),
        timer_late_ms=Milliseconds(
            p50=round(float(np.percentile(late_s, 50)) * 1000, 3),
            p99=round(float(np.percentile(late_s, 99)) * 1000, 3),
        ),
        models=listed,
        cache=str(cache),
        cache_free_bytes=shutil.disk_usage(existing).free,
        study_folder_free_bytes=shutil.disk_usage(Path.cwd()).free,
        client=client,
        noise=noise,
        next_steps=next_steps(
            is_cached=listed[EMBEDDED_MODEL] == "cached",
            host=host,
            noise=noise,
            client=client,
            install=embedded.install_command(),
        ),
    )


def _listed() -> dict[str, str]:
    return {model.name: "cached" if model.is_cached else "not cached" for model in models.list_models()}


def _installed(engine: str, programs: Programs) -> tuple[Installed, ...]:
    try:
        return engine_kind(engine).installed(programs)
    except OperatingError:
        return ()


def _parts(engine: str, installed: Sequence[Installed]) -> dict[str, str]:
    """A package that does not load is a finding of a doctor, too."""
    try:
        return {part.name: part.said for part in installed} or engine_kind(engine).parts()
    except OperatingError as error:
        return {engine: str(error)}


def _program(part: Installed) -> Program:
    return Program(
        name=part.name,
        found=part.is_found,
        where=part.where,
        version=part.version,
        build=part.build,
        note=part.note,
    )


async def _timer_lateness_s() -> list[float]:
    """How late the event loop wakes on an idle client: the floor under every latency this machine can report."""
    late = []
    for _ in range(TIMER_PROBES):
        due = time.perf_counter() + TIMER_STEP_S
        await asyncio.sleep(TIMER_STEP_S)
        late.append(time.perf_counter() - due)
    return late


def _noise(embedded: EngineKind, observer: Observer) -> Noise:
    """Missing parts and failing servers are findings of a doctor, not errors of it."""
    install = embedded.install_command()
    if install:
        return _not_measured(NOT_INSTALLED, install)
    started_s = time.monotonic()
    try:
        model = str(models.resolve(EMBEDDED_MODEL))
        settings = ServerSettings(model=model, threads=default_threads())
        engine = embedded.build(EngineSpec(kind=embedded.name, settings=settings), settings, version=None)
        observer.say(f"measuring the noise of this machine, about {NOISE_BUDGET_S:.0f} s (--quick skips it)")
        with tempfile.TemporaryDirectory() as logs:
            records = run_until_signal(measure_noise(engine, noise_requests(), logs=Path(logs)))
    except EngineError as error:
        return _not_measured(f"{error} {error.log_tail[-300:]}".strip(), "speclift doctor --quick")
    except OperatingError as error:
        return _not_measured(str(error), error.hint)
    noise = noise_of(records)
    if noise is None:
        return _not_measured(f"{len(records)} answers were too few or too short", "speclift doctor")
    return structs.replace(
        noise, wall_s=round(time.monotonic() - started_s, 1), tokens_per_answer=NOISE_TOKENS
    )


def _client(observer: Observer) -> LoadGenerator:
    observer.say("measuring the load generator with a server that knows its own times, about 5 s")
    try:
        return measure_client()
    except OperatingError as error:
        return LoadGenerator(measured=False, why=str(error), next_step="speclift doctor --client")


def _not_measured(why: str, next_step: str) -> Noise:
    return Noise(measured=False, why=why, next_step=next_step)


def next_steps(
    *,
    is_cached: bool,
    host: Host,
    noise: Noise,
    client: LoadGenerator | None = None,
    install: str = "",
) -> tuple[CommandFor, ...]:
    """What to do next, most pressing first; each with the command that does it. `install`: what brings the engine."""
    steps: list[tuple[str, str]] = []
    if install:
        steps.append((NOT_INSTALLED, install))
    if not is_cached:
        steps.append(("the embedded model is not in the cache", FETCH_MODEL))
    if host.load_average[0] > (host.cores or 1):
        steps.append(("other programs keep this machine busy; stop them or expect noise", "top"))
    if host.governor == "powersave":
        steps.append(("CPU clock changes add noise", "sudo cpupower frequency-set -g performance"))
    if client is not None and is_late(client.levels):
        steps.append(
            ("the load generator was late here; stop other programs, then repeat", "speclift doctor --client")
        )
    if not install:
        steps.append(_first_study(noise))
    return tuple(CommandFor(why=why, command=command) for why, command in steps)


def is_late(levels: Sequence[ClientLevel]) -> bool:
    """Whether some level's TTFT was off by more than a client may be late."""
    errors_ms = (level.ttft_error_ms.p99 for level in levels)
    return any(error_ms is not None and error_ms > CLIENT_LAG_SHARE * TTFT_S * 1e3 for error_ms in errors_ms)


def _first_study(noise: Noise) -> tuple[str, str]:
    needed = {row.speedup: row.prompts for row in noise.prompts_needed}
    prompts = needed.get(SEEN_SPEEDUP, 0)
    if prompts > QUICK_PROMPTS_PER_SEGMENT * len(QUICK_SEGMENTS):
        return f"a verdict that can detect {SEEN_SPEEDUP:g}x here", f"speclift decide --requests {prompts}"
    return "a first verdict within minutes", "speclift decide"
