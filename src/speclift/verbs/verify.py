"""verify, for Python and for the command line alike: what is asked, at which temperatures, on which servers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from speclift.bench.ask import Ask
from speclift.bench.gate_run import GateAsk
from speclift.bench.gate_run import run_gate as full_gate
from speclift.bench.observer import Observer
from speclift.bench.prepare import Experiment, prepare
from speclift.bench.soak_gate import SoakSettings, begin_soak, check_soak
from speclift.bench.study_paths import free_soak_path, resumed_soak_path
from speclift.bench.time_limit import PREPARING, in_time
from speclift.core.deadline import Deadline
from speclift.core.document import plain_object
from speclift.core.errors import StudyError, UsageError, unknown_name
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import need_object
from speclift.core.traffic import Request
from speclift.core.units import Seconds
from speclift.engines.build import build_engine
from speclift.engines.kind import engine_kind
from speclift.fleet.opening import gate_place
from speclift.lossless.gate import Gate, read_gate
from speclift.lossless.gate_answer import gate_answer
from speclift.lossless.questions import FULL, Depth
from speclift.lossless.soak.traffic import SoakKind
from speclift.studies.private import private_folder, write_private
from speclift.studies.texts import NOT_KEPT

# Inside a study's folder.
POLITE = "soak/gate.json"
# Of streams, where --concurrency does not say.
SOAK_STREAMS = (1, 4, 16)
# Of a budget that is shorter than gate and soak together.
SOAK_BUDGET_SHARE = 0.6
DEFAULT_TEMPERATURE = 1.0  # of requests that do not say; what OpenAI-compatible servers assume


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The gate, and where a soak is kept."""

    gate: Gate
    study: Path | None = None

    def document(self, argv: Sequence[str]) -> Gate:
        """As verify prints it; `argv` is its command line."""
        return structs.replace(self.gate, answer=gate_answer(self.gate, argv))


def verify(
    ask: Ask | None = None,
    observer: Observer | None = None,
    *,
    detect: float | None = None,
    soak_s: Seconds | None = None,
    leave_out: Sequence[str] = (),
    **settings: object,
) -> Gate:
    """Does speculation change the output? `speclift.verify(methods=("ngram",), temperatures=(0.0, 1.0))`.

    `settings` are named like the flags (bench/ask.py); `detect` is the deviation of probability that must not go
    unseen; `soak_s` how long the servers are put under load after that, which is then the gate's `soak`; `leave_out`
    kinds of requests that are not asked.
    """
    asked = ask or Ask.of(**settings)
    return verified(asked, observer or Observer(), detect=detect, soak_s=soak_s, leave_out=leave_out).gate


def verified(
    ask: Ask,
    observer: Observer,
    *,
    detect: float | None = None,
    soak_s: Seconds | None = None,
    leave_out: Sequence[str] = (),
) -> Verified:
    """Asked one at a time first; then, where asked for, under load."""
    ask = with_streams(ask, soak_s)
    deadline = Deadline.after(ask.budget_s, clock=time.monotonic)
    depth = depth_for(ask, detect, leave_out)
    if soak_s is None:
        if ask.resume:
            raise UsageError("verify cannot be resumed without --soak", hint="run it again; it takes minutes")
        return Verified(gate=run_gate(ask, observer, depth=depth, deadline=deadline))
    if ask.on is not None:
        raise UsageError("a soak cannot run on a fleet yet", hint="leave out --on, or --soak")
    path = resumed_soak_path(ask.study) if ask.resume else free_soak_path(ask.study)
    prepared = in_time(lambda: prepare_gate(ask, observer, depth), deadline, doing=PREPARING)
    settings = begin_soak(soak_settings(ask, prepared, path, depth, soak_s=soak_s))
    polite = kept_polite(path) if ask.resume else None
    if polite is None:
        gate = run_gate(ask, observer, depth=depth, deadline=deadline.keeping(soak_share(deadline, soak_s)))
        keep_polite(path, gate, ask)
    else:
        observer.say("the gate was asked before and is not asked again")
        gate = polite
    soak = check_soak(settings, observer, deadline=deadline)
    return Verified(gate=structs.replace(gate, soak=soak), study=path)


def with_streams(ask: Ask, soak_s: Seconds | None) -> Ask:
    """The servers of gate and soak have room for as many requests as the soak sends at once."""
    return ask if soak_s is None or ask.concurrency else replace(ask, concurrency=SOAK_STREAMS)


def soak_share(deadline: Deadline, soak_s: Seconds) -> Seconds:
    """What the gate leaves of a budget to the soak after it."""
    return min(soak_s, SOAK_BUDGET_SHARE * deadline.left_s) if deadline.is_set else 0.0


