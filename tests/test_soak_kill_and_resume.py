"""A soak that is killed at any moment goes on where it was: nothing is asked twice, nothing that was seen is lost, and
no server stays behind. Real processes, fake engine."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from processes import eventually, processes_with
from running import finish, speclift, start

SERVER = "speclift.testing.fake_server"
LINES = Path("s/soak/answers.jsonl")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command line of every engine of a test; what is left with it afterwards is ended."""
    word = f"seed={random.SystemRandom().randrange(10**9)}"
    yield word
    for pid in processes_with(word):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def soak(mark: str, *more: object, soak_s: float = 12) -> list[object]:
    truths = ("ttft_s=0.003", "tpot_s=0.0005", mark)
    return [
        *("verify", "--engine", "fake", "--requests", 8, "--max-tokens", 8, "--temperature", 0),
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


def kill_after(answers: int, folder: Path, mark: str) -> bytes:
    """What was on disk when so many answers were; none of it may be lost by the kill."""
    resume = ("--resume",) if (folder / LINES).exists() else ()
    with start(soak(mark, *resume), cwd=folder) as process:
        eventually(
            lambda: process.poll() is not None or len(kept(folder)) >= answers, what=f"{answers} answers"
        )
        assert process.poll() is None, finish(process)
        before = (folder / LINES).read_bytes()
        process.kill()
        process.wait()
    no_engine_is_left(mark)
    assert (folder / LINES).read_bytes().startswith(before)
    return before


def test_killed_at_any_moment_a_soak_goes_on_where_it_was(tmp_path: Path, mark: str) -> None:
    for answers in (1, 60, 200):
        before = kill_after(answers, tmp_path, mark)
    whole = before[: before.rfind(b"\n") + 1]
    result = speclift(*soak(mark, "--resume", "--json"), cwd=tmp_path)
    assert result.code in {0, 5}, result.stderr
    assert (tmp_path / LINES).read_bytes().startswith(whole)
    assert max(places(tmp_path).values()) == 1
    assert result.document["soak"]["requests"] == len(kept(tmp_path))
    again = speclift(*soak(mark, "--resume", "--json"), cwd=tmp_path)
    assert (again.code, again.document["soak"]["faults"]) == (result.code, result.document["soak"]["faults"])


def test_ctrl_c_shows_what_was_seen_and_leaves_no_server(tmp_path: Path, mark: str) -> None:
    with start(soak(mark, "--json", soak_s=60), cwd=tmp_path) as process:
        eventually(lambda: len(kept(tmp_path)) >= 40, what="40 answers")
        process.send_signal(signal.SIGINT)
        result = finish(process)
    assert result.code == 130, result.stderr
    document = result.document["soak"]
    assert document["partial"]
    assert document["requests"] >= 40
    assert "--resume" in result.document["answer"]["next"]["command"]
    no_engine_is_left(mark)


def test_other_settings_do_not_go_on_with_it(tmp_path: Path, mark: str) -> None:
    assert speclift(*soak(mark, soak_s=5), cwd=tmp_path).code in {0, 5}
    result = speclift(*soak(mark, "--resume", "--seed", 7), cwd=tmp_path)
    assert result.code == 2
    assert "was begun with other settings" in result.stderr


def test_a_soak_without_text_holds_none_and_goes_on(tmp_path: Path, mark: str) -> None:
    first = speclift(*soak(mark, "--no-text", soak_s=5), cwd=tmp_path)
    assert first.code in {0, 5}, first.stderr
    texts = [
        choice["text"] for row in kept(tmp_path) for choice in row["answer"]["choices"] if choice["text"]
    ]
    assert texts
    assert all(text.startswith("sha256:") for text in texts)
    assert not any(row["request"] for row in kept(tmp_path))
    more = speclift(*soak(mark, "--no-text", "--resume", "--json", soak_s=8), cwd=tmp_path)
    assert more.code in {0, 5}, more.stderr
    assert max(places(tmp_path).values()) == 1
