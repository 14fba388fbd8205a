"""speclift's command line as a process of its own, on the fake engine unless told otherwise."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from speclift.bench.course import lap_rounds
from speclift.cli.main import main
from speclift.core.interim import at_everything
from speclift.core.records import Phase, Record
from speclift.studies.study import Done, Study
from speclift.verbs.study_data import interim_check
from speclift.workload.experiment import Turn, turns
from speclift.workload.laps import lap_turns, laps

LIMIT_S = 60.0
FAST = ("ttft_s=0.002", "tpot_s=0.0005")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """What --json wrote: one document and nothing else."""
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found


# A command line called in the process of the tests: the fixture `cli`.
Cli = Callable[..., Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A finished study that many tests look at, and what its decide printed: the fixture `decided`."""

    study: Path
    result: Result


def fake_flags(*truths: str, fast: bool = True) -> list[str]:
    """The fake engine with these truths, by default as quick as its clock allows."""
    words = (*FAST, *truths) if fast else truths
    return ["--engine", "fake", *(word for truth in words for word in ("--engine-arg", truth))]


def command(arguments: Iterable[object]) -> list[str]:
    return [sys.executable, "-m", "speclift", *(str(argument) for argument in arguments)]


def start(arguments: Sequence[object], *, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(arguments), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def speclift(
    *arguments: object,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> Result:
    result = subprocess.run(
        command(arguments),
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **(environment or {})},
        timeout=limit_s,
        check=False,
    )
    return Result(code=result.returncode, stdout=result.stdout, stderr=result.stderr)


def called(*arguments: object, cwd: Path) -> Result:
    """In this process, for fixtures that many tests share; a test has the fixture `cli`."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["speclift", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int)
    return Result(code=ended.value.code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


def finish(process: subprocess.Popen[str]) -> Result:
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    return Result(code=process.returncode, stdout=stdout, stderr=stderr)


@contextmanager
def hosted(*truths: str) -> Iterator[str]:
    """The address of a fake server with these truths, started by somebody else as far as speclift knows."""
    words = [word for pair in (*FAST, *truths) for word in ("--truth", pair)]
    program = [sys.executable, "-m", "speclift.testing.fake_server", "--port", "0", *words]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield str(json.loads(server.stdout.readline())["url"])
        finally:
            server.kill()


@contextmanager
def asked(url: str, *, streams: int = 4, max_tokens: int = 32) -> Iterator[None]:
    """Requests one after the other on every stream, for the length of the block."""
    ended = threading.Event()

    def ask(stream: int) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            body = {"prompt": f"say {stream} {number}", "max_tokens": max_tokens, "temperature": 0}
            request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                answer.read()

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in range(streams)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(LIMIT_S)


def records_of(study: Path) -> tuple[Record, ...]:
    with Study.open(study) as opened:
        return opened.records()


def place_of(record: Record) -> Done:
    place = record.place
    return Done(place.arm, place.round, place.block, place.request_id, place.temperature, place.repeat)


def measured_places(records: Iterable[Record]) -> Counter[Done]:
    """How often each place of the plan was measured."""
    return Counter(place_of(record) for record in records if record.place.phase is Phase.MEASURED)


def planned_places(study: Path) -> set[Done]:
    """Of a study in laps, what its looks wanted by the records it holds."""
    with Study.open(study) as opened:
        plan = opened.plan
        each = planned_turns(opened)
    own = {request.id: request.temperature for request in plan.requests}
    return {
        Done(
            turn.arm,
            turn.round,
            turn.block,
            item.request_id,
            own[item.request_id] if item.temperature is None else item.temperature,
            item.repeat,
        )
        for turn in each
        for item in turn.items
    }


def planned_turns(study: Study) -> list[Turn]:
    plan = study.plan
    if plan.looks is None:
        return [turn for round_index in range(plan.rounds) for turn in turns(plan, round_index)]
    first = at_everything(arm.name for arm in plan.arms if arm.speculates)
    return [
        turn
        for lap in laps(plan, lap_rounds(study))
        for turn in lap_turns(plan, lap, (interim_check(study, lap.number) if lap.number else first).wanted)
    ]
