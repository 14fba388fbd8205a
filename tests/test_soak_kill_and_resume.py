"""A soak that is killed at any moment goes on where it was: nothing is asked twice, nothing that was seen is lost, and
no server stays behind. Real processes, fake engine."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from processes import eventually, processes_with
from running import Result, finish, speclift, start
from soaking import TIMES
from speclift.bench.soak_study import FORMAT

SERVER = "speclift.testing.fake_server"
LINES = Path("s/soak/answers.jsonl")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def marked() -> Iterator[str]:
    """A word for the command line of every engine; what is left with it afterwards is ended."""
    word = f"seed={random.SystemRandom().randrange(10**9)}"
    yield word
    for pid in processes_with(word):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def mark() -> Iterator[str]:
    with marked() as word:
        yield word


def soak(mark: str, *more: object, soak_s: float = 10) -> list[object]:
    truths = (*TIMES, mark)
    return [
        *("verify", "--engine", "fake", "--requests", 2, "--max-tokens", 8, "--temperature", 0),
        *("--concurrency", "1,4", "--launches", 2, "--soak", f"{soak_s}s", "--study", "s"),
        *(word for truth in truths for word in ("--engine-arg", truth)),
        *more,
    ]


def kept(folder: Path) -> list[dict[str, Any]]:
    """What a line says that was written whole."""
    data = (folder / LINES).read_bytes() if (folder / LINES).exists() else b""
    rows = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    return [row["kept"] for row in rows if "kept" in row]


def places(folder: Path) -> Counter[tuple[object, ...]]:
    return Counter(
        (
            row["answer"]["exposure"]["arm"],
            row["answer"]["exposure"]["launch"],
            row["step"]["stage"],
            row["step"]["streams"],
            row["answer"]["index"],
        )
        for row in kept(folder)
    )


def no_engine_is_left(mark: str) -> None:
    eventually(
        lambda: not any(SERVER in line for line in processes_with(mark).values()), what="no engine is left"
    )


Row = dict[str, Any]
# They come by the plan of a soak, before half of it is over: on a slow machine with fewer answers before them.
MOMENTS: dict[str, Callable[[Row], bool]] = {
    "an answer": lambda row: True,
    "an answer under load": lambda row: row["step"]["streams"] > 1,
    "an answer of the arm": lambda row: row["answer"]["exposure"]["arm"] != "baseline",
}


def kill_when(condition: Callable[[Row], bool], what: str, folder: Path, mark: str) -> bytes:
    """What was on disk when there was such an answer; none of it may be lost by the kill."""
    resume = ("--resume",) if (folder / LINES).exists() else ()
    with start(soak(mark, *resume), cwd=folder) as process:
        eventually(lambda: process.poll() is not None or any(map(condition, kept(folder))), what=what)
        assert process.poll() is None, finish(process)
        before = (folder / LINES).read_bytes()
        process.kill()
        process.wait()
    no_engine_is_left(mark)
    assert (folder / LINES).read_bytes().startswith(before)
    return before


def test_killed_at_any_moment_a_soak_goes_on_where_it_was(tmp_path: Path, mark: str) -> None:
    for what, condition in MOMENTS.items():
        before = kill_when(condition, what, tmp_path, mark)
    whole = before[: before.rfind(b"\n") + 1]
    result = speclift(*soak(mark, "--resume", "--json"), cwd=tmp_path)
    assert result.code in {0, 5}, result.stderr
    assert (tmp_path / LINES).read_bytes().startswith(whole)
    assert max(places(tmp_path).values()) == 1
    assert result.document["soak"]["requests"] == len(kept(tmp_path))
    again = speclift(*soak(mark, "--resume", "--json"), cwd=tmp_path)
    assert (again.code, again.document["soak"]["faults"]) == (result.code, result.document["soak"]["faults"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A soak that was to keep no text and met Ctrl-C, and the word on its engines' command lines."""

    folder: Path
    mark: str
    result: Result


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interrupted]:
    folder = tmp_path_factory.mktemp("interrupted")
    with marked() as mark, start(soak(mark, "--no-text", "--json", soak_s=60), cwd=folder) as process:
        eventually(lambda: len(kept(folder)) >= 5, what="five answers")
        process.send_signal(signal.SIGINT)
        yield Interrupted(folder=folder, mark=mark, result=finish(process))


def test_ctrl_c_shows_what_was_seen_and_leaves_no_server(interrupted: Interrupted) -> None:
    result = interrupted.result
    assert result.code == 130, result.stderr
    document = result.document["soak"]
    assert document["partial"]
    assert document["requests"] >= 5
    assert "--resume" in result.document["answer"]["next"]["command"]
    no_engine_is_left(interrupted.mark)


def test_other_settings_do_not_go_on_with_it(interrupted: Interrupted) -> None:
    words = soak(interrupted.mark, "--no-text", "--resume", "--seed", 7)
    result = speclift(*words, cwd=interrupted.folder)
    assert result.code == 2
    assert "was begun with other settings" in result.stderr


def test_a_soak_of_another_version_is_not_gone_on_with(interrupted: Interrupted, tmp_path: Path) -> None:
    """What it asked and how it judged is not what this one would."""
    shutil.copytree(interrupted.folder / "s", tmp_path / "s")
    text = (tmp_path / LINES).read_text(encoding="utf-8")
    (tmp_path / LINES).write_text(text.replace(f'"format": {FORMAT}', '"format": 1', 1), encoding="utf-8")
    result = speclift(*soak(interrupted.mark, "--no-text", "--resume"), cwd=tmp_path)
    assert result.code == 2
    assert "another version of speclift" in result.stderr


def test_a_soak_without_text_holds_none_and_goes_on(interrupted: Interrupted) -> None:
    before = kept(interrupted.folder)
    longer_s = before[-1]["elapsed_s"] + 5
    words = soak(interrupted.mark, "--no-text", "--resume", "--json", soak_s=longer_s)
    more = speclift(*words, cwd=interrupted.folder)
    assert more.code in {0, 5}, more.stderr
    after = kept(interrupted.folder)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert max(places(interrupted.folder).values()) == 1
    texts = [choice["text"] for row in after for choice in row["answer"]["choices"] if choice["text"]]
    assert texts
    assert all(text.startswith("sha256:") for text in texts)
    assert not any(row["request"] for row in after)
