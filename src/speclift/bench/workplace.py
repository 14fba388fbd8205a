"""Where a study's servers run: on this machine, or on the nodes of a fleet (fleet/). Verbs are given one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from speclift.bench.course import LookAt
from speclift.bench.gate_run import AskedAgain, GateAsk, ask_again, run_gate, settle_by_equality
from speclift.bench.interrupts import run_until_signal
from speclift.bench.observer import Observer
from speclift.bench.run import run_study
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.engines.build import build_engine
from speclift.lossless.gate import Gate
from speclift.lossless.recorded import Fresh
from speclift.studies.study import Study


class Workplace(Protocol):
    """Whoever asks waits until it is done; Ctrl-C ends it, with its servers, wherever they are."""

    def run_study(
        self,
        study: Study,
        *,
        observer: Observer,
        deadline: Deadline,
        workers: int = 1,
        look: LookAt | None = None,
    ) -> None:
        """Whatever of the study is not finished yet. `look` says what is still wanted after so many laps."""
        ...

    def run_gate(
        self, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline
    ) -> tuple[Gate, bool]:
        """The lossless gate in full, and whether it was cut short before its last question."""
        ...

    def settle(self, gate: Gate, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline) -> Gate:
        """With what it leaves open by arithmetic settled by batch-invariant kernels, where the engine has them."""
        ...

    def ask_again(self, spec: EngineSpec, asked: AskedAgain, *, log: Path, deadline: Deadline) -> Fresh:
        """A fresh baseline's answers, with log-probabilities."""
        ...


class Here:
    """This machine."""

    def run_study(
        self,
        study: Study,
        *,
        observer: Observer,
        deadline: Deadline,
        workers: int = 1,
        look: LookAt | None = None,
    ) -> None:
        run_study(study, observer=observer, deadline=deadline, workers=workers, look=look)

    def run_gate(
        self, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline
    ) -> tuple[Gate, bool]:
        return run_until_signal(run_gate(ask, logs=logs, observer=observer, deadline=deadline))

    def settle(self, gate: Gate, ask: GateAsk, *, logs: Path, observer: Observer, deadline: Deadline) -> Gate:
        return run_until_signal(
            settle_by_equality(gate, ask, logs=logs, observer=observer, deadline=deadline)
        )

    def ask_again(self, spec: EngineSpec, asked: AskedAgain, *, log: Path, deadline: Deadline) -> Fresh:
        return run_until_signal(ask_again(build_engine(spec), asked, log=log, deadline=deadline))


HERE = Here()