def soak_settings(
    ask: Ask, experiment: Experiment, study: Path, depth: Depth, *, soak_s: Seconds
) -> SoakSettings:
    return SoakSettings(
        engine_spec=experiment.engine_spec,
        arms=[arm for arm in experiment.plan.arms if arm.speculates],
        soak_s=soak_s,
        levels=ask.concurrency,
        launches=ask.launches,
        seed=ask.seed,
        prompts=experiment.workload.requests if ask.prompts is not None else (),
        sampled=experiment.workload.requests,
        detect=depth.detect,
        leaves_out=depth.leaves_out,
        tokens_max=ask.max_tokens,
        temperatures=ask.temperatures,
        keeps_text=not ask.no_text,
        study=study,
        resumes=ask.resume,
    )


def soak_commands(
    ask: Ask, experiment: Experiment, depth: Depth, *, soak_s: Seconds, besides: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """What a soak launches, as far as it differs from what the gate does."""
    settings = soak_settings(ask, experiment, ask.study or Path(), depth, soak_s=soak_s)
    engine = build_engine(settings.spec_under_load)
    commands = {arm.name: engine.command(arm, port=0) for arm in experiment.plan.arms}
    return {f"{name}, soak": command for name, command in commands.items() if command != besides.get(name)}


def run_gate(ask: Ask, observer: Observer, *, depth: Depth, deadline: Deadline) -> Gate:
    prepared = in_time(lambda: prepare_gate(ask, observer, depth), deadline, doing=PREPARING)
    asked = GateAsk(
        engine_spec=prepared.engine_spec,
        arms=prepared.plan.arms,
        requests=prepared.workload.requests,
        temperatures=gate_temperatures(ask, prepared.workload.requests),
        depth=depth,
        seed=ask.seed,
    )
    with (
        tempfile.TemporaryDirectory(prefix="speclift-verify-") as logs,
        gate_place(ask.on, prepared, observer) as place,
    ):
        gate, _ = place.run(full_gate, asked, logs=Path(logs), observer=observer, deadline=deadline)
        return gate


def keep_polite(study: Path, gate: Gate, ask: Ask) -> None:
    """What was asked before the soak, so that a soak which goes on need not ask it again."""
    keep_gate_document(study / POLITE, Verified(gate=gate), ask)


def kept_polite(study: Path) -> Gate | None:
    try:
        kept = need_object(parse_json((study / POLITE).read_text(encoding="utf-8")))
        # Its answer was that of the command that asked then.
        return read_gate({name: value for name, value in kept.items() if name != "answer"})
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StudyError(f"the gate kept in {study} cannot be read: {error}") from error


def keep_gate_document(path: Path, done: Verified, ask: Ask) -> Path:
    """The document in a file for the user alone."""
    document = plain_object(stored_document(done, ask))
    try:
        private_folder(path.parent)
        write_private(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise StudyError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def stored_document(done: Verified, ask: Ask) -> Gate:
    """As it may lie in a file: without texts where none are to be kept."""
    shown = done.gate.without_text(instead=NOT_KEPT) if ask.no_text else done.gate
    return replace(done, gate=shown).document(ask.argv)


def depth_for(ask: Ask, detect: float | None, leave_out: Sequence[str] = ()) -> Depth:
    """`leave_out`: kinds of requests that are not asked, by the soak's names."""
    kinds = [kind.value for kind in SoakKind]
    for kind in leave_out:
        if kind not in kinds:
            raise unknown_name(what="kind of request in --leave-out", seen=kind, allowed=kinds)
    wanted = FULL.detect if detect is None else detect
    if not 0.001 <= wanted <= 0.5:
        raise UsageError(f"--detect is a probability in 0.001..0.5, saw {wanted:g}", hint="such as 0.02")
    return replace(
        FULL,
        detect=wanted,
        prompts=ask.requests or FULL.prompts,
        tokens=ask.max_tokens or FULL.tokens,
        sampled_prompts=max(ask.requests or FULL.sampled_prompts, 1),
        sampled_tokens=ask.max_tokens or FULL.sampled_tokens,
        batch=max(ask.concurrency, default=FULL.batch),
        leaves_out=frozenset(leave_out),
    )


def prepare_gate(ask: Ask, observer: Observer, depth: Depth) -> Experiment:
    """Prepared like a study, with room for a batch; what a study refuses to time may be what is to be found out."""
    if not engine_kind(ask.engine).launches and not ask.attach.spec_url:
        raise UsageError("verify needs --spec-url", hint="give the server with speculation")
    if ask.qps:
        raise UsageError(
            "verify has no load, so --qps cannot be used", hint="use --concurrency for its batch size"
        )
    asked = replace(
        ask,
        requests=max(depth.prompts, depth.sampled_prompts),
        concurrency=(depth.batch,),
        launches=1,
        resume=False,
    )
    return prepare(asked, observer, samples_anyway=True)


def gate_temperatures(ask: Ask, requests: Sequence[Request]) -> tuple[float, ...]:
    """As asked; else 0 and what the prompts themselves say."""
    if ask.temperatures:
        return tuple(dict.fromkeys(ask.temperatures))
    own = {DEFAULT_TEMPERATURE if r.temperature is None else r.temperature for r in requests}
    return (0.0, *sorted(own - {0.0}))
