"""verify, for Python and for the command line alike: what is asked, at which temperatures, on which servers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speclift.bench.ask import Ask
from speclift.bench.gate_run import GateAsk, GateRun
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.prepare import Prepared, prepare
from speclift.bench.time_limit import PREPARING, in_time
from speclift.core.deadline import Deadline
from speclift.core.errors import StudyError, UsageError
from speclift.core.traffic import Request
from speclift.engines.kind import engine_kind
from speclift.lossless.document import verify_document
from speclift.lossless.gate import Gate, gate_without_text
from speclift.lossless.questions import FULL, Depth
from speclift.studies.private import private_folder, write_private
from speclift.studies.texts import NOT_KEPT

DEFAULT_TEMPERATURE = 1.0  # of requests that do not say; what OpenAI-compatible servers assume


def verify(
    ask: Ask | None = None,
    observer: Observer | None = None,
    *,
    detect: float | None = None,
    **settings: object,
) -> Gate:
    """Does speculation change the output? `speclift.verify(methods=("ngram",), temperatures=(0.0, 1.0))`.

    `settings` are named like the flags (bench/ask.py); `detect` is the deviation of probability that must not go
    unseen.
    """
    return run_gate(ask or Ask.of(**settings), observer or Observer(), detect=detect)


def run_gate(ask: Ask, observer: Observer, *, detect: float | None = None) -> Gate:
    deadline = Deadline.after(ask.budget_s, clock=time.monotonic)
    depth = depth_for(ask, detect)
    prepared = in_time(lambda: prepare_gate(ask, observer, depth), deadline, doing=PREPARING)
    with tempfile.TemporaryDirectory(prefix="speclift-verify-") as logs:
        run = GateRun(
            prepared.engine,
            GateAsk(
                arms=prepared.plan.arms,
                requests=prepared.workload.requests,
                temperatures=gate_temperatures(ask, prepared.workload.requests),
                engine_args=ask.server.engine_args,
                depth=depth,
                seed=ask.seed,
            ),
            logs=Path(logs),
            observer=observer,
            deadline=deadline,
        )
        return run_until_signal(run.run())


def keep_gate_document(path: Path, gate: Gate, ask: Ask) -> Path:
    """The document in a file for the user alone."""
    shown = gate_without_text(gate, instead=NOT_KEPT) if ask.no_text else gate
    try:
        private_folder(path.parent)
        write_private(path, json.dumps(verify_document(shown, ask.argv), indent=2) + "\n")
    except OSError as error:
        raise StudyError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def depth_for(ask: Ask, detect: float | None) -> Depth:
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
    )


def prepare_gate(ask: Ask, observer: Observer, depth: Depth) -> Prepared:
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
    )
    return prepare(asked, observer, samples_anyway=True)


def gate_temperatures(ask: Ask, requests: Sequence[Request]) -> tuple[float, ...]:
    """As asked; else 0 and what the prompts themselves say."""
    if ask.temperatures:
        return tuple(dict.fromkeys(ask.temperatures))
    own = {DEFAULT_TEMPERATURE if r.temperature is None else r.temperature for r in requests}
    return (0.0, *sorted(own - {0.0}))
