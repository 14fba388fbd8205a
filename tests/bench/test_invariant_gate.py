"""What ordinary servers leave open at temperature 0 is asked again where arithmetic cannot be the cause."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from installing import installed
from running import FAST
from speclift.bench.gate_run import GateAsk, settle_by_equality
from speclift.bench.observer import Observer
from speclift.bench.workplace import HERE
from speclift.core.arm import Arm, ServerSettings
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import EngineSpec
from speclift.core.speculation import NGram
from speclift.core.traffic import Message, Request
from speclift.fleet.mirror import StudyCall
from speclift.fleet.workplace import WorkJob
from speclift.lossless.gate import ArmGate, Gate, Greedy, Result
from speclift.lossless.questions import QUICK

ARM = Arm(name="ngram-k2", speculation=NGram(k=2))
REQUESTS = tuple(
    Request(id=f"p{index}", messages=(Message(role="user", content=f"Say {index}"),), max_tokens=32)
    for index in range(12)
)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[None]:
    source = (Path(__file__).parents[1] / "tiny_engine.py").read_text(encoding="utf-8")
    with installed(tmp_path, source):
        yield


def open_gate(*, parted: str = "p9") -> Gate:
    """Three differences of a tenth of a nat that nothing explains."""
    greedy = Greedy(
        result=Result.INCONCLUSIVE,
        message="3 differences in 900 tokens are neither ties nor clear faults",
        tokens=900.0,
        prompts=12,
        wide=3,
        parted=(parted,),
    )
    arm = ArmGate(arm=ARM.name, method="ngram", result=Result.INCONCLUSIVE, greedy=greedy)
    return Gate(depth="quick", detect=0.05, arms=(arm,))


def engine(*truths: str, kind: str = "tiny") -> EngineSpec:
    settings = ServerSettings(model="fake-model", engine_args=(*FAST, *truths))
    return EngineSpec(kind=kind, settings=settings)


def asked(spec: EngineSpec) -> GateAsk:
    return GateAsk(
        engine_spec=spec,
        arms=(ARM,),
        requests=REQUESTS,
        temperatures=(0.0,),
        depth=QUICK,
        seed=1,
        launch_s=1.0,
    )


def settled(
    tmp_path: Path, *truths: str, kind: str = "tiny", gate: Gate | None = None, limit_s: float | None = None
) -> Gate:
    ask, deadline = asked(engine(*truths, kind=kind)), Deadline.after(limit_s, clock=time.monotonic)
    logs = tmp_path / "logs"
    return HERE.run(
        settle_by_equality, gate or open_gate(), ask, logs=logs, observer=Observer(), deadline=deadline
    )


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_equal_answers_settle_it(tmp_path: Path) -> None:
    gate = settled(tmp_path)
    assert gate.result is Result.PASS
    assert "batch-invariant kernels are all the same" in gate.arms[0].greedy.message


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_node_of_a_fleet_settles_it_too(tmp_path: Path) -> None:
    job = WorkJob(work=settle_by_equality, arguments=(open_gate(), asked(engine())), left_s=None)
    sent = pickle.loads(pickle.dumps(job))
    said: list[StudyCall] = []
    gate = asyncio.run(sent.run(tmp_path / "node", said.append))
    assert gate.result is Result.PASS
    assert StudyCall("say", (f"lossless gate: asking {ARM.name} again with batch-invariant kernels",)) in said


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_answers_that_differ_there_too_are_changed(tmp_path: Path) -> None:
    gate = settled(tmp_path, "spec.wrong_token_share=0.02")
    assert gate.result is Result.FAIL
    assert gate.examples


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_servers_that_do_not_start_so_leave_it_as_it_was_and_say_why(tmp_path: Path) -> None:
    gate = settled(tmp_path, "crash_on_start=true")
    assert gate.result is Result.INCONCLUSIVE
    assert any("batch-invariant kernels were not asked: no server started" in note for note in gate.notes)
