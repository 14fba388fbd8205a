"""A disk that fills up: the study stops with a reason, what was measured is kept, and it resumes."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from running import (
    LIMIT_S,
    Cli,
    command,
    fake_flags,
    measured_places,
    planned_places,
    records_of,
    speclift,
)

# Room for the study and some of its records; a full disk fails the same write in the same place.
FILE_BYTES_MAX = 160_000
SHAPE = ("--segment", "chat", "--requests", 12, "--max-tokens", 8, "--launches", 1)


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


@pytest.mark.slow
def test_a_full_disk_ends_the_study_with_a_reason_and_it_resumes_when_there_is_room(tmp_path: Path) -> None:
    stopped = subprocess.run(
        command(["decide", *SHAPE, *fake_flags(), "--study", "s"]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=limit_file_size,
    )
    assert stopped.returncode == 1, stopped.stderr
    assert "cannot write to" in stopped.stderr
    assert "--resume" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    before = records_of(tmp_path / "s")
    assert 0 < len(measured_places(before)) < len(planned_places(tmp_path / "s"))

    resumed = speclift("decide", "--resume", "--study", "s", cwd=tmp_path)
    assert resumed.code in {0, 3, 4, 5}, resumed.stderr
    after = records_of(tmp_path / "s")
    assert after[: len(before)] == before
    places = measured_places(after)
    assert set(places) == planned_places(tmp_path / "s")
    assert set(places.values()) == {1}


def test_a_study_folder_that_cannot_be_made_is_an_operating_error(
    cli: Cli, small: list[object], tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    result = cli("decide", *small, "--study", "a-file/s")
    assert result.code == 1
    assert "cannot be created at a-file/s" in result.stderr
